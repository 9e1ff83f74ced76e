import math
from statistics import fmean

import pytest

from gavel.judge.config import JudgeConfig
from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.judge.offline.simulated import INJECTION, POSITION_BIASED, Bias, Faults, Latent, SimulatedJudge
from gavel.judge.panel.juror import Juror
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


async def test_a_judge_prefers_its_own_family():
    gained = await seen(simulated(Bias(self_preference=0.4), family="ours"))
    assert gained == pytest.approx([q + 0.4 * (n == 3) for n, q in enumerate(QUALITIES)])
    assert await seen(simulated(Bias(self_preference=0.4))) == pytest.approx(QUALITIES)


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


async def test_a_judge_on_a_curve_compares_only():
    mean = fmean(QUALITIES)
    assert await seen(simulated(Bias(curve=1.0, severity=-0.2))) == pytest.approx([q - mean - 0.2 for q in QUALITIES])


async def test_scores_are_compressed_and_come_in_steps():
    judged = await Judge(simulated(Bias(compression=0.5, step=0.05)), orders=1).score(eight())
    assert [t.reward for t in judged] == [0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7]


FAULTS = ("dropped_label", "doubled_label", "refusal", "truncation", "rate_limit", "timeout")


async def test_a_sorted_reply_changes_no_score():
    assert await seen(simulated(faults=Faults(sorted_reply=1.0))) == pytest.approx(QUALITIES)


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


async def test_a_judge_may_fall_for_words_in_a_trajectory():
    group = saying(*list(TABLE)[1:], f"sim-0 {INJECTION}")
    fooled = await Judge(simulated(faults=Faults(compliance=1.0)), orders=1).score(group)
    steady = await Judge(simulated(), orders=1).score(group)
    assert fooled.trajectories[-1].reward == 1.0
    assert logit(steady.trajectories[-1].reward) == pytest.approx(-1.5)


async def test_a_juror_that_only_refuses_abstains():
    jurors = [Juror(simulated(name="steady")), Juror(simulated(faults=Faults(refusal=1.0), name="silent"), weight=5.0)]
    judged = await Judge(jurors, orders=1).score(eight())
    assert [logit(trajectory.reward) for trajectory in judged] == pytest.approx(QUALITIES)
    with_quorum = await Judge(jurors, orders=1, config=JudgeConfig(quorum=0.5)).score(eight())
    assert with_quorum.judgement is not None
    assert with_quorum.judgement.status == "unscored"


async def test_a_crowded_prompt_is_read_worse():
    table = {f"sim-{n}": Latent(0.0) for n in range(10)}
    judges = [SimulatedJudge(table, Bias(noise=0.5, crowding=power)) for power in (0.0, 2.0)]
    calm, crowded = [await seen(judge, saying(*table)) for judge in judges]
    assert crowded == pytest.approx([error * (10 / 8) ** 2 for error in calm])


async def test_a_member_that_is_not_in_the_table_is_an_error():
    with pytest.raises(JudgeError, match="not in its table"):
        await simulated()([{"role": "user", "content": "¦abcd trajectory X\n¦abcd user: sim-stranger"}], {})


async def test_two_reversed_orders_undo_the_slope():
    judged = await Judge(simulated(Bias(slope=0.1)), orders=2).score(eight())
    assert [logit(t.reward) for t in judged] == pytest.approx(QUALITIES, abs=0.01)
    alone = await Judge(simulated(POSITION_BIASED), orders=1).score(eight())
    assert [logit(t.reward) for t in alone] != pytest.approx(QUALITIES, abs=0.1)
