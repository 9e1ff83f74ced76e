"""An attempt in the form that is exported: its trajectory, its origin, and its facts besides the turns.

`facts` holds all data of a trajectory and its group besides messages and tools, for each format's free fields; the keys
are those of `Trajectory` and `TrajectoryGroup`. `Losses` counts data that a format cannot hold, and produces values
that every JSON reader accepts: a lone surrogate becomes U+FFFD, a number that is not finite null. `turns` has the
messages of a history as typed turns; data without a field of `Turn` is in its `rest`.
"""

import hashlib
import json
import math
import mimetypes
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from openai.types.chat.chat_completion import Choice
from pydantic_core import to_jsonable_python

from gavel.llm.types import Message
from gavel.scenarios.formats.chat import thought_field
from gavel.scenarios.formats.row import is_list, is_object, loaded
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import History, Trajectory, to_messages

TOO_DEEP = "value nested deeper than 100 levels: written as text"
_DEEPEST = 100


class Losses:
    """Counts of dropped, changed or moved data, by reason."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self.attempts = 0
        """Number of attempts that were dropped."""
        self.groups = 0
        """Number of groups without a remaining attempt."""

    def add(self, reason: str, number: int = 1) -> None:
        if number:
            self._counts[reason] += number

    def notes(self) -> list[str]:
        """One line for each reason, in order of first appearance."""
        return [f"{number:,} × {reason}" for reason, number in self._counts.items()]

    def text(self, text: str) -> str:
        """The text as valid Unicode; replaces lone surrogates."""
        try:
            text.encode()
        except UnicodeEncodeError:
            self.add("text with a lone surrogate: written with U+FFFD in its place")
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # pairs become one character
        return text

    def number(self, value: float | None) -> float | None:
        """The number; None for NaN and infinities, which JSON lacks."""
        if value is None or math.isfinite(value):
            return value
        self.add("number that is not finite: written as null")
        return None

    def plain(self, value: Any, depth: int = 0) -> Any:
        """The value as JSON: texts are Unicode, numbers are finite, and objects and lists are complete."""
        match value:
            case dict() | list() | tuple() if depth == _DEEPEST:
                self.add(TOO_DEEP)
                return self.text(_as_text(cast(Any, value)))
            case str():
                return self.text(value)
            case None | bool() | int():
                return value
            case float():
                return self.number(value)
            case dict():
                items = cast("dict[Any, Any]", value).items()
                return {self.text(str(name)): self.plain(each, depth + 1) for name, each in items}
            case list() | tuple():
                return [self.plain(each, depth + 1) for each in cast("list[Any]", value)]
            case _:
                return self.plain(to_jsonable_python(value, fallback=repr), depth)


def _as_text(value: Any) -> str:
    try:
        return json.dumps(value, default=repr)
    except (RecursionError, ValueError):
        return "…"


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group and its origin."""

    group: TrajectoryGroup
    index: int
    """Index over everything that is exported, from 0."""
    split: str | None = None
    step: int | None = None
    """Training step; None = it was read from a file, not from a run."""

    @property
    def id(self) -> str:
        """`train/12/3`, or `3` if it belongs to no run."""
        parts = (self.split, self.step, self.index)
        return "/".join(str(part) for part in parts if part is not None)


@dataclass(frozen=True, slots=True)
class Export:
    """A format that can be written."""

    title: str
    suffixes: tuple[str, ...]
    """Allowed file name suffixes of an output."""
    documents: Callable[[Iterable[StoredGroup], str | None, Losses], Iterator[dict[str, Any]]]
    """Converts groups and the policy's name, if known, to documents, each a line of JSON."""


@dataclass(frozen=True, slots=True)
class StoredAttempt:
    """One member of a group."""

    trajectory: Trajectory
    place: StoredGroup
    member: int

    @property
    def id(self) -> str:
        """An id that is unique within an export and stable between exports."""
        return f"{self.place.id}/{self.member}"

    @property
    def agent(self) -> str:
        return self.trajectory.agent or "agent"

    @property
    def reward(self) -> float | None:
        """The reward as JSON can hold it; None = not scored. One that is not finite is counted with the `facts`."""
        reward = self.trajectory.reward
        return reward if reward is not None and math.isfinite(reward) else None


