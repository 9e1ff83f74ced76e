import pytest
from pydantic import ValidationError

from gavel.scenarios.judgement import Judgement, Vote


def test_a_vote_of_an_older_file_whose_position_is_called_slot_is_read():
    older = '{"score": 0.5, "votes": [{"score": 0.5, "slot": 3, "order": 1, "model": "m"}]}'
    [vote] = Judgement.model_validate_json(older).votes
    assert vote.position == 3


def test_a_vote_is_written_with_its_position_and_read_back():
    vote = Vote(score=0.5, position=3, order=1, model="m")
    assert vote.model_dump()["position"] == 3
    assert "slot" not in vote.model_dump()
    assert Vote.model_validate_json(vote.model_dump_json()) == vote


def test_a_vote_without_a_position_is_refused():
    with pytest.raises(ValidationError, match="position"):
        Vote.model_validate({"score": 0.5, "order": 1, "model": "m"})
