import pytest

from gavel.judge.panel.judgements import Ballot, judge_group, judge_members
from gavel.judge.prompt.canonical_group import canonicalize
from gavel.judge.reply.verdict import Scored
from gavel.judge.stats import score_interval
from gavel.llm.types import Reply
from tests.judge.groups import saying


def outcome(*ballots: Ballot):
    trajectories = saying("a", "b").trajectories
    group = canonicalize(dict(enumerate(trajectories)))
    members = judge_members(trajectories, group, ballots)
    return members, judge_group(members, group, ballots)


def ballot(order: int, first: float, *, cost: float | None = 0.25) -> Ballot:
    scores = {0: Scored(first, f"said in {order}"), 1: Scored(0.5)}
    return Ballot(order, (1, 0), "m", scores=scores, calls=1, replies=[Reply("", 10, 2, cost)])


def test_votes_come_with_their_position_and_the_most_typical_explanation():
    members, whole = outcome(ballot(0, 0.1), ballot(1, 0.4), ballot(2, 1.0))
    assert members[0].score == pytest.approx(0.5)
    assert members[0].explanation == "said in 1"
    assert [(vote.order, vote.position) for vote in members[0].votes] == [(0, 1), (1, 1), (2, 1)]
    assert (whole.status, whole.cost_usd, whole.prompt_tokens) == ("scored", 0.75, 30)


def test_one_unknown_price_makes_the_sum_unknown():
    assert outcome(ballot(0, 0.1), ballot(1, 0.1, cost=None))[1].cost_usd is None


def test_a_call_without_a_reply_makes_the_sum_unknown():
    _, whole = outcome(ballot(0, 0.1), Ballot(1, (0, 1), "m", problem="down", calls=1))
    assert whole.cost_usd is None
    assert whole.warnings == ["order 1 is lost: down"]


def test_a_call_that_was_refused_costs_nothing():
    refused = Ballot(1, (0, 1), "m", problem="down", calls=1, free_calls=1)
    assert outcome(ballot(0, 0.1), refused)[1].cost_usd == 0.25
    assert outcome(refused)[1].cost_usd == 0


def test_lost_ballots_make_no_scores():
    members, whole = outcome(Ballot(0, (0, 1), "m", problem="down", calls=1))
    assert [member.score for member in members] == [None, None]
    assert (whole.status, whole.reason) == ("unscored", "no vote: down")


def test_scores_that_equating_moves_out_of_range_keep_their_differences():
    trajectories = saying(*"abcdefghijkl").trajectories
    group = canonicalize(dict(enumerate(trajectories)))
    truth = [0.05 * member for member in range(12)]
    blocks = [(range(8), 0.0), (range(4, 12), -0.2), (range(8, 12), -0.2), (range(4), 0.0)]
    ballots = [
        Ballot(order, tuple(row), "m", scores={member: Scored(truth[member] + shift) for member in row})
        for order, (row, shift) in enumerate(blocks)
    ]
    rewards = [judgement.score or 0.0 for judgement in judge_members(trajectories, group, ballots)]
    by_member = [rewards[member.indices[0]] for member in group.members]
    assert [score - by_member[0] for score in by_member] == pytest.approx([0.05 * member for member in range(12)])
    assert 0 <= min(rewards) <= max(rewards) <= 1


def opposed(first: float, second: float) -> list[Ballot]:
    """Two orders, each of which gives what it shows first the first score."""
    return [
        Ballot(order, shown, "m", scores=dict(zip(shown, (Scored(first), Scored(second)), strict=True)))
        for order, shown in enumerate([(0, 1), (1, 0)])
    ]


@pytest.mark.parametrize("scores", [(0.9, 0.1), (0.7, 0.3), (0.2, 0.8), (1.0, 0.0)])
def test_orders_that_contradict_each_other_are_told_and_leave_wide_errors(scores: tuple[float, float]):
    members, whole = outcome(*opposed(*scores))
    assert whole.order_agreement == -1.0
    assert [warning for warning in whole.warnings if "more orders" in warning and "stronger judge" in warning]
    for member in members:
        low, high = score_interval(member) or (0, 0)
        assert high - low >= abs(scores[0] - scores[1])


def test_orders_that_agree_give_no_warning():
    _, whole = outcome(ballot(0, 0.9), ballot(1, 0.8))
    assert (whole.order_agreement, whole.warnings) == (1.0, [])
