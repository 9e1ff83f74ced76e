"""What an attempt shows of itself: its request, its calls and their results. All that written rules depend on."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from gavel.judge.prompt.canonical_group import Conversation
from gavel.judge.prompt.provider_formats import Event, TextEvent, ToolCallEvent, with_texts
from gavel.judge.prompt.sanitize import comparison_form


@dataclass(frozen=True, slots=True)
class CallMade:
    """A tool call that was answered without an error, by `_failed`."""

    name: str
    arguments: Mapping[str, Any]
    result: Any
    """Of JSON the value, else the text."""
    turn: int = 0
    """Calls of one turn are issued together: none of them knows another's result."""
    conversation: int = 0


@dataclass(frozen=True, slots=True)
class UserText:
    """What the user said after the calls of this turn."""

    text: str
    turn: int = 0
    conversation: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """What rules depend on in one attempt."""

    made: tuple[CallMade, ...] = ()
    """The calls that were answered without an error, in order."""
    failed: tuple[str, ...] = ()
    """Names of the tools whose call returned an error."""
    ending: str = ""
    """What the attempt ends with in place of a message to the user; empty where it ends with one."""
    heard: tuple[UserText, ...] = ()
    said: str = ""
    """Everything that the agent said to the user."""
    reference: str = ""
    unanswered: tuple[str, ...] = ()
    """Names of the tools whose call has no result."""
    written: frozenset[str] = frozenset()
    """Names that the agent's texts call, as they do where a server has no parser for its model's calls."""
    about: frozenset[str] = frozenset()
    """The arguments of the call that a condition is about."""

    @property
    def calls(self) -> tuple[str, ...]:
        return tuple(call.name for call in self.made)

    @property
    def known(self) -> dict[str, Any]:
        """Keys and values of the JSON objects that tools returned; a later value replaces an earlier one.

        A key of the outermost object stands before those within it, and what a call with arguments of `about` told
        before what others did.
        """
        outer: dict[str, Any] = {}
        inner: dict[str, Any] = {}
        for call in sorted(self.made, key=lambda call: sum(text in self.about for text in texts_of(call.arguments))):
            outer |= object_of(call.result)
            inner |= _keys_within(call.result)
        return inner | outer

    @property
    def request(self) -> str:
        """Everything that the user said."""
        return "\n\n".join(each.text for each in self.heard)

    def before(self, act: CallMade) -> "Facts":
        """Without what was told after a call or beside it. Between conversations no order is known: all stays."""

        def is_known(each: CallMade | UserText) -> bool:
            return each.conversation != act.conversation or each.turn < act.turn

        made, heard = tuple(filter(is_known, self.made)), tuple(filter(is_known, self.heard))
        return replace(self, made=made, heard=heard, about=frozenset(texts_of(act.arguments)))


def facts_of(attempt: Sequence[Conversation], reference: str = "") -> Facts:
    """The facts of an attempt as `read_transcripts` gives it: in full, the main conversation first.

    Texts are in the form by which attempts are equal, so equal attempts have equal facts.
    """
    attempt = [
        replace(each, events=tuple(with_texts(event, comparison_form) for event in each.events)) for each in attempt
    ]
    made: list[CallMade] = []
    failed: list[str] = []
    unanswered: list[str] = []
    heard: list[UserText] = []
    turn = 0
    for number, conversation in enumerate(attempt):
        for event in conversation.events:
            match event:
                case TextEvent("user", text):
                    heard.append(UserText(text, turn, number))
                case ToolCallEvent(name, arguments, result):
                    turn += not event.same_turn
                    if result is None:
                        unanswered.append(name)
                    elif _failed(result):
                        failed.append(name)
                    else:
                        made.append(CallMade(name, object_of(value_of(arguments)), value_of(result), turn, number))
                case _:
                    pass
    return Facts(
        made=tuple(made),
        failed=tuple(failed),
        ending=_ending(attempt[0].events),
        heard=tuple(heard),
        said="\n\n".join(
            event.text
            for conversation in attempt
            for event in conversation.events
            if isinstance(event, TextEvent) and event.role == "assistant"
        ),
        reference=reference,
        unanswered=tuple(unanswered),
        written=frozenset(
            name
            for conversation in attempt
            for event in conversation.events
            if isinstance(event, TextEvent) and event.role == "assistant"
            for names in _WRITTEN.findall(event.text)
            for name in names
            if name
        ),
    )


_FLAG = re.compile(r"(?:^|\n)\[(\w+): (.*)\]\Z")
"""A field beside the content of a tool's message, as a transcript shows it behind the content."""


def _failed(result: str) -> bool:
    """Whether a result is flagged as an error by its protocol, or its content says so."""
    while flag := _FLAG.search(result):
        if _says_failure({flag[1]: value_of(flag[2])}):
            return True
        result = result[: flag.start()]
    content = value_of(result)
    parts = cast("list[Any]", content) if isinstance(content, list) else []
    if parts and all("type" in object_of(part) for part in parts):
        return any(_failed(str(part["text"])) for part in parts if part.get("text"))
    if isinstance(content, str):
        return re.match(r"\s*(?:error|traceback)\b", content, re.IGNORECASE) is not None
    return _says_failure(object_of(content))


