"""Simulated judges with known biases and faults, and how well a way of asking them recovers known qualities.

    table: dict[str, Latent] = {}
    groups = simulated_groups(300, members=8, seed=0, table=table)
    report = await measure_quality(engine_scorer(Judge(SimulatedJudge(table), orders=2)), groups)

Shorter members arrive first, and neither length nor arrival is related to quality. So a correlation of rewards with
arrival, position or length is bias. Members that a judge could not score stay unscored and are counted.

A simulated judge is called like any judge, and reads the group from the prompt alone: it finds each member's quality
by an id in its text. Its model for the member at position x (-1 = first shown, 1 = last), in standard deviations of
quality:

    seen  = quality - slope·x + u·(x² - its mean over the positions) + first·[shown first]
            + length·ln(characters / their geometric mean) + idiosyncrasy·N(0, 1), drawn once per judge and member
            + halo·(the score of the member shown before) - curve·(mean quality shown) + severity
            + noise·max(1, shown / 8)^crowding·N(0, 1), drawn for each call
    score = 1/2 + (1 - compression)·(logistic(seen) - 1/2), rounded to a multiple of `step`

Where states are asked for, those after all turns but the last are the member's true ones, distorted (`distorted`).

The reply depends on the seed and the messages only, not on the order of calls. Asked for scores by criterion, it
gives a member the same score on each, since a member has one quality.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from statistics import fmean, pstdev, stdev
from typing import Any

import openai

from gavel.judge.audit.agreement import kendall_tau
from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.judge.panel.modes import orders
from gavel.judge.prompt.canonical_group import CanonicalGroup, Conversation, TextEvent, ToolCallEvent, canonicalize
from gavel.judge.prompt.fenced_transcript import draw_markers, marks_turns, read_transcripts, render_transcripts
from gavel.judge.reply.verdict import VerdictError, read_verdict, requested_ids
from gavel.judge.stats import centred_positions
from gavel.llm.failures import openai_httpx
from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

ID = re.compile(r"\bsim-\w+")
"""Pattern of a member's id in its text."""

_Entries = list[tuple[str, float]]
"""(id, score) pairs in the order shown."""


@dataclass(frozen=True, slots=True)
class Latent:
    """True properties of a member, unknown to the engine."""

    quality: float
    """Distributed as N(0, 1) over members."""
    states: Sequence[float] = ()
    """The true scores to be expected after its turns but the last."""


@dataclass(frozen=True, slots=True)
class Bias:
    """Systematic and random errors of a judge, in standard deviations of quality unless a field says otherwise."""

    slope: float = 0.0
    """Gain of the first position and loss of the last, relative to the middle; below 0 the last is favored."""
    u: float = 0.0
    """Gain of both ends over the middle."""
    first: float = 0.0
    """Gain of the member shown first."""
    length: float = 0.0
    """Gain of a text that is e times as long as the others."""
    idiosyncrasy: float = 0.0
    """Standard deviation of the error on a member that all calls of this judge share."""
    halo: float = 0.0
    """Gain per point of score of the member shown before; negative for a judge that contrasts neighbours."""
    noise: float = 0.0
    """Standard deviation of the error of a single call."""
    crowding: float = 0.0
    """Exponent by which noise grows with the number of members shown, above 8; 0 = no growth."""
    curve: float = 0.0
    """Share of the shown members' mean quality that is subtracted; 1 = a judge that only compares."""
    severity: float = 0.0
    """Added to every member; negative for a harsh judge."""
    compression: float = 0.0
    """Share by which the distance of scores from 1/2 shrinks."""
    step: float = 0.0
    """Scores are rounded to multiples of it; 0 = no rounding."""
    state_correlation: float = 1.0
    """Correlation of states with the true ones of the members shown, about which they spread as much."""
    state_bias: float = 0.0
    """Added to every state but the last, in points of score."""
    state_leak: float = 0.0
    """Share of a state that is the final score, which the judge has read."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Probability of each fault of a call, which has at most one of them."""

    sorted_reply: float = 0.0
    """The reply's entries are sorted best first instead of in the order shown."""
    dropped_label: float = 0.0
    doubled_label: float = 0.0
    """One member has two scores."""
    other_scale: float = 0.0
    """Scores run from 0 to 10."""
    refusal: float = 0.0
    truncation: float = 0.0
    timeout: float = 0.0
    rate_limit: float = 0.0


