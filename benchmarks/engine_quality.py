"""Measures how well a way of asking a judge recovers known qualities, on simulated groups.

    table: dict[str, Latent] = {}
    groups = simulated_groups(300, members=8, seed=0, table=table)
    report = await measure_quality(engine_scorer(Judge(SimulatedJudge(table), orders=2)), groups)

Shorter members arrive first, and neither length nor arrival is related to quality. So a correlation of rewards with
arrival, position or length is bias. Members that a judge could not score stay unscored and are counted.
"""

import json
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from random import Random
from statistics import fmean, stdev

import openai

from gavel.judge.audit.agreement import mean_kendall_tau
from gavel.judge.judge import Judge
from gavel.judge.offline.simulated import Latent, SimulatedJudge
from gavel.judge.panel.modes import orders
from gavel.judge.prompt.canonical_group import CanonicalGroup, canonicalize
from gavel.judge.prompt.fenced_transcript import draw_markers, render_transcripts
from gavel.judge.reply.verdict import VerdictError, read_verdict
from gavel.judge.stats import centred_positions
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class SimulatedGroup:
    """A group in order of arrival, with the true qualities and the lengths of its members."""

    group: TrajectoryGroup
    qualities: tuple[float, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupScores:
    """The result of a scorer on one group, by member in order of arrival."""

    rewards: Sequence[float | None]
    positions: Sequence[float]
    """Position of each member in the first answered prompt that showed it, from -1 (first) to 1 (last)."""
    calls: int


Scorer = Callable[[SimulatedGroup], Awaitable[GroupScores]]
"""A way of asking a judge for the scores of a group."""


@dataclass(frozen=True, slots=True)
class QualityReport:
    """Agreement of rewards with qualities, and their bias by position and length; None = undefined.

    Advantages are a group's rewards (or qualities) less their mean, divided by their standard deviation.
    """

    tau: float | None
    """Kendall's tau-b to the qualities, mean over the groups with two scored members; 0 where all rewards are equal."""
    error: float | None
    """The standard error of `tau`."""
    advantage_correlation: float | None
    """Correlation of the advantages of rewards with the advantages of qualities."""
    advantage_with_length: float | None
    """Correlation of advantages with lengths that are centered and scaled in the same way."""
    arrival_slope: float | None
    """Reward gained from the middle of the order of arrival to its end."""
    position_slope: float | None
    """Reward gained from the middle of the first prompt to its end."""
    unscored_members: int
    groups: int
    calls_per_group: float

    def figures(self) -> dict[str, float | int | None]:
        """By name, rounded to 4 digits; the standard error as "±"."""
        figures = {"±" if name == "error" else name: figure for name, figure in asdict(self).items()}
        return {name: round(figure, 4) if isinstance(figure, float) else figure for name, figure in figures.items()}


def simulated_groups(count: int, members: int, seed: int, table: dict[str, Latent]) -> list[SimulatedGroup]:
    """Random groups; adds their members to `table`, from which simulated judges read the qualities."""
    random = Random(f"{seed}/{members}")
    made: list[SimulatedGroup] = []
    for number in range(count):
        ids = [f"sim-{members}x{number}x{random.randrange(16**6):06x}" for _ in range(members)]
        latents = [Latent(random.gauss()) for _ in range(members)]
        lengths = sorted(random.randint(20, 120) for _ in ids)
        table.update(zip(ids, latents, strict=True))
        texts = [f"{name} {'.' * (length - len(name))}" for name, length in zip(ids, lengths, strict=True)]
        group = TrajectoryGroup(Trajectory(messages_and_choices=[{"role": "assistant", "content": t}]) for t in texts)
        made.append(SimulatedGroup(group, tuple(latent.quality for latent in latents), tuple(map(len, texts))))
    return made


def engine_scorer(judge: Judge) -> Scorer:
    """The judge engine as users call it."""

    async def score(simulated: SimulatedGroup) -> GroupScores:
        judged = await judge.score(simulated.group)
        votes = [trajectory.judgement.votes if trajectory.judgement else [] for trajectory in judged]
        members_shown = Counter(vote.order for of_member in votes for vote in of_member)
        positions: list[float] = []
        for of_member in votes:
            first = of_member[0] if of_member else None
            shown = members_shown[first.order] + len(judge.anchors) if first else 0
            positions.append(centred_positions(shown)[first.position] if first else 0.0)
        calls = judged.judgement.calls if judged.judgement else 0
        return GroupScores([t.reward for t in judged], positions, calls)

    return score


def prompt_scorer(judge: SimulatedJudge, calls: int, *, in_order: bool = False, by_position: bool = False) -> Scorer:
    """`calls` calls without retries, each with the whole group, in balanced orders, or `in_order` of arrival.

    `by_position` gives the n-th member shown the n-th entry of the reply, whatever its label.
    """

    async def score(simulated: SimulatedGroup) -> GroupScores:
        group = canonicalize(dict(enumerate(simulated.group.trajectories)))
        number = {index: at for at, member in enumerate(group.members) for index in member.indices}
        count = len(number)
        rows = [list(range(count))] * calls if in_order else orders(count, calls, group.digest)
        answered: list[list[float]] = []
        for call, row in enumerate(rows):
            shown = await _ask(judge, group, [number[index] for index in row], call, by_position)
            if shown is not None:
                answered.append([shown[row.index(index)] for index in range(count)])
        rewards = [fmean(scores) for scores in zip(*answered, strict=True)] if answered else [None] * count
        places = centred_positions(count)
        return GroupScores(rewards, [places[rows[0].index(index)] for index in range(count)], calls)

    return score


async def _ask(
    judge: SimulatedJudge, group: CanonicalGroup, order: Sequence[int], call: int, by_position: bool
) -> list[float] | None:
    """The scores in the order shown, or None if the call fails; there are no retries."""
    markers = draw_markers(group, Random(f"{group.digest}/{call}"))
    try:
        reply = await judge([{"role": "user", "content": render_transcripts(group, order, markers)}], {})
        if by_position:
            scores = [entry["score"] for entry in json.loads(reply)["scores"]]
            return scores if len(scores) == len(order) else None
        return [scored.score for scored in read_verdict(reply, [markers.labels[n] for n in order]).scores.values()]
    except (openai.OpenAIError, VerdictError, ValueError):
        return None


async def measure_quality(scorer: Scorer, groups: Iterable[SimulatedGroup]) -> QualityReport:
    """The quality of a scorer over `groups`. Groups with fewer than two scores count only in `groups` and calls."""
    taus: list[float] = []
    # Advantage, the true one and that of the length, reward less its group's mean, place in arrival and in the prompt.
    members: list[tuple[float, ...]] = []
    count = calls = unscored = 0
    for group in groups:
        result = await scorer(group)
        count, calls = count + 1, calls + result.calls
        scored = result.rewards
        kept = [n for n, reward in enumerate(scored) if reward is not None]
        unscored += len(scored) - len(kept)
        got = [reward for reward in scored if reward is not None]
        true = [group.qualities[n] for n in kept]
        if (tau := mean_kendall_tau([list(zip(got, true, strict=True))])) is None:
            continue
        taus.append(tau)
        lengths = [group.lengths[n] for n in kept]
        places = [(centred_positions(len(scored))[n], result.positions[n]) for n in kept]
        centred = [reward - fmean(got) for reward in got]
        members += zip(*map(_advantages, (got, true, lengths)), centred, *zip(*places, strict=True), strict=True)
    advantages, true_advantages, lengths, rewards, arrivals, positions = (
        zip(*members, strict=True) if members else [()] * 6
    )
    return QualityReport(
        tau=fmean(taus) if taus else None,
        error=stdev(taus) / math.sqrt(len(taus)) if len(taus) > 1 else None,
        advantage_correlation=_correlation(advantages, true_advantages),
        advantage_with_length=_correlation(advantages, lengths),
        arrival_slope=_slope(rewards, arrivals),
        position_slope=_slope(rewards, positions),
        unscored_members=unscored,
        groups=count,
        calls_per_group=calls / count if count else 0.0,
    )


def _advantages(values: Sequence[float]) -> list[float]:
    mean = fmean(values)
    scale = math.sqrt(fmean((value - mean) ** 2 for value in values))
    return [(value - mean) / scale if scale else 0.0 for value in values]


def _slope(ys: Sequence[float], xs: Sequence[float]) -> float | None:
    squares = math.fsum(x * x for x in xs)
    return math.fsum(x * y for x, y in zip(xs, ys, strict=True)) / squares if squares else None


def _correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Pearson's r of values with mean 0."""
    scale = math.sqrt(math.fsum(x * x for x in xs) * math.fsum(y * y for y in ys))
    return math.fsum(x * y for x, y in zip(xs, ys, strict=True)) / scale if scale else None
