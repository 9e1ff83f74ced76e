"""A trajectory as a page shows it: its opening, then rounds of a turn of the agent and what came back.

    transcript = transcribe(trajectory)
    transcript.opening        # system and user messages
    transcript.rounds[0]      # [the agent's first turn, the results of its calls, …]

The members of a group are shown side by side, round by round.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from openai.types.chat.chat_completion import Choice

from gavel.llm.types import Message
from gavel.scenarios.formats.row import as_list, first_of, is_list, is_object, loaded
from gavel.scenarios.trajectory import History, MessageOrChoice, Trajectory

_LONGEST_TITLE = 90
"""Characters."""
_BLOCKS = 96
"""Max blocks of a heat strip."""
_HEAT = (-0.1, -0.7, -2.3, -4.6)
"""Log-probs of .9, .5, .1 and .01: the upper bounds of the strip's colours, from the likeliest."""


@dataclass(frozen=True, slots=True)
class HeatStrip:
    """The log-probs of a turn's tokens, as blocks of a picture: the least likely token of each block counts."""

    blocks: tuple[tuple[float, float, int], ...]
    """(left, width, heat): in per cent of the strip, and 0 (likely) to 4 (one in a hundred or less)."""
    tokens: int
    mean: float
    lowest: float


@dataclass(frozen=True, slots=True)
class ShownCall:
    name: str
    arguments: str

    def __str__(self) -> str:
        """`refund(id="7890")`; arguments that are no object as they are."""
        if not is_object(found := loaded(self.arguments)):
            return f"{self.name}({self.arguments})"
        named = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in found.items())
        return f"{self.name}({', '.join(named)})"


@dataclass(frozen=True, slots=True)
class ShownTurn:
    """One message."""

    role: str
    text: str = ""
    reasoning: str = ""
    calls: tuple[ShownCall, ...] = ()
    strip: HeatStrip | None = None
    """Heat strip of a sampled turn with log-probs."""
    sampled: bool = False
    cut: bool = False
    """Whether the reply ran out of tokens."""
    state: float | None = field(default=None, compare=False)
    """The score that the judge expected after it, where it tells states."""
    fell: bool = field(default=False, compare=False)
    """Whether it is the turn after which the judge expected the most less than before, of a member below the mean."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """One history of a trajectory."""

    title: str
    opening: tuple[ShownTurn, ...]
    rounds: tuple[tuple[ShownTurn, ...], ...]

    @property
    def turns(self) -> tuple[ShownTurn, ...]:
        """All turns, in order."""
        return sum(self.rounds, self.opening)


def transcribe(trajectory: Trajectory) -> list[Transcript]:
    """The trajectory's histories, the main one first."""
    histories, judged = trajectory.histories(), trajectory.judgement
    main, *further = [_transcript(history, number, len(histories)) for number, history in enumerate(histories)]
    if judged is not None and len(judged.states) == len(main.rounds):
        rounds = [
            (replace(first, state=state, fell=number == judged.largest_fall), *rest)
            for number, ((first, *rest), state) in enumerate(zip(main.rounds, judged.states, strict=True))
        ]
        main = replace(main, rounds=tuple(rounds))
    return [main, *further]


def shortened(text: str) -> str:
    """The text in one line, cut between words."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_TITLE else f"{line[: _LONGEST_TITLE - 2].rsplit(' ', 1)[0]} …"


def _transcript(history: History, number: int, count: int) -> Transcript:
    opening, rounds = list[ShownTurn](), list[list[ShownTurn]]()
    for turn in map(_turn, history.messages_and_choices):
        if turn.role == "assistant":
            rounds.append([turn])
        else:
            (rounds[-1] if rounds else opening).append(turn)
    named = f"the agent {history.agent}" if history.agent else f"conversation {number + 1} of {count}"
    return Transcript(named if count > 1 else "", tuple(opening), tuple(map(tuple, rounds)))


def _turn(item: MessageOrChoice) -> ShownTurn:
    choice = item if isinstance(item, Choice) else None
    message: Message = item.message.model_dump(mode="json", warnings=False) if isinstance(item, Choice) else item
    return ShownTurn(
        role=str(message.get("role", "")),
        text=shown_text(message.get("content") or message.get("refusal")),
        reasoning=shown_text(message.get("reasoning_content") or message.get("reasoning")),
        calls=tuple(_calls(message)),
        strip=_strip(_logprobs(choice)) if choice else None,
        sampled=choice is not None,
        cut=choice is not None and choice.finish_reason == "length",
    )


def _calls(message: Mapping[str, Any]) -> Iterator[ShownCall]:
    for call in as_list(message.get("tool_calls")):
        function: Message = (first_of(call, "function", "custom") if is_object(call) else None) or {}
        arguments = function.get("arguments", function.get("input", ""))
        yield ShownCall(str(function.get("name", "")), pretty_json(arguments))


def _logprobs(choice: Choice) -> list[float]:
    if is_list(compact := (choice.model_extra or {}).get("token_logprobs")):
        return [value for value in compact if isinstance(value, int | float)]
    content = choice.logprobs.content if choice.logprobs else None
    return [entry.logprob for entry in content or ()]


def _strip(logprobs: Sequence[float]) -> HeatStrip | None:
    if not logprobs:
        return None
    count = len(logprobs)
    size = -(-count // _BLOCKS)
    parts = [(start, logprobs[start : start + size]) for start in range(0, count, size)]
    blocks = tuple(
        (round(100 * start / count, 3), round(100 * len(part) / count, 3), sum(min(part) < bound for bound in _HEAT))
        for start, part in parts
    )
    return HeatStrip(blocks, count, sum(logprobs) / count, min(logprobs))


def pretty_json(text: Any) -> str:
    """JSON with a line for each field; what is none as it is."""
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return str(text)
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def shown_text(content: Any) -> str:
    """A message's content: its text; parts of other kinds by their type."""
    match content:
        case None:
            return ""
        case str():
            return content
        case list():
            return "\n".join(_part(part) for part in cast("list[Any]", content))
        case _:
            return json.dumps(content, ensure_ascii=False, default=str)


def _part(part: Any) -> str:
    return str(part.get("text") or f"[{part.get('type', 'part')}]") if is_object(part) else str(part)
