"""Messages -> events: texts, tool calls with their results, and what stands beside them.

    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}      ToolCallEvent("f", "{}")

Messages of other providers are read as OpenAI's (`scenarios.formats.chat`), so equal attempts have equal events.
Whatever is in a message is in the text of an event. What is not text leaves its tag there, `[image_url 3f2a…]`, and is
an attachment. Left out are only ids and bookkeeping (`NOT_CONTENT`) and reasoning, also where it stands in tags in an
assistant's content. Malformed content is no error: it is shown as JSON, and is unseen content.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, cast

from gavel.judge.errors import JudgeError
from gavel.judge.prompt.sanitize import Redact, decode_base64, describe_base64, normal_form
from gavel.llm.providers import ImageSupport
from gavel.llm.types import Message
from gavel.prompts import content_hash
from gavel.scenarios.formats.chat import MEDIA, as_chat, is_bookkeeping, is_empty
from gavel.scenarios.formats.row import is_list, is_object
from gavel.scenarios.formats.text import is_rendered

ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Image:
    """An image that the judge is sent."""

    tag: str
    """`image_url` and a hash of its bytes, or of its address."""
    url: str
    """A data URL, or an address that the server of the judge model fetches."""


@dataclass(frozen=True, slots=True)
class Unseen:
    """Content that the judge is not shown: audio, a file, an unknown block, an image for a judge that sees none."""

    tag: str
    """Its type and a hash: attempts with different content stay different."""


Attachment = Image | Unseen


@dataclass(frozen=True, slots=True)
class TextEvent:
    """A message. `role` is one of `ROLES`, or "other"."""

    role: str
    text: str
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallEvent:
    """A tool call by the agent, with its result (None = there is none)."""

    name: str
    arguments: str
    result: str | None = None
    attachments: tuple[Attachment, ...] = ()
    """Attachments of the arguments, then of the result."""
    same_turn: bool = False
    """Whether it was issued beside a call before it, whose result the agent had not seen."""


Event = TextEvent | ToolCallEvent


def turn_starts(events: Iterable[Event]) -> list[int]:
    """Indices of the events with which the agent's turns begin; a turn is one message with the calls beside it."""
    found: list[int] = []
    has_said = False
    for at, event in enumerate(events):
        is_call = isinstance(event, ToolCallEvent)
        if not event.same_turn and not has_said if is_call else event.role == "assistant":
            found.append(at)
        has_said = not is_call and event.role == "assistant"
    return found


def event_texts(events: Iterable[Event]) -> Iterable[str]:
    """All text of the events, in order. The tags of attachments are in it."""
    for event in events:
        match event:
            case TextEvent(_, text):
                yield text
            case ToolCallEvent(name, arguments, result):
                yield from (name, arguments, result or "")


def with_texts(event: Event, change: Callable[[str], str]) -> Event:
    """The event with every text of it changed."""
    match event:
        case TextEvent(_, text):
            return replace(event, text=change(text))
        case ToolCallEvent(name, arguments, result):
            result = None if result is None else change(result)
            return replace(event, name=change(name), arguments=change(arguments), result=result)


def unseen_content(events: Iterable[Event]) -> Sequence[Unseen]:
    """Content of the events that the judge is not shown, in order."""
    return [each for event in events for each in event.attachments if isinstance(each, Unseen)]


def images_of(events: Iterable[Event]) -> Sequence[Image]:
    """The images of the events, in order."""
    return [each for event in events for each in event.attachments if isinstance(each, Image)]


