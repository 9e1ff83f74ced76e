"""Simulated judges, and how well ways of asking them find the truth."""

import math
from statistics import fmean

import pytest

from benchmarks.engine_quality import (
    Bias,
    Faults,
    Latent,
    SimulatedGroup,
    SimulatedJudge,
    engine_scorer,
    measure_quality,
    prompt_scorer,
    simulated_groups,
)
from gavel.judge.config import JudgeConfig
from gavel.judge.judge import Judge
from gavel.scenarios.group import TrajectoryGroup
from tests.endpoint import limit_attempts
from tests.judge.groups import saying

QUALITIES = (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0)
TABLE = {f"sim-{n}": Latent(quality) for n, quality in enumerate(QUALITIES)}


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


PERFECT = Bias()


def made(count: int = 5, members: int = 8) -> tuple[list[SimulatedGroup], dict[str, Latent]]:
    table: dict[str, Latent] = {}
    return simulated_groups(count, members, 0, table), table


async def test_every_way_of_asking_a_perfect_judge_finds_the_truth():
    groups, table = made()
    judge = SimulatedJudge(table, PERFECT)
    for way in (engine_scorer(Judge(judge, orders=2)), prompt_scorer(judge, 2, in_order=True), prompt_scorer(judge, 2)):
        quality = await measure_quality(way, groups)
        assert quality.tau == pytest.approx(1)
        assert (quality.unscored_members, quality.groups, quality.calls_per_group) == (0, 5, 2)


async def test_a_judge_that_never_answers_leaves_members_unscored_and_no_figures():
    groups, table = made(count=2)
    judge = SimulatedJudge(table, PERFECT, Faults(refusal=0.5, rate_limit=0.5))
    ways = (
        engine_scorer(Judge(judge, orders=1, config=JudgeConfig(content_retries=0))),
        prompt_scorer(judge, 1, in_order=True),
        prompt_scorer(judge, 1, by_position=True, in_order=True),
    )
    for way in (*ways, prompt_scorer(judge, 2)):
        quality = await measure_quality(way, groups)
        assert (quality.tau, quality.advantage_correlation, quality.position_slope) == (None, None, None)
        assert quality.unscored_members == 16
