import pytest

from gavel.judge.audit.engine_quality import simulated_groups
from gavel.judge.audit.noise_prior import fit_noise_prior, noise_of
from gavel.judge.config import JudgeConfig
from gavel.judge.judge import Judge
from gavel.judge.offline.simulated import Bias, Latent, SimulatedJudge
from gavel.judge.panel.standard_errors import shrunk
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory


async def judged(noise: float, mode: str = "groupwise") -> list[TrajectoryGroup]:
    table: dict[str, Latent] = {}
    groups = simulated_groups(12, 6, 0, table)
    judge = Judge(SimulatedJudge(table, Bias(noise=noise)), mode=mode)  # pyright: ignore[reportArgumentType]
    return [await judge.score(simulated.group) for simulated in groups]


async def test_the_noise_read_back_from_votes_is_that_of_the_standard_errors():
    for group in await judged(0.5):
        errors = [t.judgement.standard_error for t in group if t.judgement]
        variance, df = shrunk(noise_of(group), None)
        assert errors == pytest.approx([(variance / 2) ** 0.5] * 6, rel=1e-6)
        assert {t.judgement.degrees_of_freedom for t in group if t.judgement} == {df}


async def test_a_prior_tells_a_noisy_judge_from_a_steady_one_and_is_used():
    noisy, steady = fit_noise_prior(await judged(1.0)), fit_noise_prior(await judged(0.1))
    assert noisy is not None
    assert steady is not None
    assert noisy.variance > 20 * steady.variance
    table: dict[str, Latent] = {}
    (simulated,) = simulated_groups(1, 6, 1, table)
    judge = Judge(SimulatedJudge(table, Bias(noise=0.1)), config=JudgeConfig(noise_prior=noisy))
    own, given = await judge.score(simulated.group), await judge.score(simulated.group, noise_prior=steady)
    for wide, narrow in zip(own, given, strict=True):
        assert wide.judgement
        assert narrow.judgement
        assert (wide.judgement.standard_error or 0) > 3 * (narrow.judgement.standard_error or 0) > 0


async def test_votes_on_other_scales_and_groups_without_votes_give_no_prior():
    assert fit_noise_prior(await judged(0.5, "pairwise")) is None
    assert fit_noise_prior([TrajectoryGroup([Trajectory()])]) is None