@dataclass(frozen=True)
class View:
    """Rules for showing content. One view serves one group: it processes each distinct text once."""

    images: ImageSupport = "none"
    """Which images all judge models can be sent."""
    redact: Redact | None = None
    _texts: dict[str, tuple[str, tuple[Unseen, ...]]] = field(default_factory=dict[str, Any], repr=False, compare=False)

    def text(self, text: str) -> str:
        """The text with base64 described, redacted, and in its normal form: what is shown alike is equal.

        Raises `JudgeError` when the redaction fails.
        """
        return self.text_and_media(text)[0]

    def text_and_media(self, text: str) -> tuple[str, tuple[Unseen, ...]]:
        """The same, and the images, sounds, videos and PDFs that base64 in it held."""
        if text not in self._texts:
            described, media = describe_base64(text)
            self._texts[text] = normal_form(self._redacted(described)).rstrip().lstrip("\n"), tuple(map(Unseen, media))
        return self._texts[text]

    def image(self, url: Any) -> Attachment | None:
        """The image of a data URL or an address; None for anything else."""
        if not isinstance(url, str):
            return None
        if url.startswith(("https://", "http://")):
            tag = f"image_url {content_hash(url)}"
            return Image(tag, url) if self.images == "any" and self._redacted(url) == url else Unseen(tag)
        kind, marker, body = url.partition(";base64,")
        letters = "".join(body.split())
        if not kind.startswith("data:image/") or not marker or not letters:
            return None
        try:
            data = decode_base64(letters)
        except ValueError:
            return None
        same = letters.rstrip("=")
        tag = f"image_url {content_hash(f'{kind} {same}')}"
        return Image(tag, f"{kind};base64,{letters}") if data and self.images != "none" else Unseen(tag)

    def _redacted(self, text: str) -> str:
        if self.redact is None:
            return text
        try:
            redacted = cast("Any", self.redact(text))
        except Exception as error:  # the user's function: whatever it raises, the text must not leave
            raise JudgeError(
                f"redact failed: {type(error).__name__}: {error}; nothing was sent.",
                "Mend the function given as redact=.",
            ) from error
        if not isinstance(redacted, str):
            raise JudgeError(f"redact returned {type(redacted).__name__}, not a text; nothing was sent.")
        return redacted


_AS_JSON = ("search_result", "tool_reference", "resource_link", "_result", "_result_error")
"""Ends of the types of blocks that are text with a structure of their own."""
_FILE_FIELDS = frozenset((*MEDIA, "text", "input_audio", "video_url", "source", "data", "file_data", "file_id"))


THOUGHT_NAMES = r"think(?:ing)?|thoughts?|reason(?:ing)?|scratch[_-]?pad|reflections?|monologue"
"""Names of the tags between which models think, perhaps after another word: <seed:think>, <inner_monologue>,
<antThinking>."""
_NAME = rf"(?:\w{{1,20}}(?:[:_]|(?-i:(?<=[a-z])(?=[A-Z]))))?(?:{THOUGHT_NAMES})"
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
"""Opening and closing marks of thoughts: tags whose name says so, gpt-oss's analysis channel, Gemma's thoughts, Open
WebUI's details, and gpt-oss's channel at the beginning of a turn whose special tokens were left out."""
_OPENED_AT_END = re.compile(rf"(?:{'|'.join(opens for opens, _ in _THOUGHTS)})\s*\Z", re.IGNORECASE)
_TAG_ENDS = {">", "]", "▷", "t"}
"""Last characters of what opens thoughts."""
_LED = re.compile(r"(?:^|\s)[A-Z]\w{0,20}:\s*\Z")
"""What leads into a reply in a text prompt: `A:`."""
_TURN = r"(?:(?:<[|]im_start[|]>assistant|<[|]start_header_id[|]>assistant<[|]end_header_id[|]>)\s*)?"
"""Header that a template puts before a turn, where it was logged with it."""
_LITERAL = rf"""
    ^[ \t>]*(?:(?:[-*+]|\d{{1,9}}[.)])[ \t]+)?(?P<fence>`{{3,}}|~{{3,}})[^\n]*
    (?:\n[\s\S]*?(?:^[ \t>]*(?P=fence)[`~]*[ \t]*$|\Z)|\Z)
    |(?<!`)(?P<ticks>`+)(?!`)[^\n]{{1,500}}?(?<!`)(?P=ticks)(?!`)
    |(?<!\w)"(?=\S)[^"\n]*(?<=\S)"(?!\w)|“[^“”\n]*”|„[^„“”\n]*[“”]|«[^«»\n]*»|「[^「」\n]*」
    |['‘](?:{_OPENING_TAG}|{_CLOSING_TAG})['’]
"""
"""A code block, code or a quotation, where a tag is only spoken of."""
_CLOSES = [
    re.compile(rf"(?P<literal>{_LITERAL})|(?P<closes>{closes})", re.IGNORECASE | re.MULTILINE | re.VERBOSE)
    for _, closes in _THOUGHTS
]
_CLOSES_ANYWHERE = [re.compile(closes, re.IGNORECASE) for _, closes in _THOUGHTS]
_OPENS = "|".join(f"(?P<opens{family}>{_TURN}(?:{opens}))" for family, (opens, _) in enumerate(_THOUGHTS))
_TOKEN = re.compile(
    rf"(?P<literal>{_LITERAL})|(?P<closes>{_CLOSING_TAG})|{_OPENS}", re.IGNORECASE | re.MULTILINE | re.VERBOSE
)
_STEMS = ("think", "thought", "reason", "scratch", "reflection", "monologue", "analysis")
"""What all marks of thoughts hold."""


