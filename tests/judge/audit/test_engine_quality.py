import pytest

from gavel.judge.audit.engine_quality import (
    SimulatedGroup,
    engine_scorer,
    measure_quality,
    prompt_scorer,
    simulated_groups,
)
from gavel.judge.config import JudgeConfig
from gavel.judge.judge import Judge
from gavel.judge.offline.simulated import Bias, Faults, Latent, SimulatedJudge

pytestmark = pytest.mark.slow

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


async def test_sorted_replies_mislead_only_who_reads_by_position():
    groups, table = made(count=20)
    judge = SimulatedJudge(table, PERFECT, Faults(sorted_reply=1.0))
    by_label, by_position = (
        await measure_quality(prompt_scorer(judge, 1, in_order=True), groups),
        await measure_quality(prompt_scorer(judge, 1, by_position=True, in_order=True), groups),
    )
    assert by_label.tau == pytest.approx(1)
    assert abs(by_position.tau) < 0.3
    assert by_position.arrival_slope < -0.1
