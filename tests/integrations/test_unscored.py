"""Members without a score, as a reward hook is given them."""

import pytest

from gavel.integrations._rewards import Unscored, rewards_of
from gavel.scenarios.errors import JudgeError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import GroupJudgement, GroupStatus, Judgement
from gavel.scenarios.trajectory import Trajectory


def judged(status: GroupStatus, *scores: float | None) -> TrajectoryGroup:
    members = [
        Trajectory(reward=score, judgement=Judgement(score=score, reason="" if score is not None else "no votes"))
        for score in scores
    ]
    return TrajectoryGroup(members, judgement=GroupJudgement(status=status))


CASES: list[tuple[Unscored, list[float | None]]] = [("member", [0.9, None, 0.0]), ("group", [None, None, None])]


@pytest.mark.parametrize(("unscored", "expected"), CASES)
def test_a_missing_score_is_never_a_number(unscored: Unscored, expected: list[float | None]):
    assert rewards_of(judged("partial", 0.9, None, 0.0), unscored) == expected


def test_a_missing_score_may_be_an_error_that_says_why():
    with pytest.raises(JudgeError, match="scored 2 of 3 members of a group: no votes"):
        rewards_of(judged("partial", 0.9, None, 0.0), "raise")


@pytest.mark.parametrize("unscored", ["member", "group", "raise"])
def test_a_group_of_equal_members_has_no_rewards_and_is_no_error(unscored: Unscored):
    assert rewards_of(judged("degenerate", None, None), unscored) == [None, None]


@pytest.mark.parametrize("unscored", ["member", "group", "raise"])
def test_a_group_that_is_scored_has_its_scores(unscored: Unscored):
    assert rewards_of(judged("scored", 0.2, 0.0), unscored) == [0.2, 0.0]