def _may_hold_thoughts(text: str) -> bool:
    lowered = text.lower()
    return any(stem in lowered for stem in _STEMS)


_Piece = str | Attachment


def read_messages(messages: Iterable[Message], view: View) -> tuple[Event, ...]:
    """The events of a conversation, in order; a result stands with its call."""
    reader = _Reader(view)
    for message in as_chat(list(messages)):
        reader.read(message)
    return tuple(reader.events)


class _Reader:
    """The events of the chat messages so far."""

    def __init__(self, view: View) -> None:
        self.events: list[Event] = []
        self._view = view
        self._pending: list[tuple[Any, int]] = []
        """The id of each call of the last turn without a result, and its index in `events`."""
        self._opened = ""
        """The tag by which the message before, a rendered prompt or an answer's beginning, opens thoughts."""

    def read(self, message: Message) -> None:
        fields = dict(message)
        if is_object(more := fields.get("provider_specific_fields")):
            fields = {**more, **fields}
            del fields["provider_specific_fields"]
        role, content = fields.pop("role", None), fields.pop("content", None)
        if role in ("tool", "function"):
            return self._answer(message.get("tool_call_id"), fields.pop("name", None), content, fields)
        if role is None and content is None and isinstance(fields.get("type"), str):
            return self._say("other", list(self._block(fields)))
        if role not in ROLES and isinstance(role, str) and re.fullmatch(THOUGHT_NAMES, role.lower()):
            return None
        made, pieces = fields.pop("tool_calls", None), self._contents(content)
        opened, self._opened = self._opened, ""
        if isinstance(content, str) and role in ("assistant", "user"):
            self._opened = opened_thoughts(content) if role == "assistant" else _opens_reply(content)
        for at, piece in enumerate(pieces) if role == "assistant" else ():
            if isinstance(piece, str):
                pieces[at], opened = without_thoughts(opened + piece)
        if role not in ROLES:
            pieces = [*([] if role is None else [field_text("role", role)]), *pieces]
            role = "other"
        pieces += _fields(fields)
        calls: list[tuple[Any, ToolCallEvent]] = []
        for call in made if is_list(made) else [] if is_empty(made) else [made]:
            pieces += self._call(call, calls)
        if pieces or not calls:
            self._say(role, pieces, even_nothing=not calls)
        if calls:
            self._pending = [(call_id, index) for index, (call_id, _) in enumerate(calls, len(self.events))]
            self.events += [call for _, call in calls]

    def _call(self, call: Any, calls: list[tuple[Any, ToolCallEvent]]) -> Iterable[_Piece]:
        """Adds the call with its id to `calls`; returns what stands beside it, or a malformed one."""
        fields = call if is_object(call) else {}
        key = "function" if fields.get("function") else "custom"
        body = fields.get(key)
        if not is_object(body) or "name" not in body:
            return plain_json(call), _unseen("tool_calls", call)
        given = "arguments" if "arguments" in body else "input"
        text, media = self._view.text_and_media(plain_json(body.get(given) or "", sort=True))
        name = body["name"] or ""
        name = self._view.text(name if isinstance(name, str) else plain_json(name))
        calls.append((fields.get("id"), ToolCallEvent(name, text, attachments=media, same_turn=bool(calls))))
        return *_rest(fields, key), *_rest(body, "name", given)

    def _say(self, role: str, pieces: Sequence[_Piece], *, even_nothing: bool = True) -> None:
        text, attachments = self._joined(pieces)
        if text or even_nothing:
            self.events.append(TextEvent(role, text, attachments))

    def _answer(self, call_id: Any, name: Any, content: Any, fields: Mapping[str, Any]) -> None:
        """Puts a result beside the pending call that it answers."""
        found = next((each for each in self._pending if each[0] == call_id), None)
        call = None if found is None else cast("ToolCallEvent", self.events[found[1]])
        pieces = [plain_json(each) if isinstance(each, str) else each for each in self._contents(content)]
        if not is_empty(name) and (shown := self._view.text(str(name))) and (call is None or call.name != shown):
            pieces.insert(0, field_text("name", name))
        text, attachments = self._joined([*pieces, *_fields(fields)])
        if found is None or call is None:
            self.events.append(TextEvent("tool", text, attachments))
            return
        self._pending.remove(found)
        self.events[found[1]] = replace(call, result=text, attachments=(*call.attachments, *attachments))

    def _joined(self, pieces: Sequence[_Piece]) -> tuple[str, tuple[Attachment, ...]]:
        """The text with the tags of attachments in their places, and the attachments."""
        texts: list[str] = []
        attachments: list[Attachment] = []
        for piece in pieces:
            text, found = self._view.text_and_media(piece) if isinstance(piece, str) else (f"[{piece.tag}]", (piece,))
            texts += [text] if text else []
            attachments += found
        return "\n".join(texts), tuple(attachments)

    def _contents(self, content: Any) -> list[_Piece]:
        match content:
            case str():
                return [content] if content else []
            case None:
                return []
            case bytes() | bytearray():
                return [_unseen("bytes", repr(content))]
            case list() | {"type": _}:
                parts = cast("list[Any]", content) if isinstance(content, list) else [content]
                return [piece for part in parts for piece in self._block(part)]
            case _:
                return [plain_json(content)]

    def _block(self, block: Any) -> Iterator[_Piece]:
        """A content part of any API."""
        if not is_object(block):
            yield from [block] if isinstance(block, str) else [plain_json(block), _unseen("part", block)]
            return
        kind, text = block.get("type"), block.get("text")
        used: Iterable[str] = ()
        match kind:
            case None | "text" | "input_text" | "output_text" | "system" if isinstance(text, str):
                used = ("text",)
                yield text
            case "text" if is_object(text, "value"):
                used = ("text",)
                yield plain_json(text["value"])
                yield from _rest(text, "value")
            case "system" if "content" in block:
                used = ("content",)
                yield from self._contents(block["content"])
            case "refusal" if isinstance(refusal := block.get("refusal"), str):
                used = ("refusal",)
                yield refusal
            case "thinking" | "redacted_thinking" | "reasoning" | "reasoning_content" | "summary_text":
                return
            case "image_url" if given := block.get("image_url"):
                used = ("image_url", "detail")
                image = given if is_object(given, "url") else {"url": given}
                yield from _rest(image, "url", "detail", "format")
                yield self._view.image(image["url"]) or _unseen("image_url", block)
            case "document" if is_object(source := block.get("source")) and source.get("type") in ("text", "content"):
                used = ("source",)
                yield plain_json(source.get("data", source.get("content")))
            case str() if kind.endswith(_AS_JSON):
                yield (shown := plain_json(block))
                if '"encrypted_' in shown:
                    yield _unseen(kind, block)
                return
            case _:
                used = _FILE_FIELDS
                for holder in (block.get("input_audio"), block.get("audio"), block):
                    yield from _transcript(holder)
                if isinstance(text, str):
                    yield text
                yield _unseen(kind if isinstance(kind, str) and kind else "block", block)
        yield from _rest(block, *used)


