"""Simulated judges with known biases and faults over members of known quality, to test the engine without a model.

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from statistics import fmean, pstdev
from typing import Any

import openai

from gavel.judge.errors import JudgeError
from gavel.judge.prompt.canonical_group import Conversation, TextEvent, ToolCallEvent
from gavel.judge.prompt.fenced_transcript import marks_turns, read_transcripts
from gavel.judge.reply.verdict import requested_ids
from gavel.judge.stats import centred_positions
from gavel.llm.failures import openai_httpx
from gavel.llm.types import Message

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

    def __post_init__(self) -> None:
        for name, number in asdict(self).items():
            if not math.isfinite(number):
                raise JudgeError(f"a simulated judge's {name} is a number, not {number}.")
            if name in ("idiosyncrasy", "noise", "crowding") and number < 0:
                raise JudgeError(f"a simulated judge's {name} is 0 or more, not {number:g}.")
            if name in ("state_correlation", "state_leak") and not 0 <= number <= 1:
                raise JudgeError(f"a simulated judge's {name} is from 0 to 1, not {number:g}.")
            if name in ("compression", "step") and not 0 <= number < 1:
                raise JudgeError(f"a simulated judge's {name} is from 0 to below 1, not {number:g}.")


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

    def __post_init__(self) -> None:
        rates = asdict(self)
        if not all(0 <= rate <= 1 for rate in rates.values()) or sum(rates.values()) > 1 + 1e-9:
            raise JudgeError(f"rates of faults and their sum are from 0 to 1, not {rates}.")


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