POSITION_BIASED = Bias(slope=0.6, u=0.3, halo=0.3, noise=0.5, step=0.05)
"""The judge of this project's benchmarks. One call on 8 members has a tau of .64 with their qualities."""


def distorted(
    states: Mapping[str, Sequence[float]], scores: Mapping[str, float], bias: Bias, random: Random
) -> dict[str, list[float]]:
    """States with the errors of a judge: `states` are the true ones after all turns but the last, `scores` the scores
    that it gives, by label. The state after the last turn is the score."""
    known = [state for own in states.values() for state in own]
    mean, spread = (fmean(known), pstdev(known)) if known else (0.0, 0.0)
    kept, drawn = bias.state_correlation, math.sqrt(1 - bias.state_correlation**2) * spread
    found: dict[str, list[float]] = {}
    for label, own in states.items():
        seen = (mean + kept * (state - mean) + drawn * random.gauss() for state in own)
        leaked = ((1 - bias.state_leak) * each + bias.state_leak * scores[label] + bias.state_bias for each in seen)
        found[label] = [*(min(max(each, 0.0), 1.0) for each in leaked), scores[label]]
    return found


class SimulatedJudge:
    """An `async (messages, schema) -> str` over a table of members by id."""

    def __init__(
        self,
        members: Mapping[str, Latent],
        bias: Bias = POSITION_BIASED,
        faults: Faults | None = None,
        *,
        name: str = "simulated",
        seed: int = 0,
    ) -> None:
        """Judges with different `name`s have different idiosyncrasy and noise."""
        self.members = members
        self.bias = bias
        self.faults = faults or Faults()
        self.seed = f"{seed}/{name}"
        self._failed: dict[int, int] = {}
        """How often a request has failed as servers do, by the hash of its messages: the next attempt may pass."""
        self.__qualname__ = name

    async def __call__(self, messages: Sequence[Message], schema: Mapping[str, Any]) -> str:
        """The reply. Raises `JudgeError` for a prompt with a member that is not in the table."""
        prompt = next(message["content"] for message in messages if message["role"] == "user")
        texts = {label: _text(attempt) for label, attempt in read_transcripts(prompt).items()}
        # Seeded by all messages, so that a repair prompt gets another reply, and one that failed another attempt.
        asked = f"{self.seed}/{[message['content'] for message in messages]}"
        failed = self._failed.get(hash(asked), 0)
        random = Random(f"{asked}/{failed}" if failed else asked)
        fault = self._fault(random)
        scores = self._scores(texts, random)
        names = {name: label for label in scores for name in requested_ids(prompt, label)}
        entries = [(name, scores[label]) for name, label in names.items()]
        states: dict[str, list[float]] = {}
        if marks_turns(prompt):
            true = {label: self.members[self._id(text)].states for label, text in texts.items()}
            told = distorted(true, scores, self.bias, random)
            states = {name: told[label] for name, label in names.items()}
        try:
            return _reply(fault, entries, states, random)
        except openai.APIError:
            self._failed[hash(asked)] = failed + 1
            raise

    def mean_scores(self, texts: Sequence[str], orders: Iterable[Sequence[int]], seed: str) -> list[float]:
        """The mean score of each text over these orders (indices of `texts`), without prompts, replies or faults: what
        the judge says on average, as the truth for its intervals."""
        totals, count = [0.0] * len(texts), 0
        random = Random(f"{self.seed}/{seed}")
        for order in orders:
            shown = {str(index): texts[index] for index in order}
            for index, score in self._scores(shown, random).items():
                totals[int(index)] += score
            count += 1
        return [total / count for total in totals]

    def _fault(self, random: Random) -> str:
        """The name of the call's fault; empty where it has none."""
        drawn = random.random()
        for name, rate in asdict(self.faults).items():
            drawn -= rate
            if drawn < 0:
                return name
        return ""

    def _scores(self, texts: Mapping[str, str], random: Random) -> dict[str, float]:
        """Scores by label, in the order shown."""
        bias = self.bias
        ids = {label: self._id(text) for label, text in texts.items()}
        positions = centred_positions(len(texts))
        mean_square = fmean(position**2 for position in positions)
        logs = {label: math.log(len(text)) for label, text in texts.items()}
        mean_log, mean_quality = fmean(logs.values()), fmean(self.members[i].quality for i in ids.values())
        noise = bias.noise * max(1.0, len(texts) / 8) ** bias.crowding
        scores: dict[str, float] = {}
        before = 0.0
        for position, label in zip(positions, texts, strict=True):
            member = self.members[ids[label]]
            seen = (
                member.quality
                - bias.slope * position
                + bias.u * (position**2 - mean_square)
                + bias.first * (position == positions[0])
                + bias.length * (logs[label] - mean_log)
                + bias.idiosyncrasy * Random(f"{self.seed}/{ids[label]}").gauss()
                + bias.halo * before
                - bias.curve * mean_quality
                + bias.severity
                + noise * random.gauss()
            )
            score = 0.5 + (1 - bias.compression) * (1 / (1 + math.exp(-seen)) - 0.5)
            before = scores[label] = round(round(score / bias.step) * bias.step, 6) if bias.step else score
        return scores

    def _id(self, text: str) -> str:
        known = next((found for found in ID.findall(text) if found in self.members), None)
        if known is None:
            raise JudgeError("a simulated judge is shown a member that is not in its table.")
        return known


