"""The bias report, against simulated judges whose biases are known."""

from random import Random

import pytest

from gavel.judge.audit.bias import bias_report
from gavel.judge.audit.votes import distinct_members, judge_calls, voting_models
from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.judge.offline.simulated import Bias, Latent, SimulatedJudge
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import Judgement, Vote
from gavel.scenarios.trajectory import Trajectory

pytestmark = pytest.mark.slow


async def judged_by(bias: Bias, *, groups: int = 30, members: int = 6, orders: int = 2) -> list[TrajectoryGroup]:
    random = Random(0)
    table: dict[str, Latent] = {}
    made = []
    for number in range(groups):
        ids = [f"sim-{number}x{n}" for n in range(members)]
        table |= {name: Latent(random.gauss()) for name in ids}
        texts = [f"{name} {'.' * random.randint(10, 300)}" for name in ids]
        made.append(
            TrajectoryGroup(Trajectory(messages_and_choices=[{"role": "assistant", "content": t}]) for t in texts)
        )
    judge = Judge(SimulatedJudge(table, bias), orders=orders)
    return [await judge.score(group) for group in made]


def votes(*rows: tuple[float, ...], models: str = "aa") -> TrajectoryGroup:
    """A group whose members are shown in their order, then in the reverse, and so on; one row of scores a call."""
    size = len(rows[0])
    members = []
    for n in range(size):
        of_member = [
            Vote(score=row[n], position=n if order % 2 == 0 else size - 1 - n, order=order, model=models[order])
            for order, row in enumerate(rows)
        ]
        mean = sum(row[n] for row in rows) / len(rows)
        members.append(Trajectory(judgement=Judgement(score=mean, votes=of_member), reward=mean))
    return TrajectoryGroup(members)


async def test_a_judge_that_favours_the_first_has_a_falling_slope_and_a_fair_one_has_none() -> None:
    biased = bias_report(await judged_by(Bias(slope=0.6, noise=0.3)))
    fair = bias_report(await judged_by(Bias(noise=0.3)))
    assert biased.position_slope.high is not None
    assert biased.position_slope.high < -0.05
    assert fair.position_slope.low is not None
    assert fair.position_slope.high is not None
    assert fair.position_slope.low < 0 < fair.position_slope.high
    means = biased.position_means[6].means
    assert means == sorted(means, reverse=True)


async def test_the_slope_is_the_one_that_the_judge_itself_keeps() -> None:
    groups = await judged_by(Bias(slope=0.4, noise=0.3))
    got = bias_report(groups)
    assert got.position_slope.value == pytest.approx(got.position_means[6].slope)
    assert got.position_means[6].ballots == 60


async def test_a_judge_that_likes_long_text_is_found_out() -> None:
    fond = bias_report(await judged_by(Bias(length=1.5, noise=0.3))).length_correlation
    fair = bias_report(await judged_by(Bias(noise=0.3))).length_correlation
    assert fond.low is not None
    assert fond.low > 0.3
    assert fair.low is not None
    assert fair.high is not None
    assert fair.low < 0 < fair.high


def test_flips_are_pairs_that_two_calls_of_one_judge_rank_the_other_way_round() -> None:
    group = votes((0.1, 0.5, 0.9), (0.5, 0.1, 0.1))  # flips 0-1 and 0-2; the second call ties 1 and 2
    assert bias_report([group]).flip_rate.value == pytest.approx(1.0)
    agreeing = votes((0.1, 0.5, 0.9), (0.2, 0.5, 0.6))
    assert bias_report([group, agreeing]).flip_rate.value == pytest.approx(2 / 5)


def test_two_judges_of_other_minds_do_not_flip() -> None:
    got = bias_report([votes((0.1, 0.9), (0.9, 0.1), models="ab")])
    assert got.flip_rate.value is None


def test_ties_are_different_members_with_the_same_score() -> None:
    assert bias_report([votes((0.1, 0.5, 0.5))]).tie_rate.value == pytest.approx(1 / 3)
    assert bias_report([votes((0.1 + 0.2, 0.3))]).tie_rate.value == 1.0


def test_identical_members_are_one_member() -> None:
    group = votes((0.1, 0.5), (0.2, 0.4))
    double = TrajectoryGroup([*group.trajectories, group.trajectories[0].model_copy(deep=True)])
    assert len(distinct_members(double)) == 2
    assert bias_report([double]) == bias_report([group])


def test_votes_are_read_back_call_by_call() -> None:
    first, second = judge_calls(votes((0.1, 0.5), (0.2, 0.4), models="ab"))
    assert (first.model, first.scores_by_position) == ("a", [0.1, 0.5])
    assert (second.model, second.scores_by_position) == ("b", [0.4, 0.2])
    assert voting_models([votes((0.1, 0.5), (0.2, 0.4), models="ba"), votes((0.1, 0.5))]) == ["b", "a"]


def test_a_call_with_a_vote_missing_has_no_places() -> None:
    group = votes((0.1, 0.5, 0.9))
    group.trajectories.pop(0)
    (call,) = judge_calls(group)
    assert call.scores_by_position == []
    assert bias_report([group]).position_slope.value is None


async def test_large_groups_are_read_block_by_block() -> None:
    got = bias_report(await judged_by(Bias(slope=0.6, noise=0.3), groups=4, members=16))
    assert set(got.position_means) == {8}
    assert got.position_slope.high is not None
    assert got.position_slope.high < 0


def test_scores_without_votes_have_ties_and_lengths_only() -> None:
    members = [
        Trajectory(messages_and_choices=[{"role": "assistant", "content": "." * n}], judgement=Judgement(score=n / 10))
        for n in (1, 3, 8)
    ]
    got = bias_report([TrajectoryGroup(members)])
    assert got.tie_rate.value == 0.0
    assert (got.length_correlation.value or 0.0) > 0.9
    assert (got.position_slope.value, got.flip_rate.value, got.position_means) == (None, None, {})


def test_groups_that_nobody_judged_are_an_error() -> None:
    with pytest.raises(JudgeError, match="has a judge's score"):
        bias_report([TrajectoryGroup([Trajectory()])])
