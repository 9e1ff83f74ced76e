import math
from statistics import fmean

import pytest

from gavel.judge.judge import Judge
from gavel.judge.offline.simulated import POSITION_BIASED, Bias, Faults, Latent, SimulatedJudge
from gavel.scenarios.group import TrajectoryGroup
from tests.endpoint import limit_attempts
from tests.judge.groups import saying

QUALITIES = (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0)
TABLE = {f"sim-{n}": Latent(quality, "ours" if n == 3 else "theirs") for n, quality in enumerate(QUALITIES)}


def eight() -> TrajectoryGroup:
    return saying(*TABLE)


def simulated(bias: Bias | None = None, faults: Faults | None = None, **more) -> SimulatedJudge:
    return SimulatedJudge(TABLE, bias or Bias(), faults, **more)


def logit(score: float | None) -> float:
    assert score is not None
    return math.log(score / (1 - score))


async def seen(judge: SimulatedJudge, group: TrajectoryGroup | None = None, orders: int = 1) -> list[float]:
    """Rewards on the scale of quality."""
    return [logit(trajectory.reward) for trajectory in await Judge(judge, orders=orders).score(group or eight())]


async def test_a_judge_without_faults_sees_every_quality_through_the_prompt():
    assert await seen(simulated()) == pytest.approx(QUALITIES)


async def test_the_place_shown_adds_a_slope_and_favours_the_ends():
    judge = Judge(simulated(Bias(slope=0.6, u=0.3)), orders=1)
    judged = await judge.score(eight())
    flat = fmean((2 * slot / 7 - 1) ** 2 for slot in range(8))
    for trajectory, quality in zip(judged, QUALITIES, strict=True):
        assert trajectory.judgement is not None
        [vote] = trajectory.judgement.votes
        place = 2 * vote.position / 7 - 1
        assert logit(vote.score) == pytest.approx(quality - 0.6 * place + 0.3 * (place**2 - flat))


async def test_a_member_gets_a_share_of_the_score_shown_before_it():
    judged = await Judge(simulated(Bias(halo=0.3)), orders=1).score(eight())
    votes = sorted(
        (t.judgement.votes[0].position, t.judgement.votes[0].score, n) for n, t in enumerate(judged) if t.judgement
    )
    before = 0.0
    for _, score, number in votes:
        assert logit(score) == pytest.approx(QUALITIES[number] + 0.3 * before)
        before = score


async def test_text_e_times_as_long_gains_the_length_bias():
    table = {"sim-a": Latent(0.0), "sim-b": Latent(0.0)}
    short, long = saying("sim-a", "sim-b" + "." * 1000).trajectories
    judge = SimulatedJudge(table, Bias(length=0.5))
    low, high = await seen(judge, TrajectoryGroup([short, long]))
    shared = len("You run the returns desk.\nI want a refund for order 7890.\nsim-a")
    assert high - low == pytest.approx(0.5 * math.log((shared + 1000) / shared))


async def test_taste_is_a_judge_s_own_and_always_the_same():
    bias = Bias(idiosyncrasy=0.7)
    one = await seen(simulated(bias, name="one"))
    assert await seen(simulated(bias, name="one"), orders=4) == pytest.approx(one)
    assert await seen(simulated(bias, name="two")) != pytest.approx(one)


async def test_noise_differs_from_call_to_call_and_not_from_run_to_run():
    judge = Judge(simulated(Bias(noise=0.5)), orders=2)
    first, again = await judge.score(eight()), await judge.score(eight())
    assert [t.judgement for t in first] == [t.judgement for t in again]
    assert all(t.judgement and t.judgement.votes[0].score != t.judgement.votes[1].score for t in first)


FAULTS = ("dropped_label", "doubled_label", "refusal", "truncation", "rate_limit", "timeout")


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_that_stays_leaves_no_number(fault, monkeypatch):
    limit_attempts(monkeypatch, 6)
    judged = await Judge(simulated(faults=Faults(**{fault: 1.0})), orders=1).score(eight())
    assert judged.judgement is not None
    assert judged.judgement.status == "unscored"
    assert all(trajectory.reward is None for trajectory in judged)


@pytest.mark.parametrize("fault", [*FAULTS, "other_scale"])
async def test_a_fault_that_passes_leaves_the_right_number(fault, monkeypatch):
    limit_attempts(monkeypatch, 100)
    assert await seen(simulated(faults=Faults(**{fault: 0.5})), orders=8) == pytest.approx(QUALITIES)


async def test_two_reversed_orders_undo_the_slope():
    judged = await Judge(simulated(Bias(slope=0.1)), orders=2).score(eight())
    assert [logit(t.reward) for t in judged] == pytest.approx(QUALITIES, abs=0.01)
    alone = await Judge(simulated(POSITION_BIASED), orders=1).score(eight())
    assert [logit(t.reward) for t in alone] != pytest.approx(QUALITIES, abs=0.1)