def _text(attempt: Sequence[Conversation]) -> str:
    parts: list[str] = []
    for event in (event for conversation in attempt for event in conversation.events):
        match event:
            case TextEvent(_, text):
                parts.append(text)
            case ToolCallEvent(name, arguments, result):
                parts += [name, arguments, result or ""]
    return "\n".join(parts)


class _TimedOut(openai.APITimeoutError):
    litellm_response_headers = {"retry-after": "0"}  # noqa: RUF012 - a simulation need not wait


class _Limited(openai.RateLimitError):
    litellm_response_headers = {"retry-after": "0"}  # noqa: RUF012


_REQUEST = openai_httpx.Request("POST", "http://simulated.invalid/v1/chat/completions")


def _reply(fault: str, entries: _Entries, states: Mapping[str, Sequence[float]], random: Random) -> str:
    """The reply with this fault, or the error of the provider."""
    match fault:
        case "sorted_reply":
            entries = sorted(entries, key=lambda entry: -entry[1])
        case "dropped_label":
            entries.pop(random.randrange(len(entries)))
        case "doubled_label":
            label, score = random.choice(entries)
            entries = [*entries, (label, 0.0 if score > 0.5 else 1.0)]
        case "other_scale":
            entries = [(label, round(10 * score, 6)) for label, score in entries]
        case "refusal":
            return "I'm sorry, but I can't help with that."
        case "timeout":
            raise _TimedOut(_REQUEST)
        case "rate_limit":
            raise _Limited("rate limit reached", response=openai_httpx.Response(429, request=_REQUEST), body=None)
        case _:
            pass
    scores = [
        {"trajectory_id": label, "explanation": "As seen."}
        | ({"states": [round(100 * state) for state in states[label]]} if states else {})
        | {"score": score}
        for label, score in entries
    ]
    text = json.dumps({"scores": scores})
    return text[: random.randrange(1, len(text) - 1)] if fault == "truncation" else text


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
        if (tau := kendall_tau(list(zip(got, true, strict=True)))) is None:
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