def _says_failure(fields: Mapping[str, Any]) -> bool:
    return (
        any(
            fields.get(key) not in (None, False, 0, "", "false", [], {})
            for key in ("error", "errors", "isError", "is_error")
        )
        or any(fields.get(key) in (False, "false") for key in ("success", "ok"))
        or fields.get("status") == "error"
    )


def tools_named(conversations: Iterable[Conversation]) -> tuple[frozenset[str], frozenset[str]]:
    """The names of the tools that conversations declare, and of those that they call."""
    declared: set[str] = set()
    called: set[str] = set()
    for conversation in conversations:
        declared |= {_tool_name(tool) for tool in conversation.tools or ()}
        called |= {event.name for event in conversation.events if isinstance(event, ToolCallEvent)}
    return frozenset(declared), frozenset(called)


_WRITTEN = re.compile(
    r"""["']name["']\s*:\s*["']([\w.-]+)|<function=([\w.-]+)|name=["']([\w.-]+)["']>|\bAction:\s*([\w.-]+)"""
    r"""|^\W*([\w.]+)\(.*\)\W*$""",
    re.MULTILINE,
)
"""A call within a text: JSON, XML in two forms, ReAct, a line that is a call in Python."""


def _tool_name(shown: str) -> str:
    """Of a tool's line in a transcript: `refund(id: string): …`, or JSON of a tool that the server runs itself."""
    tool = object_of(value_of(shown))
    return str(tool.get("name") or tool.get("type")) if tool else shown.partition("(")[0]


def _ending(events: Sequence[Event]) -> str:
    match events[-1] if events else None:
        case TextEvent("assistant", text):
            return "" if text.strip() else "its last message is empty"
        case ToolCallEvent(name):
            return f"it ends with a call of {name}"
        case _:
            return "it says nothing at the end"


def words_of(value: Any) -> list[str]:
    """The words and numbers of a text; of another JSON value, those of all values in it, but not of keys.

    `-45` is two, "-45" and "45", so that 45 is found in it (it may be an item of a list), and it is not found in 45.
    """
    found: list[str] = []
    for match in (match for text in texts_of(value) for match in _WORD.finditer(text)):
        word = _plain_number(match["word"])
        found += [f"-{word}", word] if match["minus"] else [word]
    return found


_DECIMAL = r"\d+(?:[.,]\d+)+"
_PLAIN_WORD = r"(?:\d+(?=-[a-z]{2})|\w+(?:-\w+)*)"
"""`A-100` is one word, whose parts name something else; of `30-day` the number is one."""
_WORD = re.compile(rf"(?P<minus>(?<![^\s(\"'$€£:=,])[-−](?=\d))?(?P<word>{_DECIMAL}(?!\w)|{_PLAIN_WORD})")


def _plain_number(word: str) -> str:
    """`45.50` as 45.5, `1,045.50` and `1.045,50` as 1045.5; any other word as it is."""
    if not re.fullmatch(_DECIMAL, word):
        return word
    marks, decimal = re.findall(r"[.,]", word), max(word.rfind("."), word.rfind(","))
    if len(set(marks)) == 1 and (len(marks) > 1 or (marks == [","] and len(word) - decimal == 4)):
        return re.sub(r"[.,]", "", word)  # thousands
    whole, part = re.sub(r"[.,]", "", word[:decimal]), word[decimal + 1 :].rstrip("0")
    return f"{whole}.{part}" if part else whole


def texts_of(value: Any) -> Iterator[str]:
    """A text; of another JSON value, the texts of all values in it."""
    stack: list[Any] = [value]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            stack += reversed(list(object_of(part).values()))
        elif isinstance(part, list):
            stack += reversed(cast("list[Any]", part))
        elif part is not None:
            yield str(part)


def _keys_within(value: Any) -> dict[str, Any]:
    """The keys of the objects within a JSON value and their values, an outer one before an inner one; not those that
    objects beside each other have otherwise. A list of one is that one; a text that is JSON, also fenced, is its value.
    """
    found: dict[str, Any] = {}
    differ: set[str] = set()
    level: list[Any] = [value]
    while level:
        objects = [fields for each in level if (fields := object_of(_opened(each)))]
        for key in {key for fields in objects for key in fields} - found.keys() - differ:
            values = [fields[key] for fields in objects if key in fields]
            if all(each == values[0] for each in values):
                found[key] = values[0]
            else:
                differ.add(key)
        level = [each for fields in objects for each in fields.values()]
    return found


def _opened(value: Any) -> Any:
    while True:
        items = cast("list[Any]", value) if isinstance(value, list) else []
        inner: Any = value_of(_FENCE.sub(r"\1", value)) if isinstance(value, str) else None
        if len(items) == 1:
            value = items[0]
        elif isinstance(inner, dict | list):
            value = cast("Any", inner)
        else:
            return cast("Any", value)


_FENCE = re.compile(r"\A\s*```\w*\n(.*)\n```\s*\Z", re.DOTALL)


def value_of(text: str | None) -> Any:
    """Of a text that is JSON, else the text."""
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return text


def object_of(value: Any) -> dict[str, Any]:
    """The value if it is a JSON object, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