def _fields(fields: Mapping[str, Any]) -> Iterator[_Piece]:
    """Fields of a message beside its content and its calls."""
    for key, value in fields.items():
        if is_bookkeeping(key, value):
            continue
        if key == "refusal" and isinstance(value, str):
            yield value
        elif key in MEDIA:
            yield from _transcript(value)
            yield _unseen(key, value)
        else:
            yield field_text(key, value)


def _rest(fields: Mapping[str, Any], *used: str) -> Iterator[str]:
    """The fields of a part that are neither used nor bookkeeping, as JSON."""
    return (
        field_text(key, value) for key, value in fields.items() if key not in used and not is_bookkeeping(key, value)
    )


def _unseen(kind: str, content: Any) -> Unseen:
    name = re.sub(r"[^\w.-]", "_", kind)[:40]
    return Unseen(f"{name} {content_hash(plain_json(content, sort=True))}")


def field_text(key: str, value: Any) -> str:
    """`[name: "Alice"]`."""
    shown = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else plain_json(value, sort=True)
    return f"[{key}: {shown}]"


def _transcript(audio: Any) -> Iterator[str]:
    if is_object(audio, "transcript") and isinstance(audio["transcript"], str):
        yield audio["transcript"]


_ALWAYS_EXACT = 16
"""Characters with a point among them, of which a float holds every digit."""


