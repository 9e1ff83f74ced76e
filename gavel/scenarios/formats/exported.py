"""An attempt in the form that is exported: its trajectory, its origin, and its facts besides the turns.

`facts` holds all data of a trajectory and its group besides messages and tools, for each format's free fields; the keys
are those of `Trajectory` and `TrajectoryGroup`. `Losses` counts data that a format cannot hold, and produces values
that every JSON reader accepts: a lone surrogate becomes U+FFFD, a number that is not finite null. `turns` has the
messages of a history as typed turns; data without a field of `Turn` is in its `rest`.
"""

import base64
import binascii
import hashlib
import json
import math
import mimetypes
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from openai.types.chat.chat_completion import Choice
from pydantic_core import to_jsonable_python

from gavel.llm.types import Message
from gavel.scenarios.formats.chat import thought_field
from gavel.scenarios.formats.row import is_object, loaded
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import History, Trajectory, to_messages

SURROGATE = "text with a lone surrogate: written with U+FFFD in its place"
NOT_FINITE = "number that is not finite: written as null"

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
            self.add(SURROGATE)
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # pairs become one character
        return text

    def number(self, value: float | None) -> float | None:
        """The number; None for NaN and infinities, which JSON lacks."""
        if value is None or math.isfinite(value):
            return value
        self.add(NOT_FINITE)
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


Role = Literal["system", "user", "assistant", "tool"]
_ROLES: dict[str, Role] = {
    **{"system": "system", "developer": "system", "user": "user", "assistant": "assistant"},
    **{"tool": "tool", "function": "tool"},
}
_TAKEN = ("role", "content", "tool_calls", "function_call", "tool_call_id", "reasoning_content", "name")
_EXACT = ("token_ids", "prompt_token_ids", "token_logprobs", "policy_version")


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Media:
    """An image or a recording."""

    kind: Literal["image", "audio"]
    url: str
    """The address; a `data:` URL if the message holds the bytes."""
    mime: str | None
    """None = neither the message nor the file name tells it."""


@dataclass(frozen=True, slots=True)
class Other:
    """A part of a kind that no format knows."""

    part: Any

    @property
    def kind(self) -> str:
        return str(self.fields["type"])

    @property
    def fields(self) -> Message:
        """The part as an object with a type."""
        part: Any = self.part
        if isinstance(part, dict) and "type" in part:
            return cast(Message, part)
        return {"type": "unknown", "content": part}

    @property
    def text(self) -> str:
        """The part as JSON, for text-only formats."""
        return json.dumps(self.part, ensure_ascii=False)


Part = Text | Media | Other


@dataclass(frozen=True, slots=True)
class Call:
    id: str | None
    name: str
    arguments: str
    """The JSON text that the model wrote; any text for a custom tool."""
    values: dict[str, Any] | None
    """The arguments as an object; None if they are none."""
    rest: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Sampled:
    """Sampling data of a turn."""

    finish_reason: str | None
    prompt_ids: list[int] | None
    ids: list[int] | None
    logprobs: list[float] | None
    """[T], aligned with `ids`; None if one is missing or not finite."""
    policy_version: int | None
    rest: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    role: Role
    parts: list[Part]
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str | None = None
    """Id of the call that a tool's result answers."""
    name: str | None = None
    sampled: Sampled | None = None
    rest: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields of the message that have no attribute here."""

    @property
    def text(self) -> str:
        """The texts of its parts."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def is_text(self) -> bool:
        """Whether all its parts are text."""
        return all(isinstance(part, Text) for part in self.parts)


def turns(history: History, losses: Losses) -> list[Turn]:
    """The turns of a history, in order."""
    return [_convert_turn(item, losses) for item in history.messages_and_choices]


def tool_definitions(history: History, losses: Losses) -> list[Message]:
    """The tools that the agent was shown, in OpenAI's form."""
    return losses.plain(history.tools or [])


def tool_functions(history: History, losses: Losses) -> list[Message]:
    """The tools without OpenAI's wrapping: name, description, parameters."""
    tools = tool_definitions(history, losses)
    return [cast(Message, body) if isinstance(body := tool.get("function"), dict) else tool for tool in tools]


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
    calls = [*(message.get("tool_calls") or ()), *([older] if (older := message.get("function_call")) else ())]
    return Turn(
        _ROLES.get(given, "user"),
        list(_parts(message.get("content"))),
        str(message.get(thoughts) or ""),
        tuple(_call(call, losses) for call in calls),
        _text_or_none(message.get("tool_call_id")),
        _text_or_none(message.get("name")),
        _read_sampling(item, losses) if isinstance(item, Choice) else None,
        rest,
    )


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)


def _parts(content: Any) -> Iterator[Part]:
    if isinstance(content, list):
        yield from map(_convert_part, cast("list[Any]", content))
    elif content is not None and content != "":
        yield Text(content) if isinstance(content, str) else Other(content)


def _convert_part(part: Any) -> Part:
    match part:
        case str():
            return Text(part)
        case {"type": "text", "text": str(text), **rest} if not rest:
            return Text(text)
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return Media("image", url, _mime(url))
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(form)}}:
            mime = {"mp3": "audio/mpeg"}.get(form, f"audio/{form}")
            return Media("audio", f"data:{mime};base64,{data}", mime)
        case _:
            return Other(part)


def _mime(url: str) -> str | None:
    return mimetypes.guess_type(url if url.startswith("data:") else url.partition("?")[0])[0]


def inline(media: Media) -> str | None:
    """The base64 text of a `data:` URL; None for any other address."""
    head, comma, data = media.url.partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        return None
    try:
        base64.b64decode(data, validate=True)
    except binascii.Error:
        return None
    return data


def _call(call: Any, losses: Losses) -> Call:
    fields: Message = cast(Message, call) if isinstance(call, dict) else {"function": {"name": "", "arguments": call}}
    kind = "custom" if isinstance(fields.get("custom"), dict) else "function"
    body = fields.get(kind, fields)
    body = cast(Message, body) if isinstance(body, dict) else {"name": body}
    said = body.get("input") if kind == "custom" else body.get("arguments")
    arguments = said if isinstance(said, str) else "{}" if said is None else json.dumps(said, ensure_ascii=False)
    rest = {name: value for name, value in fields.items() if name not in ("id", "function", "name", "arguments")}
    if rest.get("type") == "function":
        del rest["type"]
    values = losses.plain(found if is_object(found := loaded(arguments)) else None)
    return Call(_text_or_none(fields.get("id")), str(body.get("name") or ""), arguments, values, rest)


def _read_sampling(choice: Choice, losses: Losses) -> Sampled:
    extra = choice.model_extra or {}
    content: Sequence[Any] = (choice.logprobs.content if choice.logprobs is not None else None) or ()
    given: list[Any] | None = extra.get("token_logprobs") or [entry.logprob for entry in content] or None
    ids: list[int] | None = extra.get("token_ids")
    logprobs = [each for each in given or () if isinstance(each, int | float) and losses.number(each) is not None]
    if given and (len(logprobs) < len(given) or (ids is not None and len(ids) != len(given))):
        losses.add("sampled turn without a finite log-prob for each token: written without log-probs")
        logprobs = []
    if any(entry.top_logprobs for entry in content):
        losses.add("sampled turn with the likeliest tokens at each place: only the sampled one's log-prob is written")
    return Sampled(
        choice.finish_reason,
        extra.get("prompt_token_ids"),
        ids,
        [float(each) for each in logprobs] or None,
        extra.get("policy_version"),
        losses.plain({name: value for name, value in extra.items() if name not in _EXACT and value is not None}),
    )
