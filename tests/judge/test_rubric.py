import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.config import read_text_option
from gavel.judge.errors import JudgeError
from gavel.judge.offline.rules import read_rubric
from gavel.judge.rubric import Criterion, Rubric

LOOKS = Criterion("looks first", "Reads the policy before it acts.", 2)
TELLS = Criterion("tells", "Says what was done.")

LINES = st.text(min_size=1, max_size=12).filter(lambda text: text.strip() and len(text.splitlines()) == 1)
CRITERIA = st.lists(
    st.builds(Criterion, LINES, LINES, st.floats(0.1, 9)),
    min_size=1,
    max_size=5,
    unique_by=lambda criterion: criterion.name.strip().casefold(),
)


def test_a_string_and_a_rubric_of_it_are_the_same():
    assert Rubric.of("Be kind.\n") == Rubric.of(Rubric("Be kind."))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_rubrics_file_is_read_in_the_encodings_of_editors(tmp_path, encoding):
    (tmp_path / "rubric.txt").write_text("- says “für”\r\n", encoding=encoding, newline="")
    text = read_text_option(f"@{tmp_path}/rubric.txt", "rubric")
    assert text == "- says “für”\n"
    assert Rubric.of("\ufeff- calls refund") == Rubric.of("- calls refund")


def test_without_a_rubric_there_is_a_general_one_that_no_program_takes_for_rules():
    general = Rubric.of(None)
    assert len(general.text.splitlines()) > 3
    assert general.words == general.text
    assert read_rubric(general.text).rules == ()


def test_the_id_follows_everything_that_changes_a_score():
    assert Rubric("a").id == Rubric(" a").id != Rubric("b").id
    lighter = Criterion(LOOKS.name, LOOKS.text, 1)
    different = [Rubric("a"), Rubric("a", [LOOKS]), Rubric("a", [LOOKS, TELLS]), Rubric("a", [TELLS, LOOKS])]
    different += [Rubric("", [LOOKS]), Rubric("a", [lighter]), Rubric("a", [Criterion("looks", LOOKS.text, 2)])]
    assert len({rubric.id for rubric in different}) == len(different)
    assert Rubric("a", [Criterion("n", "t", 1)]).id == Rubric("a", (Criterion("n", "t", 1.0),)).id


def test_the_judge_is_told_texts_names_and_letters_but_no_weights():
    words = Rubric("Be kind.", [LOOKS, TELLS]).words
    assert words.splitlines()[0] == "Be kind."
    assert "Criterion a: looks first\nReads the policy before it acts.\n\nCriterion b: tells\n" in words
    assert "2" not in words


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (lambda: Criterion("looks", " "), "looks"),
        (lambda: Criterion(" ", "text"), None),
        (lambda: Criterion("a\nb", "text"), None),
        (lambda: Criterion("a", "text", -1), "-1"),
        (lambda: Criterion("a", "text", math.nan), "nan"),
        (lambda: Criterion("a", "text", math.inf), "inf"),
        (lambda: Rubric("", [TELLS, Criterion("Tells ", "other")]), "tells"),
        (lambda: Rubric("text", [Criterion("a", "text", 0)]), None),
        (lambda: Rubric("", [Criterion("a", "text", 1e308), Criterion("b", "text", 1e308)]), None),
        (lambda: Rubric("", [Criterion(str(n), "text") for n in range(27)]), "27"),
    ],
)
def test_criteria_that_make_no_vote_are_refused(make, value):
    with pytest.raises(JudgeError, match=value):
        make()


@given(st.text(max_size=20).filter(str.strip), st.lists(CRITERIA, max_size=1))
def test_what_is_dumped_is_read_back_as_the_same_rubric(text, criteria):
    rubric = Rubric(text, [one for some in criteria for one in some])
    assert Rubric.of(rubric.dump()) == rubric
    assert Rubric.of(rubric.dump()).id == rubric.id


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"criteria": [{"name": "a", "text": "t"},]}', None),
        ('{"criteria": [{"name": "a"}]}', "criteria.0.text"),
        ('{"criteria": [{"name": "a", "text": "t", "wieght": 2}]}', "criteria.0.wieght"),
        ('{"criteria": [{"name": "a", "text": "t", "weight": "2"}]}', "criteria.0.weight"),
        ('{"criterions": []}', "criterions"),
        ('{\n "criteria": []}', None),
        (json.dumps({"criteria": [{"name": "a", "text": "t", "weight": 0}]}), None),
    ],
)
def test_json_that_is_no_rubric_is_never_taken_for_text(text, value):
    with pytest.raises(JudgeError, match=value):
        Rubric.of(text)