def attempts(stored: StoredGroup) -> Iterator[StoredAttempt]:
    """The members of a group."""
    for member, trajectory in enumerate(stored.group):
        yield StoredAttempt(trajectory, stored, member)


def all_attempts(groups: Iterable[StoredGroup], losses: Losses) -> Iterator[StoredAttempt]:
    """The members of all groups. Counts the exceptions of a group without members, which have no record."""
    for stored in groups:
        if not len(stored.group):
            losses.add("exception of a group in which no member ended: left out", len(stored.group.exceptions))
        yield from attempts(stored)


def facts(attempt: StoredAttempt, losses: Losses) -> dict[str, Any]:
    """All known facts of an attempt besides its turns and tools, without empty ones.

    A group's exceptions are reported with its first member.
    """
    own = attempt.trajectory.model_dump(
        exclude={"messages_and_choices", "tools", "additional_histories", "agent"}, warnings=False
    )
    beside = {"trajectories"} if attempt.member == 0 else {"trajectories", "exceptions"}
    group = attempt.place.group.model_dump(exclude=beside, warnings=False)
    place = {"index": attempt.place.index, "split": attempt.place.split, "step": attempt.place.step}
    return losses.plain(
        {**_told(own), "member": attempt.member, "group": {**_told(place), **_told(group)}},
    )


def _told(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None and value != [] and value != {}}


def scores(attempt: StoredAttempt, known: Mapping[str, Any]) -> dict[str, Any]:
    """The known values of reward, judge's score and metrics of `facts`, by name."""
    judgement: dict[str, Any] = known.get("judgement") or {}
    given = {"reward": attempt.reward, "judge": judgement.get("score")}
    found = {name: value for name, value in given.items() if value is not None}
    for name, value in known.get("metrics", {}).items():
        if value is not None:
            found[name if name not in found else f"metric/{name}"] = value
    return found


def hex_id(*parts: Any, size: int) -> str:
    """A hexadecimal id of `size` bytes, derived from the parts."""
    return hashlib.sha256("\0".join(map(str, parts)).encode(errors="replace")).hexdigest()[: 2 * size]


_ROLES = {each: each for each in ("system", "user", "assistant", "tool")} | {"developer": "system", "function": "tool"}
_TAKEN = ("role", "content", "tool_calls", "function_call", "tool_call_id", "reasoning_content", "name")
_EXACT = ("token_ids", "prompt_token_ids", "token_logprobs", "policy_version")


@dataclass(frozen=True, slots=True)
class Call:
    id: str | None
    name: str
    arguments: str
    """The JSON text that the model wrote; any text for a custom tool."""
    values: dict[str, Any] | None
    """The arguments as an object; None if they are none."""
    rest: Message


@dataclass(frozen=True, slots=True)
class Sampled:
    """Sampling data of a turn."""

    finish_reason: str | None
    prompt_ids: list[int] | None
    ids: list[int] | None
    logprobs: list[float] | None
    """[T], aligned with `ids`; None if one is missing or not finite."""
    policy_version: int | None
    rest: Message


@dataclass(frozen=True, slots=True)
class Turn:
    role: str
    """`system`, `user`, `assistant` or `tool`."""
    parts: list[Message]
    """The content as OpenAI's parts; those of a kind that OpenAI does not have are unchanged."""
    reasoning: str
    calls: list[Call]
    call_id: str | None
    """Id of the call that a tool's result answers."""
    name: str | None
    sampled: Sampled | None
    rest: Message
    """Fields of the message that have no attribute here."""

    @property
    def text(self) -> str:
        """The texts of its parts."""
        return "\n".join(part["text"] for part in self.parts if is_text(part))

    @property
    def is_text(self) -> bool:
        """Whether all its parts are text."""
        return all(map(is_text, self.parts))


def is_text(part: Message) -> bool:
    return part.keys() == {"type", "text"} and part["type"] == "text" and isinstance(part["text"], str)


