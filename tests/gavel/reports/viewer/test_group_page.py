from gavel.reports.viewer.group_view import group_view
from gavel.scenarios.trajectory import Trajectory
from tests.gavel.reports.viewer.stored import group, member


def test_members_stand_side_by_side_round_by_round():
    short = Trajectory(messages_and_choices=member("x", 0.1).messages_and_choices[:4])
    found = group_view(group(member("a", 0.2), short, member("b", 0.9)), "", [])
    assert [view.number for view in found.members] == [0, 1, 2]
    assert [turn.role for turn in found.opening] == ["system", "user"]
    assert [[len(turns) for turns in part] for part in found.rounds] == [[2, 2, 2], [1, 0, 1]]
    assert found.members[0].tokens == 4


def test_the_best_come_first_and_those_without_a_score_last():
    members = [member("a", 0.2), member("b", None), member("c", 0.9), Trajectory(reward=0.5)]
    assert [view.number for view in group_view(group(*members), "score", []).members] == [2, 3, 0, 1]


def test_members_can_be_chosen_and_unknown_numbers_are_passed_over():
    made = group(member("a", 0.2), member("b", 0.3))
    assert [view.number for view in group_view(made, "", [1, 7]).members] == [1]
    assert len(group_view(made, "", [7]).members) == 2
    assert group_view(group(), "", []).members == []


def test_different_openings_are_not_shown_as_one():
    assert group_view(group(member("a", 0.2), member("b", 0.3, task="t2")), "", []).opening == ()