def plain_json(value: Any, *, sort: bool = False) -> str:
    """The value as compact JSON without escapes. A text stays as it is unless it is a JSON object or array.

    JSON that a Python value cannot hold without loss (a name twice in an object, a number of too many digits) stays.
    """
    if isinstance(value, str) and not value.lstrip().startswith(("{", "[")):
        return value
    try:
        parsed = _DECODER.decode(value) if isinstance(value, str) else value
        return _ENCODERS[sort].encode(parsed)
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        return str(value)


def _without_loss(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a name occurs twice")
    return fields


def _exact(digits: str) -> float:
    value = float(digits)
    if len(digits) <= _ALWAYS_EXACT and "e" not in digits and "E" not in digits:
        return value
    if Decimal(digits) != Decimal(repr(value)):
        raise ValueError("a number has too many digits")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_without_loss, parse_float=_exact)
_ENCODERS = {
    sort: json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=sort, default=str)
    for sort in (False, True)
}


def without_thoughts(text: str) -> tuple[str, str]:
    """An agent's text without its thoughts, wherever they stand, and the mark of those that it leaves open.

    A template may open them in the prompt: a closing tag that nothing opened ends thoughts that began with the turn, or
    behind the last ones. An unclosed opening tag within a line is only spoken of.
    """
    if not _may_hold_thoughts(text):
        return text, ""
    text, kept, opened, position, after = normal_form(text), "", "", 0, 0
    while (found := _TOKEN.search(text, position)) is not None:
        position = found.end()
        if found["literal"] is not None:
            continue
        start = after
        if found["closes"] is None:
            family = next(n for n in range(len(_CLOSES)) if found[f"opens{n}"] is not None)
            closed = _closing(family, text, position)
            start = found.start()
            if closed is None and text[max(after, text.rfind("\n", 0, start)) : start].strip():
                continue
            opened, position = ("", closed.end()) if closed else (found[0], len(text))
        kept, after = _join(kept, text[after:start]), position
    return (_join(kept, text[after:]) if after else text), opened


def _closing(family: int, text: str, position: int) -> re.Match[str] | None:
    """The match that closes opened thoughts: a tag outside of code and quotations.

    Without one, at the first within the last literal that holds one: thoughts may end in the middle of a code block.
    Within a line's code it is only spoken of where what follows on the line would lack the mark that closes the code.
    """
    spoken: re.Match[str] | None = None
    for found in _CLOSES[family].finditer(text, position):
        if found["literal"] is None:
            return found
        within = _CLOSES_ANYWHERE[family].search(text, *found.span())
        if within is not None and (marks := found["ticks"]) is not None:
            rest = text[within.end() :].partition("\n")[0]
            within = None if rest.count(marks) % 2 else within
        spoken = within or spoken
    return spoken


def _join(one: str, other: str) -> str:
    """Two texts between which thoughts stood; of the blanks around them, the wider ones stay."""
    if not one or not other.strip():
        return other.lstrip() or one
    blanks = one[len(one.rstrip()) :], other[: len(other) - len(other.lstrip())]
    return one.rstrip() + max(blanks, key=lambda blank: (blank.count("\n"), len(blank))) + other.lstrip()


def _opens_reply(prompt: str) -> str:
    """The same for a prompt that ends within the reply: as a template renders it, or behind `A:`."""
    opened = opened_thoughts(prompt)
    return opened if opened and (is_rendered(prompt) or _LED.search(prompt[: -len(opened)])) else ""


def opened_thoughts(prompt: str) -> str:
    """The tag that a prompt ends with, where its template opens the reply's thoughts; or an empty text."""
    if prompt.rstrip()[-1:].lower() not in _TAG_ENDS or not _may_hold_thoughts(prompt):
        return ""
    found = _OPENED_AT_END.search(prompt)
    return found[0] if found else ""