def media_of(part: Message) -> tuple[str, str, str | None] | None:
    """Modality, address (a `data:` URL if the part holds bytes) and type, if known, of an image or a recording; None
    for any other part."""
    match part:
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return "image", url, mimetypes.guess_type(url if url.startswith("data:") else url.partition("?")[0])[0]
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(form)}}:
            mime = {"mp3": "audio/mpeg"}.get(form, f"audio/{form}")
            return "audio", f"data:{mime};base64,{data}", mime
        case _:
            return None


def turns(history: History, losses: Losses) -> list[Turn]:
    """The turns of a history, in order."""
    return [_convert_turn(item, losses) for item in history.messages_and_choices]


def tool_definitions(history: History, losses: Losses) -> list[Message]:
    """The tools that the agent was shown, in OpenAI's form."""
    return losses.plain(history.tools or [])


def tool_functions(history: History, losses: Losses) -> list[Message]:
    """The tools without OpenAI's wrapping: name, description, parameters."""
    return [body if is_object(body := tool.get("function")) else tool for tool in tool_definitions(history, losses)]


def _convert_turn(item: Choice | Message, losses: Losses) -> Turn:
    (whole,) = to_messages([item])
    message: Message = losses.plain(whole)
    given = str(message.get("role") or "user")
    thoughts = thought_field(message) or "reasoning_content"
    rest = {name: value for name, value in message.items() if name not in (*_TAKEN, thoughts) and value is not None}
    if given not in _ROLES:
        losses.add(f"message of the role {given}: written as a user's, with its role beside it")
    if given != _ROLES.get(given):
        rest["role"] = given
    content, older = message.get("content"), message.get("function_call")
    parts = content if is_list(content) else [] if content in (None, "") else [content]
    return Turn(
        _ROLES.get(given, "user"),
        [_convert_part(part) for part in parts],
        str(message.get(thoughts) or ""),
        [_call(call, losses) for call in (*(message.get("tool_calls") or ()), *([older] if older else ()))],
        _text_or_none(message.get("tool_call_id")),
        _text_or_none(message.get("name")),
        _read_sampling(item, losses) if isinstance(item, Choice) else None,
        rest,
    )


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)


def _convert_part(part: Any) -> Message:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return part if is_object(part, "type") else {"type": "unknown", "content": part}


def _call(call: Any, losses: Losses) -> Call:
    fields = call if is_object(call) else {"function": {"name": "", "arguments": call}}
    body = fields.get("custom")
    body = body if is_object(body) else fields.get("function", fields)
    body = body if is_object(body) else {"name": body}
    said = body.get("arguments", body.get("input"))
    arguments = said if isinstance(said, str) else "{}" if said is None else json.dumps(said, ensure_ascii=False)
    rest = {name: value for name, value in fields.items() if name not in ("id", "function", "name", "arguments")}
    if rest.get("type") == "function":
        del rest["type"]
    values = losses.plain(found if is_object(found := loaded(arguments)) else None)
    return Call(_text_or_none(fields.get("id")), str(body.get("name") or ""), arguments, values, rest)


def _read_sampling(choice: Choice, losses: Losses) -> Sampled:
    extra = choice.model_extra or {}
    content: Sequence[Any] = (choice.logprobs.content if choice.logprobs is not None else None) or ()
    given: list[Any] = extra.get("token_logprobs") or [entry.logprob for entry in content]
    ids: list[int] | None = extra.get("token_ids")
    logprobs = [float(each) for each in given if isinstance(each, int | float) and losses.number(each) is not None]
    if given and (len(logprobs) < len(given) or (ids is not None and len(ids) != len(given))):
        losses.add("sampled turn without a finite log-prob for each token: written without log-probs")
        logprobs = []
    if any(entry.top_logprobs for entry in content):
        losses.add("sampled turn with the likeliest tokens at each place: only the sampled one's log-prob is written")
    rest = losses.plain({name: value for name, value in extra.items() if name not in _EXACT and value is not None})
    prompt, version = extra.get("prompt_token_ids"), extra.get("policy_version")
    return Sampled(choice.finish_reason, prompt, ids, logprobs or None, version, rest)
