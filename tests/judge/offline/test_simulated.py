"""A simulated judge, perfect or faulty, through the engine."""

import math

import pytest

from benchmarks.engine_quality import (
    Bias,
    Faults,
    Latent,
    SimulatedJudge,
    engine_scorer,
    measure_quality,
    prompt_scorer,
    simulated_groups,
)
from gavel.judge.judge import Judge
from gavel.scenarios.group import TrajectoryGroup
from tests.endpoint import limit_attempts
from tests.judge.groups import saying

QUALITIES = (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0)
TABLE = {f"sim-{n}": Latent(quality) for n, quality in enumerate(QUALITIES)}
FAULTS = ("dropped_label", "doubled_label", "refusal", "truncation", "rate_limit", "timeout")


async def judged_by(faults: Faults, orders: int = 1) -> TrajectoryGroup:
    return await Judge(SimulatedJudge(TABLE, Bias(), faults), orders=orders).score(saying(*TABLE))


def seen(group: TrajectoryGroup) -> list[float]:
    """Rewards on the scale of quality."""
    return [math.log(each.reward / (1 - each.reward)) for each in group if each.reward]


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_that_stays_leaves_no_number(fault, monkeypatch):
    limit_attempts(monkeypatch, 6)
    judged = await judged_by(Faults(**{fault: 1.0}))
    assert judged.judgement is not None
    assert judged.judgement.status == "unscored"
    assert all(trajectory.reward is None for trajectory in judged)


@pytest.mark.parametrize("fault", [*FAULTS, "other_scale"])
async def test_a_fault_that_passes_leaves_the_right_number(fault, monkeypatch):
    limit_attempts(monkeypatch, 100)
    assert seen(await judged_by(Faults(**{fault: 0.5}), orders=8)) == pytest.approx(QUALITIES)


async def test_every_way_of_asking_a_perfect_judge_finds_the_truth():
    table: dict[str, Latent] = {}
    groups = simulated_groups(5, 8, 0, table)
    judge = SimulatedJudge(table, Bias())
    for way in (engine_scorer(Judge(judge, orders=2)), prompt_scorer(judge, 2, in_order=True), prompt_scorer(judge, 2)):
        quality = await measure_quality(way, groups)
        assert quality.tau == pytest.approx(1)
        assert (quality.unscored_members, quality.groups, quality.calls_per_group) == (0, 5, 2)
