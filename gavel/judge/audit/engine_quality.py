"""How well a way of asking a judge finds the truth: simulated groups, ways of asking, and what is measured of them.

Agents that finish first are shorter and arrive first, and none of that says anything about their quality: whatever
of arrival, place or length is found in the rewards has leaked in. What a judge could not say stays unscored, and is
counted.
"""

import json
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean, stdev

import openai

from gavel.judge.audit.agreement import mean_kendall_tau
from gavel.judge.judge import Judge
from gavel.judge.offline.simulated import Latent, SimulatedJudge
from gavel.judge.panel.schedule import centred_places, orders
from gavel.judge.prompt.canonical import CanonicalGroup, canonicalize
from gavel.judge.prompt.transcript import draw_markers, render_transcripts
from gavel.judge.reply.verdict import VerdictError, read_verdict
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

OWN_FAMILY = "own"
"""Of every second member, for judges that prefer their own."""


@dataclass(frozen=True, slots=True)
class SimulatedGroup:
    """A group in order of arrival, with what is true of its members."""

    group: TrajectoryGroup
    qualities: tuple[float, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupScores:
    """What a way of asking made of a case, by member in order of arrival."""

    rewards: Sequence[float | None]
    places: Sequence[float]
    """Where each member stood in the first prompt that showed it and was answered, from -1 (first) to 1."""
    calls: int


Scorer = Callable[[SimulatedGroup], Awaitable[GroupScores]]
"""A way of asking."""


@dataclass(frozen=True, slots=True)
class QualityReport:
    """How rewards agree with qualities, and what of place and length leaks into them; None = no group tells.

    Advantages are a group's rewards (or qualities) less their mean, by their standard deviation.
    """

    tau: float | None
    """Kendall's tau-b to the qualities, mean over the groups whose rewards differ."""
    error: float | None
    """The standard error of `tau`."""
    advantage_correlation: float | None
    """Of advantages by reward with advantages by quality."""
    advantage_with_length: float | None
    """Correlation of advantages with lengths that are centred and scaled in the same way."""
    arrival_slope: float | None
    """Reward gained from the middle of the order of arrival to its end."""
    position_slope: float | None
    """Reward gained from the middle of the first prompt to its end."""
    unscored_members: int
    groups: int
    calls_per_group: float

    def figures(self) -> dict[str, float | int | None]:
        """By name, rounded to 4 digits; the standard error as "±"."""
        figures = {"tau": self.tau, "±": self.error}
        names = (
            "advantage_correlation",
            "advantage_with_length",
            "arrival_slope",
            "position_slope",
            "unscored_members",
        )
        figures |= {name: getattr(self, name) for name in (*names, "groups", "calls_per_group")}
        return {name: round(figure, 4) if isinstance(figure, float) else figure for name, figure in figures.items()}


def simulated_groups(count: int, members: int, seed: int, table: dict[str, Latent]) -> list[SimulatedGroup]:
    """Random groups, whose members are entered in the judges' `table`."""
    random = Random(f"{seed}/{members}")
    made: list[SimulatedGroup] = []
    for number in range(count):
        ids = [f"sim-{members}x{number}x{random.randrange(16**6):06x}" for _ in range(members)]
        latents = [Latent(random.gauss(), OWN_FAMILY if n % 2 else "") for n in range(members)]
        lengths = sorted(random.randint(20, 120) for _ in ids)
        table.update(zip(ids, latents, strict=True))
        texts = [f"{name} {'.' * (length - len(name))}" for name, length in zip(ids, lengths, strict=True)]
        group = TrajectoryGroup(Trajectory(messages_and_choices=[{"role": "assistant", "content": t}]) for t in texts)
        made.append(SimulatedGroup(group, tuple(latent.quality for latent in latents), tuple(map(len, texts))))
    return made


def engine_scorer(judge: Judge) -> Scorer:
    """As users ask."""

    async def score(case: SimulatedGroup) -> GroupScores:
        judged = await judge.score(case.group)
        votes = [trajectory.judgement.votes if trajectory.judgement else [] for trajectory in judged]
        shown = Counter(vote.order for of_one in votes for vote in of_one)
        firsts = [of_one[0] if of_one else None for of_one in votes]
        places = [centred_places(shown[vote.order] + len(judge.anchors))[vote.slot] if vote else 0.0 for vote in firsts]
        calls = judged.judgement.calls if judged.judgement else 0
        return GroupScores([t.reward for t in judged], places, calls)

    return score


def arrival_order_scorer(judge: SimulatedJudge, calls: int, *, by_position: bool = False) -> Scorer:
    """Every call in order of arrival; `by_position`: the n-th entry of the reply is taken for the n-th member."""

    async def score(case: SimulatedGroup) -> GroupScores:
        group, arrival = _by_arrival(case)
        told = [await _ask(judge, group, arrival, call, by_position) for call in range(calls)]
        return GroupScores(_means(told, len(arrival)), centred_places(len(arrival)), calls)

    return score


def single_prompt_scorer(judge: SimulatedJudge, count: int) -> Scorer:
    """The whole group in each of `count` balanced orders, however large it is."""

    async def score(case: SimulatedGroup) -> GroupScores:
        group, arrival = _by_arrival(case)
        rows = orders(len(arrival), count, group.digest)
        told: list[list[float] | None] = []
        for call, row in enumerate(rows):
            shown = await _ask(judge, group, [arrival[n] for n in row], call)
            told.append(shown and [shown[row.index(n)] for n in range(len(row))])
        places = centred_places(len(arrival))
        return GroupScores(_means(told, len(arrival)), [places[rows[0].index(n)] for n in range(len(arrival))], count)

    return score


def _by_arrival(case: SimulatedGroup) -> tuple[CanonicalGroup, list[int]]:
    """The canonical group, and its members in order of arrival."""
    group = canonicalize(dict(enumerate(case.group.trajectories)))
    arrival = {index: number for number, member in enumerate(group.members) for index in member.indices}
    return group, [arrival[index] for index in range(len(arrival))]


async def _ask(
    judge: SimulatedJudge, group: CanonicalGroup, order: Sequence[int], call: int, by_position: bool = False
) -> list[float] | None:
    """The scores in the order shown, or None when the call fails; nobody asks again."""
    marks = draw_markers(group, Random(f"{group.digest}/{call}"))
    try:
        reply = await judge([{"role": "user", "content": render_transcripts(group, order, marks)}], {})
        if by_position:
            told = [entry["score"] for entry in json.loads(reply)["scores"]]
            return told if len(told) == len(order) else None
        return [scored.score for scored in read_verdict(reply, [marks.labels[n] for n in order]).scores.values()]
    except (openai.OpenAIError, VerdictError, ValueError):
        return None


def _means(told: Sequence[list[float] | None], members: int) -> list[float | None]:
    """By member, over the calls that told anything."""
    answered = [scores for scores in told if scores is not None]
    return [fmean(scores) for scores in zip(*answered, strict=True)] if answered else [None] * members


async def measure_quality(scorer: Scorer, groups: Iterable[SimulatedGroup]) -> QualityReport:
    """The quality of a way of asking over `groups`. Groups whose rewards are all equal only count as such."""
    taus: list[float] = []
    advantages, true_advantages, lengths = [], [], []
    rewards, arrivals, places = [], [], []
    count = calls = unscored = 0
    for case in groups:
        outcome = await scorer(case)
        count, calls = count + 1, calls + outcome.calls
        scored = outcome.rewards
        kept = [n for n, reward in enumerate(scored) if reward is not None]
        unscored += len(scored) - len(kept)
        got = [reward for reward in scored if reward is not None]
        true = [case.qualities[n] for n in kept]
        if (tau := mean_kendall_tau([list(zip(got, true, strict=True))])) is None:
            continue
        taus.append(tau)
        advantages += _advantages(got)
        true_advantages += _advantages(true)
        lengths += _advantages([case.lengths[n] for n in kept])
        rewards += [reward - fmean(got) for reward in got]
        arrivals += [centred_places(len(scored))[n] for n in kept]
        places += [outcome.places[n] for n in kept]
    return QualityReport(
        tau=fmean(taus) if taus else None,
        error=stdev(taus) / math.sqrt(len(taus)) if len(taus) > 1 else None,
        advantage_correlation=_correlation(advantages, true_advantages),
        advantage_with_length=_correlation(advantages, lengths),
        arrival_slope=_slope(rewards, arrivals),
        position_slope=_slope(rewards, places),
        unscored_members=unscored,
        groups=count,
        calls_per_group=calls / count if count else 0.0,
    )


def _advantages(values: Sequence[float]) -> list[float]:
    mean = fmean(values)
    spread = math.sqrt(fmean((value - mean) ** 2 for value in values))
    return [(value - mean) / spread if spread else 0.0 for value in values]


def _slope(ys: Sequence[float], xs: Sequence[float]) -> float | None:
    squares = math.fsum(x * x for x in xs)
    return math.fsum(x * y for x, y in zip(xs, ys, strict=True)) / squares if squares else None


def _correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Of values whose means are 0."""
    spread = math.sqrt(math.fsum(x * x for x in xs) * math.fsum(y * y for y in ys))
    return math.fsum(x * y for x, y in zip(xs, ys, strict=True)) / spread if spread else None
