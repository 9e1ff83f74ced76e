"""The bias report, against simulated judges whose biases are known."""

import json
import math
from random import Random

import pytest

from benchmarks.engine_quality import Bias, Latent, SimulatedJudge, simulated_groups
from gavel.judge.audit.bias import bias_report
from gavel.judge.audit.votes import distinct_members, fit_noise_prior
from gavel.judge.config import JudgeConfig
from gavel.judge.judge import Judge
from gavel.judge.panel.standard_errors import NoisePrior, NoisyVote, residual_noise, standard_errors
from gavel.judge.prompt.fenced_transcript import read_transcripts
from gavel.llm.types import Message
from gavel.reports.judge_trust import read_report
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import Judgement, Vote
from gavel.scenarios.trajectory import Trajectory

pytestmark = pytest.mark.slow


async def judged_by(bias: Bias, *, groups: int = 30) -> list[TrajectoryGroup]:
    table: dict[str, Latent] = {}
    made = simulated_groups(groups, 6, 0, table)
    judge = Judge(SimulatedJudge(table, bias))
    return [await judge.score(simulated.group) for simulated in made]


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


def prior_of(groups: list[TrajectoryGroup]) -> NoisePrior:
    found = fit_noise_prior(groups)
    assert found is not None
    return found


async def test_a_judge_that_favours_the_first_has_a_falling_slope_and_a_fair_one_has_none() -> None:
    biased = bias_report(await judged_by(Bias(slope=0.6, noise=0.3)))
    fair = bias_report(await judged_by(Bias(noise=0.3)))
    assert biased.position_slope
    assert fair.position_slope
    assert biased.position_slope.high < -0.05
    assert fair.position_slope.low < 0 < fair.position_slope.high


def test_flips_are_pairs_that_two_calls_of_one_judge_rank_the_other_way_round() -> None:
    group = votes((0.1, 0.5, 0.9), (0.5, 0.1, 0.1))  # flips 0-1 and 0-2; the second call ties 1 and 2
    assert bias_report([group]).flip_rate.value == pytest.approx(1.0)
    agreeing = votes((0.1, 0.5, 0.9), (0.2, 0.5, 0.6))
    assert bias_report([group, agreeing]).flip_rate.value == pytest.approx(2 / 5)


def test_ties_are_different_members_with_the_same_score() -> None:
    assert bias_report([votes((0.1, 0.5, 0.5))]).tie_rate.value == pytest.approx(1 / 3)
    assert bias_report([votes((0.1 + 0.2, 0.3))]).tie_rate.value == 1.0


def test_identical_members_are_one_member() -> None:
    group = votes((0.1, 0.5), (0.2, 0.4))
    double = TrajectoryGroup([*group.trajectories, group.trajectories[0].model_copy(deep=True)])
    assert len(distinct_members(double)) == 2
    assert bias_report([double]) == bias_report([group])


async def test_a_prior_tells_a_noisy_judge_from_a_steady_one_and_is_used():
    noisy = prior_of(await judged_by(Bias(noise=1.0), groups=12))
    steady = prior_of(await judged_by(Bias(noise=0.1), groups=12))
    assert noisy.variance > 20 * steady.variance
    table: dict[str, Latent] = {}
    (simulated,) = simulated_groups(1, 6, 1, table)
    judge = Judge(SimulatedJudge(table, Bias(noise=0.1)), config=JudgeConfig(noise_prior=noisy))
    own, given = await judge.score(simulated.group), await judge.score(simulated.group, noise_prior=steady)
    errors = [[t.judgement.standard_error or 0 for t in group if t.judgement] for group in (own, given)]
    assert all(wide > 3 * narrow > 0 for wide, narrow in zip(*errors, strict=True))
    assert len(errors[0]) == 6


def padded(count: int, seed: int, better: bool = False) -> list[TrajectoryGroup]:
    """Groups of four attempts of different length, the longest the best by its label where `better`."""
    random = Random(seed)

    def attempt(number: int, length: int) -> Trajectory:
        said: Message = {"role": "assistant", "content": f"{number} {'word ' * length}"}
        quality = float(length) if better else random.random()
        return Trajectory(messages_and_choices=[said], metrics={"quality": quality})

    return [TrajectoryGroup(attempt(n, length) for length in random.sample(range(20, 400), 4)) for n in range(count)]


def fond_of_length(weight: float):
    """Scores by length and, for the rest, by chance."""

    async def judge(messages, schema):
        shown = read_transcripts(messages[1]["content"])
        random = Random(messages[1]["content"])
        scores = {}
        for label, attempt in shown.items():
            length = math.log(len(attempt[0].events[-1].text))
            scores[label] = min(1.0, max(0.0, 0.5 + weight * (length - 6.5) + random.gauss(0, 0.15)))
        return json.dumps({"scores": [{"trajectory_id": k, "explanation": "", "score": v} for k, v in scores.items()]})

    return judge


async def length_warnings(judge: Judge) -> list[str]:
    judgements = [(await judge.score(group)).judgement for group in padded(40, 0)]
    return [warning for whole in judgements if whole for warning in whole.warnings if "length" in warning]


async def test_a_judge_whose_scores_go_with_length_is_named_unless_labels_explain_it():
    assert await length_warnings(Judge(fond_of_length(0.1)))
    assert not await length_warnings(Judge(fond_of_length(0.0)))
    explained = JudgeConfig(noise_prior=NoisePrior(length=0.9))
    assert not await length_warnings(Judge(fond_of_length(0.1), config=explained))


async def test_the_report_tells_length_apart_from_what_the_reference_explains():
    for better, said in ((False, True), (True, False)):
        judge = Judge(fond_of_length(0.1))
        judged = [await judge.score(group) for group in padded(40, 1, better)]
        assert ("long ones" in read_report(judged, "quality", "x").verdict) is said


async def test_a_prior_tells_what_both_ends_gain_which_two_mirrored_orders_do_not_show() -> None:
    drawn = prior_of(await judged_by(Bias(u=0.8, noise=0.3)))
    fair = prior_of(await judged_by(Bias(noise=0.3)))
    assert (drawn.ends or 0) > 0.08 > (1 if fair.ends is None else fair.ends)
    votes = [
        NoisyVote(member, "a", 0, sign * place, 0.5 + 0.05 * sign * (member % 2), square=place**2 - 7 / 15, call=call)
        for call, sign in enumerate((1, -1))
        for member, place in enumerate((-1.0, -0.6, -0.2, 0.2, 0.6, 1.0))
    ]
    errors = standard_errors(votes, residual_noise(votes), drawn)
    assert errors[0][0] > errors[1][0]
    assert prior_of(await judged_by(Bias(u=0.8, noise=0.3), groups=3)).ends is None
