import pytest

from judge.errors import JudgeError
from judge.rubric import Rubric
from judge.rules import read_rules


def test_a_string_and_a_rubric_of_it_are_the_same():
    assert Rubric.of("Be kind.\n") == Rubric.of(Rubric("Be kind."))


def test_without_a_rubric_there_is_a_general_one_that_no_program_takes_for_rules():
    general = Rubric.of(None)
    assert len(general.text.splitlines()) > 3
    assert read_rules(general.text) == []


def test_the_id_follows_the_text():
    assert Rubric("a").id == Rubric("a").id != Rubric("b").id


def test_an_empty_rubric_is_refused():
    with pytest.raises(JudgeError, match="empty"):
        Rubric.of("  ")
