import math
import random

import pytest

from gavel.judge.audit.bias import bias_report
from gavel.judge.audit.health import judge_health
from gavel.judge.judge import Judge
from gavel.judge.offline.simulated import Bias, Latent, SimulatedJudge
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from tests.judge.groups import choice


async def judged(bias: Bias, groups: int = 20, *, longer_is_better: bool = False) -> list[TrajectoryGroup]:
    dice = random.Random(0)
    table: dict[str, Latent] = {}
    made: list[TrajectoryGroup] = []
    for number in range(groups):
        members: list[Trajectory] = []
        for at in range(4):
            quality = dice.gauss(0, 1)
            name = f"sim-{number}x{at}"
            table[name] = Latent(quality)
            words = round(200 * math.exp(quality)) if longer_is_better else dice.randrange(400)
            member = Trajectory(messages_and_choices=[choice(f"{name} {'.' * words}")])
            member.metrics["success"] = quality > 0
            members.append(member)
        made.append(TrajectoryGroup(members))
    judge = Judge([SimulatedJudge(table, bias, name="simulated")], orders=2)
    return [await judge.score(group) for group in made]


async def test_its_figures_are_those_of_the_report_without_intervals():
    groups = await judged(Bias(slope=0.5, noise=0.5))
    found, report = judge_health(groups), bias_report(groups)
    for name in ("position_slope", "length_correlation", "flip_rate", "tie_rate"):
        assert found[f"health/{name}"] == pytest.approx(getattr(report, name).value)


async def test_a_biased_judge_leans_and_a_fair_one_does_not():
    leaning = judge_health(await judged(Bias(slope=1.0, noise=0.1)))
    fair = judge_health(await judged(Bias(slope=0.0, noise=0.1)))
    assert abs(leaning["health/position_slope"]) > 5 * abs(fair["health/position_slope"])
    assert fair["health/success_tau"] > 0.5
    assert fair["health/order_agreement"] > leaning["health/order_agreement"]


async def test_a_judge_that_follows_length_shows_it():
    assert judge_health(await judged(Bias(noise=0.1), longer_is_better=True))["health/length_correlation"] > 0.8


async def test_unscored_flagged_and_the_gap_to_success_are_shares_of_the_members():
    groups = await judged(Bias(), groups=1)
    first, second, third, fourth = groups[0].trajectories
    for member in (first, second, third, fourth):
        assert member.judgement is not None
        member.judgement.score = 1.0
        member.metrics["success"] = False
    first.judgement.score = None  # type: ignore[union-attr]
    second.judgement.flags = ["empty"]  # type: ignore[union-attr]
    found = judge_health(groups)
    assert (found["health/unscored"], found["health/flagged"], found["health/success_gap"]) == (0.25, 0.25, 1.0)


async def test_groups_of_identical_members_are_not_unscored():
    (group,) = await judged(Bias(), groups=1)
    assert group.judgement is not None
    group.judgement.status = "degenerate"
    for member in group:
        member.judgement.score = None  # type: ignore[union-attr]
    assert "health/unscored" not in judge_health([group])
    assert judge_health([group, *await judged(Bias(), groups=1)])["health/unscored"] == 0.0


def test_groups_without_judgement_have_no_figures():
    assert judge_health([]) == judge_health([TrajectoryGroup([Trajectory(reward=0.5)])]) == {}
