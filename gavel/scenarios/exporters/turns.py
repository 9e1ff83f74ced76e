"""The messages of a history as typed turns, which every format is written from.

    {"role": "assistant", "content": "…", "tool_calls": […]}  ->  Turn("assistant", [Text("…")], calls=(Call(…),))

Nothing is dropped: what no field of a `Turn` takes is in its `rest`. A turn that was sampled carries its tokens.
"""

import base64
import binascii
import json
import mimetypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from openai.types.chat.chat_completion import Choice

from gavel.llm.types import Message
from gavel.scenarios.exporters.losses import Losses
from gavel.scenarios.trajectory import History, to_messages

Role = Literal["system", "user", "assistant", "tool"]
_ROLES: dict[str, Role] = {
    **{"system": "system", "developer": "system", "user": "user", "assistant": "assistant"},
    **{"tool": "tool", "function": "tool"},
}
_TAKEN = ("role", "content", "tool_calls", "function_call", "tool_call_id", "reasoning_content", "reasoning", "name")
_EXACT = ("token_ids", "prompt_token_ids", "token_logprobs", "policy_version")


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Media:
    """An image or a recording."""

    kind: Literal["image", "audio"]
    url: str
    """A `data:` URL where the bytes are in the message."""
    mime: str | None
    """None = neither the message nor the name of the file tells it."""


@dataclass(frozen=True, slots=True)
class Other:
    """A part of a kind that is known to no format."""

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
        """As JSON, for formats that have only text."""
        return json.dumps(self.part, ensure_ascii=False)


Part = Text | Media | Other


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool."""

    id: str | None
    name: str
    arguments: str
    """The JSON text that the model wrote; any text for a custom tool."""
    values: dict[str, Any] | None
    """The arguments as an object; None where they are none."""
    rest: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Sampled:
    """What is known of how a turn was sampled."""

    finish_reason: str | None
    prompt_ids: list[int] | None
    ids: list[int] | None
    logprobs: list[float] | None
    """[T], one for each of `ids`; None where one of them is missing or not finite."""
    tokens: list[str] | None
    """[T], the texts of the tokens, where the sampler told them."""
    policy_version: int | None
    rest: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    role: Role
    parts: list[Part]
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str | None = None
    """Of the call that a tool's result answers."""
    name: str | None = None
    sampled: Sampled | None = None
    rest: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields of the message with no place above."""

    @property
    def text(self) -> str:
        """The texts of its parts."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def is_text(self) -> bool:
        """Whether it has no part but text."""
        return all(isinstance(part, Text) for part in self.parts)


def turns(history: History, losses: Losses) -> list[Turn]:
    """The turns of a history, in order."""
    return [_turn(item, losses) for item in history.messages_and_choices]


def tool_definitions(history: History, losses: Losses) -> list[Message]:
    """The tools that the agent was shown, in OpenAI's form."""
    return losses.plain(history.tools or [])


def tool_functions(history: History, losses: Losses) -> list[Message]:
    """The same without OpenAI's wrapping: name, description, parameters."""
    tools = tool_definitions(history, losses)
    return [cast(Message, body) if isinstance(body := tool.get("function"), dict) else tool for tool in tools]


def _turn(item: Choice | Message, losses: Losses) -> Turn:
    (whole,) = to_messages([item])
    message: Message = losses.plain(whole)
    given = str(message.get("role") or "user")
    rest = {name: value for name, value in message.items() if name not in _TAKEN and value is not None}
    if given not in _ROLES:
        losses.add(f"message of the role {given}: written as a user's, with its role beside it")
    if given != _ROLES.get(given):
        rest["role"] = given
    calls = [*(message.get("tool_calls") or ()), *([older] if (older := message.get("function_call")) else ())]
    return Turn(
        _ROLES.get(given, "user"),
        list(_parts(message.get("content"))),
        str(message.get("reasoning_content") or message.get("reasoning") or ""),
        tuple(_call(call, losses) for call in calls),
        _text_or_none(message.get("tool_call_id")),
        _text_or_none(message.get("name")),
        _sampled(item, losses) if isinstance(item, Choice) else None,
        rest,
    )


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)


def _parts(content: Any) -> Iterator[Part]:
    if isinstance(content, list):
        yield from map(_part, cast("list[Any]", content))
    elif content is not None and content != "":
        yield Text(content) if isinstance(content, str) else Other(content)


def _part(part: Any) -> Part:
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
    if url.startswith("data:"):
        return url[5:].partition(",")[0].partition(";")[0] or None
    return mimetypes.guess_type(url.partition("?")[0])[0]


def inline(media: Media) -> str | None:
    """The base64 text of a `data:` URL; None for every other address."""
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
    values = losses.plain(_object(arguments))
    return Call(_text_or_none(fields.get("id")), str(body.get("name") or ""), arguments, values, rest)


def _object(arguments: str) -> Any:
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return cast(Message, found) if isinstance(found, dict) else None


def _sampled(choice: Choice, losses: Losses) -> Sampled:
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
        [losses.text(entry.token) for entry in content] or None,
        extra.get("policy_version"),
        losses.plain({name: value for name, value in extra.items() if name not in _EXACT and value is not None}),
    )
