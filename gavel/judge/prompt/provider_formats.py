"""Messages -> events: OpenAI chat messages, Anthropic blocks, Responses items and Gemini parts, in any mixture.

    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    {"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {}}]}       the same event
    {"type": "function_call", "name": "f", "arguments": "{}"}

Whatever is in a message is in the text of an event, or its tag is, beside an attachment. Left out are only ids and
bookkeeping (message_fields.py) and reasoning, also where it stands in tags in an assistant's content. Malformed content
is no error: it is shown as JSON, and is unseen content.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from gavel.judge.prompt.events import ROLES, Attachment, Event, TextEvent, ToolCallEvent, Unseen
from gavel.judge.prompt.gemini_format import from_gemini
from gavel.judge.prompt.plain_json import plain_json
from gavel.judge.prompt.sanitize import normal_form
from gavel.judge.prompt.shown_content import View
from gavel.llm.types import Message
from gavel.prompts import content_hash

_IDS = "type role id object index call_id tool_call_id tool_use_id caller phase policy_version"
_BOOKKEEPING = (
    "finish_reason stop_reason stop_sequence logprobs token_logprobs token_ids prompt_token_ids cache_control weight "
    "prefix created created_at timestamp model usage"
)
_THOUGHT_FIELDS = (
    "reasoning reasoning_content reasoning_details reasoning_text thinking thinking_blocks encrypted_content signature "
    "extra_content thought_signature thoughtSignature"
)
NOT_CONTENT = frozenset(f"{_IDS} {_BOOKKEEPING} {_THOUGHT_FIELDS}".split())
"""Fields that are never shown. An unknown field is shown as JSON."""
MEDIA = frozenset(("attachments", "audio", "documents", "file", "files", "image", "images", "media", "video", "videos"))
"""Fields of a message that hold more than text."""


def field_text(key: str, value: Any) -> str:
    """`[name: "Alice"]`."""
    shown = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else plain_json(value, sort=True)
    return f"[{key}: {shown}]"


def is_bookkeeping(key: str, value: Any) -> bool:
    """Whether a field is left out: it holds an id, bookkeeping, thoughts, or nothing."""
    return key in NOT_CONTENT or is_empty(value) or (key == "status" and value in ("completed", "success"))


def is_empty(value: Any) -> bool:
    return value is None or value is False or (isinstance(value, str | list | dict) and not value)


_REASONING = frozenset({"thinking", "redacted_thinking", "reasoning", "reasoning_content", "summary_text"})
_TEXTS = frozenset({"text", "input_text", "output_text", "system", None})
_AS_JSON = frozenset({"search_result", "tool_reference", "resource_link"})
"""Blocks of text with a structure of their own."""
_ARGUMENTS = ("arguments", "input", "args")
"""Names of a call's arguments; the last is LangChain's."""
_IMAGES = frozenset({"image_url", "input_image", "image", "computer_screenshot"})

THOUGHT_NAMES = r"think(?:ing)?|thoughts?|reason(?:ing)?|scratch[_-]?pad|reflections?|monologue"
"""Names of the tags between which models think, perhaps after a prefix: <seed:think>, <inner_monologue>."""
_NAME = rf"(?:\w{{1,20}}[:_])?(?:{THOUGHT_NAMES})"
_OPENING_TAG = rf"<\s*[|]?(?!END_){_NAME}(?:\s[^<>=]{{0,80}}=[^<>]{{0,80}})?\s*[|]?>|\[THINK\]|◁think▷"
_CLOSING_TAG = rf"<\s*[|]?(?:/\s*|END_(?:OF_)?){_NAME}\s*[|]?>|\[/THINK\]|◁/think▷"
_BARE_FINAL = r"""(?<![`'"“‘«])assistant(?:final|commentary)(?![`'"”’»])"""
_THOUGHTS = (
    (_OPENING_TAG, _CLOSING_TAG),
    (
        r"(?:<[|]start[|]>assistant)?<[|]channel[|]>analysis<[|]message[|]>",
        r"<[|]end[|]>\s*(?:<[|]start[|]>assistant)?(?:<[|]channel[|]>final<[|]message[|]>)?",
    ),
    (r"<[|]channel>thought\b", r"<channel[|]>"),
    (rf"""<details\s(?:[^<>]{{0,200}}\s)?type=["']?(?:{THOUGHT_NAMES})\b[^<>]{{0,200}}>""", r"</details\s*>"),
    (rf"\A\s*(?-i:(?:assistant)?analysis)(?:(?-i:(?=[A-Z]))|(?=[\s\S]*?{_BARE_FINAL}))", _BARE_FINAL),
)
"""What opens and closes thoughts: tags whose name says so, gpt-oss's analysis channel, Gemma's thoughts, Open WebUI's
details, and gpt-oss's channel at the beginning of a turn whose special tokens were left out."""
_CLOSES = [re.compile(closes, re.IGNORECASE) for _, closes in _THOUGHTS]
_OPENED_AT_END = re.compile(rf"(?:{'|'.join(opens for opens, _ in _THOUGHTS)})\s*\Z", re.IGNORECASE)
_TURN = r"(?:(?:<[|]im_start[|]>assistant|<[|]start_header_id[|]>assistant<[|]end_header_id[|]>)\s*)?"
"""What a template puts before a turn, where it was logged with it."""
_LITERAL = rf"""
    ^[ \t>]*(?:(?:[-*+]|\d{{1,9}}[.)])[ \t]+)?(?P<fence>`{{3,}}|~{{3,}})[^\n]*
    (?:\n[\s\S]*?(?:^[ \t>]*(?P=fence)[`~]*[ \t]*$|\Z)|\Z)
    |(?<!`)(?P<ticks>`+)(?!`)[^\n]{{1,500}}?(?<!`)(?P=ticks)(?!`)
    |(?<!\w)"(?=\S)[^"\n]*(?<=\S)"(?!\w)|“[^“”\n]*”|„[^„“”\n]*[“”]|«[^«»\n]*»|「[^「」\n]*」
    |['‘](?:{_OPENING_TAG}|{_CLOSING_TAG})['’]
"""
"""A code block, code or a quotation, where a tag is only spoken of."""
_OPENS = "|".join(f"(?P<opens{family}>{_TURN}(?:{opens}))" for family, (opens, _) in enumerate(_THOUGHTS))
_TOKEN = re.compile(
    rf"(?P<literal>{_LITERAL})|(?P<closes>{_CLOSING_TAG})|{_OPENS}", re.IGNORECASE | re.MULTILINE | re.VERBOSE
)
_MAY_HOLD_THOUGHTS = re.compile(f"{THOUGHT_NAMES}|analysis", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Call:
    id: Any
    event: ToolCallEvent


@dataclass(frozen=True, slots=True)
class _Result:
    id: Any
    pieces: "tuple[_Piece, ...]"
    name: Any = None


_Piece = str | Attachment | _Call | _Result


def read_messages(messages: Iterable[Message], view: View) -> tuple[Event, ...]:
    """The events of a conversation, in order; a result stands with its call."""
    reader = _Reader(view)
    for message in messages:
        reader.read(message)
    return tuple(reader.events)


class _Reader:
    """The events of the messages so far."""

    def __init__(self, view: View) -> None:
        self.events: list[Event] = []
        self._view = view
        self._pending: dict[int, Any] = {}
        """Index in `events` of each call without a result -> the call's id."""
        self._in_calls = False
        """Whether the last item was a call of the Responses API: those that follow belong to the same turn."""

    def read(self, message: Message) -> None:
        message = from_gemini(message)
        kind = message.get("type")
        was_in_calls, self._in_calls = self._in_calls, False
        if not isinstance(kind, str) or kind == "message" or "content" in message:
            self._message(message)
        elif kind.endswith("_output"):
            self._add("tool", [self._item_result(message)])
        elif kind.endswith("_call"):
            self._in_calls = True
            self._add("assistant", self._item_call(kind, message), same_turn=was_in_calls)
        elif kind in _REASONING:
            self._in_calls = was_in_calls
        else:
            self._add("other", list(self._block(message)))

    def _message(self, message: Message) -> None:
        fields = dict(message)
        if isinstance(more := fields.get("provider_specific_fields"), dict):
            fields = {**cast("Message", more), **fields}
            del fields["provider_specific_fields"]
        role, content = fields.pop("role", None), fields.pop("content", None)
        if role in ("tool", "function"):
            name = fields.pop("name", None)
            pieces = [*self._contents(content, as_json=True), *self._other_fields(fields)]
            self._answer(_Result(message.get("tool_call_id"), tuple(pieces), name))
            return
        pieces = list(self._contents(content))
        if role == "assistant":
            pieces = _without_thoughts(pieces)
        if not isinstance(role, str) or role not in ROLES:
            pieces = [*([] if role is None else [field_text("role", role)]), *pieces]
            role = "other"
        pieces += self._other_fields(fields)
        self._add(role, pieces)

    def _other_fields(self, fields: Mapping[str, Any]) -> Iterator[_Piece]:
        """What a message holds beside its content, tool calls last."""
        calls: list[_Piece] = []
        for key, value in fields.items():
            if is_bookkeeping(key, value):
                continue
            match key:
                case "tool_calls":
                    calls += self._tool_calls(value)
                case "function_call":
                    calls += self._tool_calls([value])
                case "refusal" if isinstance(value, str):
                    yield value
                case "audio":
                    yield from _transcript(value)
                    yield from self._unseen("audio", value)
                case _ if key in MEDIA:
                    yield from self._unseen(key, value)
                case _:
                    yield field_text(key, value)
        yield from calls

    def _add(self, role: str, pieces: list[_Piece], *, same_turn: bool = False) -> None:
        """Adds the events of a message: a text up to each call or result, and one text at least."""
        if any(isinstance(piece, _Call) for piece in pieces) and not same_turn:
            self._pending = {}
        said: list[str | Attachment] = []
        acted = False
        for piece in pieces:
            if isinstance(piece, str | Attachment):
                said.append(piece)
                continue
            self._say(role, said)
            said, acted = [], True
            if isinstance(piece, _Result):
                self._answer(piece)
            else:
                event = replace(piece.event, same_turn=bool(self._pending))
                self._pending[len(self.events)] = piece.id
                self.events.append(event)
        if said or not acted:
            self._say(role, said, even_nothing=not acted)

    def _say(self, role: str, said: list[str | Attachment], *, even_nothing: bool = False) -> None:
        text, attachments = self._joined(said)
        if text or even_nothing:
            self.events.append(TextEvent(role, text, attachments))

    def _answer(self, result: _Result) -> None:
        """Puts a result beside the pending call that it answers; one without an id answers the first of its name, or
        else the first."""
        name = result.name
        loose: list[str | Attachment] = []
        nested: list[_Piece] = []
        for piece in result.pieces:
            (loose if isinstance(piece, str | Attachment) else nested).append(piece)  # pyright: ignore[reportArgumentType]
        for piece in nested:
            loose += cast("list[str | Attachment]", list(self._unseen("nested", repr(piece))))
        shown_name = "" if is_empty(name) else self._view.text(str(name))
        calls = {i: self.events[i] for i, pending in self._pending.items() if result.id in (None, pending)}
        of_name = [i for i, call in calls.items() if isinstance(call, ToolCallEvent) and call.name == shown_name]
        index = next(iter(of_name or calls), None)
        call = None if index is None else self.events[index]
        if shown_name and not of_name:
            loose.insert(0, field_text("name", name))
        text, attachments = self._joined(loose)
        if index is None or not isinstance(call, ToolCallEvent):
            self.events.append(TextEvent("tool", text, attachments))
            return
        del self._pending[index]
        self.events[index] = replace(call, result=text, attachments=(*call.attachments, *attachments))

    def _joined(self, said: Iterable[str | Attachment]) -> tuple[str, tuple[Attachment, ...]]:
        """The text with the tags of attachments in their places, and the attachments."""
        texts: list[str] = []
        attachments: list[Attachment] = []
        for piece in said:
            if isinstance(piece, str):
                text, media = self._view.text_and_media(piece)
                texts.append(text)
                attachments += media
            else:
                texts.append(f"[{piece.tag}]")
                attachments.append(piece)
        return "\n".join(filter(None, texts)), tuple(attachments)

    def _contents(self, content: Any, *, as_json: bool = False) -> Iterator[_Piece]:
        match content:
            case None | "":
                pass
            case str():
                yield plain_json(content) if as_json else content
            case list():
                for part in cast("list[Any]", content):
                    yield from self._part(part, as_json=as_json)
            case dict() if "type" in content:
                yield from self._part(content, as_json=as_json)
            case bytes() | bytearray():
                yield from self._unseen("bytes", repr(content))
            case _:
                yield plain_json(content)

    def _part(self, part: Any, *, as_json: bool = False) -> Iterator[_Piece]:
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict):
            pieces = self._block(cast("dict[str, Any]", part))
            yield from (plain_json(p) if as_json and isinstance(p, str) else p for p in pieces)
        else:
            yield plain_json(part)
            yield from self._unseen("part", part)

    def _block(self, block: Mapping[str, Any]) -> Iterator[_Piece]:
        """A content part or block of any API."""
        kind, text = block.get("type"), block.get("text")
        kind = kind if isinstance(kind, str) else None if kind is None else "block"
        used: set[str] = set()
        match kind:
            case _ if kind in _TEXTS and isinstance(text, str):
                used = {"text"}
                yield text
            case "text" if isinstance(text, dict) and "value" in text:
                used = {"text"}
                inner = cast("dict[str, Any]", text)
                yield plain_json(inner["value"])
                yield from self._rest(inner, {"value"})
            case "system" if "content" in block:
                used = {"content"}
                yield from self._contents(block["content"])
            case "refusal" if isinstance(block.get("refusal"), str):
                used = {"refusal"}
                yield block["refusal"]
            case _ if kind in _REASONING:
                return
            case _ if kind in _IMAGES:
                used = {"image_url", "source", "image", "data", "mimeType", "file_id", "detail"}
                yield from self._image(block)
            case "tool_use" | "server_tool_use" | "mcp_tool_use":
                used = {"name", "input"}
                yield from self._rest(block, used)
                arguments = plain_json(_or_empty(block.get("input")), sort=True)
                yield self._call(block.get("id"), block.get("name"), arguments)
                return
            case "tool_result" | "mcp_tool_result":
                used = {"content", "is_error", "name"}
                pieces = list(self._contents(block.get("content"), as_json=True))
                pieces += [field_text("is_error", True)] if block.get("is_error") else []
                pieces += self._rest(block, used)
                yield _Result(block.get("tool_use_id"), tuple(pieces), block.get("name"))
                return
            case str() if kind.endswith("_tool_result"):
                used = {"content"}
                shown = plain_json(block.get("content"))
                unseen = self._unseen(kind, block) if '"encrypted_' in shown else ()
                yield _Result(block.get("tool_use_id"), (shown, *unseen, *self._rest(block, used)))
                return
            case "document" if isinstance(found := _text_source(block.get("source")), str):
                used = {"source"}
                yield found
            case _ if kind in _AS_JSON:
                yield plain_json(block)
                return
            case _:
                used = {"text", *MEDIA, "input_audio", "video_url", "source", "data", "file_data", "file_id"}
                for holder in (block.get("input_audio"), block.get("audio"), block):
                    yield from _transcript(holder)
                if isinstance(text, str):
                    yield text
                yield from self._unseen(kind or "block", block)
        yield from self._rest(block, used)

    def _image(self, block: Mapping[str, Any]) -> Iterator[_Piece]:
        given = {key: block[key] for key in ("image_url", "source", "image", "data", "file_id") if block.get(key)}
        url: Any = None
        match given:
            case {"image_url": {"url": url, **rest}} if len(given) == 1:
                yield from self._rest(cast("dict[str, Any]", rest), {"detail", "format"})
            case {"image_url": url} | {"image": url} if len(given) == 1:
                pass
            case {"source": {"type": "base64", "media_type": str(kind), "data": str(data), **rest}} if len(given) == 1:
                url = f"data:{kind};base64,{data}"
                yield from self._rest(cast("dict[str, Any]", rest), ())
            case {"source": {"type": "url", "url": url, **rest}} if len(given) == 1:
                yield from self._rest(cast("dict[str, Any]", rest), ())
            case {"data": str(data)} if len(given) == 1:  # of the Model Context Protocol
                url = f"data:{block.get('mimeType')};base64,{data}"
            case _:
                url = None
        image = self._view.image(url)
        if image is None:
            yield from self._unseen("image_url", block)
        else:
            yield image

    def _tool_calls(self, calls: Any) -> Iterator[_Piece]:
        for call in cast("list[Any]", calls) if isinstance(calls, list) else [calls]:
            fields = cast("dict[str, Any]", call) if isinstance(call, dict) else {}
            body: Any = fields.get("function") or fields.get("custom") or fields
            if not isinstance(body, dict) or "name" not in body:
                yield plain_json(call)
                yield from self._unseen("tool_calls", call)
                continue
            inner = cast("dict[str, Any]", body)
            if body is not fields:
                yield from self._rest(fields, {"function" if fields.get("function") else "custom"})
            key = next((name for name in _ARGUMENTS if name in inner), "")
            yield from self._rest(inner, {"name", key})
            arguments = plain_json(_or_empty(inner.get(key)), sort=True)
            yield self._call(fields.get("id"), inner["name"], arguments)

    def _item_call(self, kind: str, item: Message) -> list[_Piece]:
        """A call of the Responses API; those of built-in tools have fields of their own, and some hold their result."""
        call_id = item.get("call_id", item.get("id"))
        if kind in ("function_call", "custom_tool_call", "mcp_call") and "name" in item:
            key = "arguments" if "arguments" in item else "input"
            results = {"output", "error"} if kind == "mcp_call" else set[str]()
            arguments = plain_json(_or_empty(item.get(key)), sort=True)
            pieces: list[_Piece] = list(self._rest(item, {"name", key, *results}))
            pieces.append(self._call(call_id, item["name"], arguments))
            contents = list(self._contents(item.get("output"), as_json=True)) if "output" in results else []
            if "error" in results and not is_empty(error := item.get("error")):
                contents.append(field_text("error", error))
            return [*pieces, _Result(call_id, tuple(contents))] if contents else pieces
        rest = {key: value for key, value in item.items() if not is_bookkeeping(key, value)}
        unseen = self._unseen(kind, item) if kind == "image_generation_call" else ()
        return [*unseen, self._call(call_id, kind, plain_json(rest, sort=True))]

    def _item_result(self, item: Message) -> _Result:
        output: Any = item.get("output")
        pieces = [*self._contents(output, as_json=True), *self._rest(item, {"output"})]
        return _Result(item.get("call_id"), tuple(pieces))

    def _call(self, call_id: Any, name: Any, arguments: str) -> _Call:
        shown = name if isinstance(name, str) else plain_json(_or_empty(name))
        text, media = self._view.text_and_media(arguments)
        return _Call(call_id, ToolCallEvent(self._view.text(shown), text, attachments=media))

    def _rest(self, fields: Mapping[str, Any], used: Iterable[str]) -> Iterator[str]:
        """The fields of a part that are neither used nor bookkeeping, as JSON."""
        for key, value in fields.items():
            if key not in used and not is_bookkeeping(key, value):
                yield field_text(key, value)

    def _unseen(self, kind: str, content: Any) -> Iterator[Attachment]:
        name = re.sub(r"[^\w.-]", "_", kind)[:40]
        yield Unseen(f"{name} {content_hash(plain_json(content, sort=True))}")


def _without_thoughts(pieces: Sequence[_Piece]) -> list[_Piece]:
    """A turn's content without its thoughts, wherever they stand, as if the server had taken them out.

    A template may open them in the prompt: a closing tag that nothing opened ends thoughts that began with the turn, or
    behind the last ones. Thoughts that never close leave nothing after them.
    """
    texts = [normal_form(piece) for piece in pieces if isinstance(piece, str)]
    whole = "\n".join(texts)
    if not _MAY_HOLD_THOUGHTS.search(whole) or not (thoughts := _find_thoughts(whole)):
        return list(pieces)
    kept: list[_Piece] = []
    start = 0
    for piece in pieces:
        if not isinstance(piece, str):
            kept.append(piece)
            continue
        text = texts.pop(0)
        end = start + len(text)
        inside = [(max(a, start) - start, min(b, end) - start) for a, b in thoughts if a < end and b > start]
        kept.append(_cut(text, inside) if inside else piece)
        start = end + 1
    return kept


def _find_thoughts(text: str) -> list[tuple[int, int]]:
    """Where thoughts begin and end, in order. An opening tag within a line that nothing closes is only spoken of."""
    thoughts: list[tuple[int, int]] = []
    position = after = 0
    while (found := _TOKEN.search(text, position)) is not None:
        position = found.end()
        if found["literal"] is not None:
            continue
        start = after
        if found["closes"] is None:
            family = next(n for n in range(len(_CLOSES)) if found[f"opens{n}"] is not None)
            closed = _CLOSES[family].search(text, position)
            start = found.start()
            if closed is None and text[max(after, text.rfind("\n", 0, start)) : start].strip():
                continue
            position = len(text) if closed is None else closed.end()
        after = position
        thoughts.append((start, position))
    return thoughts


def _cut(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """The text without the spans; of the blanks around one, the wider ones stay."""
    kept, blank, position = [""], "", 0
    for start, end in [*spans, (len(text), len(text))]:
        part = text[position:start]
        if position:
            before = part[: len(part) - len(part.lstrip())]
            blank = max(blank, before, key=lambda blank: (blank.count("\n"), len(blank)))
            part = part.lstrip()
        if part:
            kept += [blank if any(kept) else "", part.rstrip()]
            blank = part[len(part.rstrip()) :]
        position = end
    return "".join(kept) + blank


def opened_thoughts(prompt: str) -> str:
    """The tag that a prompt ends with, where its template opens the reply's thoughts; or an empty text."""
    found = _OPENED_AT_END.search(prompt)
    return found[0] if found else ""


def _or_empty(value: Any) -> Any:
    return "" if value is None else value


def _text_source(source: Any) -> str | None:
    """The text of a document of Anthropic's API."""
    match source:
        case {"type": "text", "data": str(text)} | {"type": "content", "content": str(text)}:
            return text
        case _:
            return None


def _transcript(audio: Any) -> Iterator[str]:
    match audio:
        case {"transcript": str(transcript)}:
            yield transcript
        case _:
            pass
