"""What an attempt shows of itself: its request, its calls and their results. All that written rules depend on."""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
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

    @property
    def calls(self) -> tuple[str, ...]:
        return tuple(call.name for call in self.made)

    def values_of(self, key: str) -> list[tuple[str, Any]]:
        """The places of a key in the last result that has it, such as `look_up.order.status`, and its values there.

        The key is the end of a place, in any spelling: `order_status` is also "Order Status". What stands in a list of
        several is `MANY`.
        """
        asked = [*map(_letters, key.split("."))]
        for call in reversed(self.made):
            places = _places(call.name, call.result)
            if found := [each for each in places if [*map(_letters, each[0][-len(asked) :])] == asked]:
                return [(".".join(re.sub(r"\W", "_", name) for name in path), value) for path, value in found]
        return []

    def results_of(self, tool: str) -> list[Any]:
        return [call.result for call in self.made if call.name == tool]

    @property
    def request(self) -> str:
        """Everything that the user said."""
        return "\n\n".join(each.text for each in self.heard)

    def before(self, act: CallMade) -> "Facts":
        """Without what was told after a call or beside it. Between conversations no order is known: all stays.

        A call replaces the one before it with the same arguments. The calls that share most arguments with it, of these
        the ones whose results tell most of its arguments, are the last, and of each tool the only ones."""

        def is_known(each: CallMade | UserText) -> bool:
            return each.conversation != act.conversation or each.turn < act.turn

        own = frozenset(texts_of(act.arguments))

        def kinship(call: CallMade) -> tuple[int, int]:
            told = readings_of("\n".join(texts_of(call.result)))
            tells = (any(readings_of(each)[0] in reading for reading in told) for each in own)
            return sum(map(own.__contains__, texts_of(call.arguments))), sum(tells)

        known = [*filter(is_known, self.made)]
        latest = {(call.name, json.dumps(call.arguments, sort_keys=True)): n for n, call in enumerate(known)}
        shared = sorted(((kinship(known[n]), known[n]) for n in sorted(latest.values())), key=itemgetter(0))
        most = {call.name: count for count, call in shared}
        made = tuple(call for count, call in shared if count == most[call.name])
        return replace(self, made=made, heard=tuple(filter(is_known, self.heard)))


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
                        made.append(CallMade(name, object_of(value_of(arguments)), result_of(result), turn, number))
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


@lru_cache(512)
def readings_of(text: str) -> tuple[str, ...]:
    """The words, numbers and marks of a text, each between line breaks, without case; a number in one spelling.

    `4.50` is 4.5, and `1,000` 1000. A sign belongs to its number; a hyphen between words or digits is none. In `16GB`
    the unit is a word of its own, as in `16 GB`, and the number ends with `GLUE`. What a mark between digits
    means may be open, as in `12,50`, in a row of CSV and in `10–20%`: there are readings where it separates.
    """
    written = unicodedata.normalize("NFKC", text.translate(_POWERS))
    plain, ends = (each.translate(STRAIGHT).casefold() for each in (written, _RANGE.sub(_ends, written)))
    texts = dict.fromkeys([plain, ends, _DECIMAL_COMMA.sub(r"\1, \2", _separated(ends))])
    return tuple(
        "".join(["\n", *(f"{_spelled(found)}\n" for found in _TOKEN.finditer(_apart(each)))]) for each in texts
    )


def _ends(found: re.Match[str]) -> str:
    """The two ends of a range, each with its sign. A hyphen between bare numbers may be an id's or a score's."""
    sign, low, dash, high, unit = found.groups()
    is_range = dash != "-" or sign or unit or ":" in low
    return f"{sign}{low}{unit} - {sign}{high}{unit}" if is_range else found[0]


def join_thousands(prose: str) -> str:
    """The thousands of a number together that stand apart by spaces or apostrophes, as they do in many languages."""
    return _THOUSANDS.sub(lambda number: re.sub(r"\D", "", number[0]), prose)


def _apart(text: str) -> str:
    """Scripts without case are written without spaces between words: each letter of theirs is a word."""
    return text if text.isascii() else "".join(f"\0{each}\0" if _is_uncased(each) else each for each in text)


def _is_uncased(word: str) -> bool:
    return len(word) == 1 and word.isalpha() and word.upper() == word


def _separated(text: str) -> str:
    """With spaces between the numbers of rows of CSV, where a comma is no mark of thousands. A row is a line with a
    field of text, or with as many fields as the row above it."""
    lines: list[str] = []
    columns = 0
    for line in text.splitlines():
        bare = re.sub(r'"[^"]*"', '""', line)
        count = len(re.findall(r",(?=\S)", bare))
        columns = count if count == columns or re.search(r"[^\d\s],\S|,[^\d\s]", bare) else 0
        lines.append(_NUMERIC_FIELDS.sub(lambda found: found[0].replace(",", ", "), line) if columns else line)
    return "\n".join(lines)


def _spelled(token: re.Match[str]) -> str:
    if not token["number"]:
        return f"{token[0]}{JOINT}" if token["joint"] else token[0].strip("\0")
    number = _NUMERAL.sub(_decimal, token["number"].replace(" ", ""))
    number = _UNIT.sub(f"{GLUE}\n", number)
    return f"-{number}" if token["sign"] and number.strip("0") else number


def _decimal(numeral: re.Match[str]) -> str:
    text = numeral[0]
    if numeral["power"]:
        text = f"{Decimal(text):f}"
    elif numeral["comma"]:
        text = text.replace(",", "")
    elif numeral["point"]:
        text = text.replace(".", "").replace(",", ".")
    text = f"0{text}" if text.startswith(".") else text
    return text.rstrip("0").rstrip(".") if text.count(".") == 1 else text


STRAIGHT = str.maketrans(
    {each: '"' for each in map(chr, range(0x3000)) if unicodedata.category(each) in ("Pi", "Pf")}
    | dict.fromkeys("„", '"')
    | dict.fromkeys("‘’‚‛", "'")
    | dict.fromkeys("‐‑‒–−", "-")
)
"""Quotes of any script, apostrophes and hyphens, as a keyboard types them."""
GLUE = "\x01"
"""Ends a number that a word follows without a space."""
JOINT = "\x02"
"""Ends a hyphen that makes one word of two: `non-refundable`."""
_UNIT = re.compile(r"(?<=\d)(?=[^\W\d_]+\Z)")
_POWERS = str.maketrans({power: f"^{digit}" for digit, power in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")})
_THOUSANDS = re.compile(
    r"(?<!\d )(?<![\w.,'’])\d{1,3}(?:(?:[ \u00a0\u2009\u202f]\d{3})+|(?:['’]\d{3})+)(?![\w,'’]| \d)"
)
_NUMERIC_FIELDS = re.compile(r"(?:^|(?<=,))[-+\d.,]+(?=,|\s*$)")
_DECIMAL_COMMA = re.compile(r"(?<![\d.,])(\d+),(\d{1,2})(?![.,]?\d)")
_RANGE = re.compile(
    r"(?<![\w.,:/‒–—-])(?P<sign>[$€£¥]?)(?P<low>\d[\d.,:]*)[%‰]?(?P<dash>[‒–—-])[$€£¥]?(?P<high>\d[\d.,:]*)(?P<unit>[%‰]?)"
    r"(?![\w/‒–—-])"
)
_NUMERAL = re.compile(
    r"(?<!\d,)(?:(?P<comma>\d{1,3}(?:,\d{3})+(?:\.\d+)?)"
    r"|(?P<point>\d{1,3}(?:\.\d{3})+,\d{1,2}|\d{1,3}(?:\.\d{3}){2,}|\d+,\d{1,2}))(?![.,]?\d)"
    r"|(?P<power>\d+(?:\.\d+)?e[-+]\d{1,3}(?!\w))|(?<![\w.])\.\d+|\d+(?:\.\d+)*"
)
"""With marks of thousands as English has them, or as other languages do; a power of ten; a decimal or version."""
_NUMBER = re.sub(r"\?P<\w+>", "?:", _NUMERAL.pattern)
MARKED = r"(?:[+#]{2,}|[+#](?!\w))"
"""Marks that belong to the word before them: `C++`, `F#`."""
_TOKEN = re.compile(
    r"(?!\d+-[^\W\d]{2,}(?!\w)|\d+e-\d{1,3}(?!\w))(?=\w+-\w)"
    r"(?=[\w-]{0,80}\d)(?=[\w-]{0,80}[^\W\d])\w+(?:-\w+)+(?:\.\d+(?!\w))*"  # `A-100`, not `30-day`
    r"|(?P<sign>(?<![\w)-])-[$€£¥]?(?=\.?\d))?"
    rf"(?P<number>(?:\d+ (?=\d+ ?/ ?\d))?(?:{_NUMBER})"
    # with all of a date, time, range or fraction
    rf"(?:(?:[:⁄'^×·-]|\}}\{{| ?/ ?)(?:{_NUMBER}))*\w*)"
    rf"|[^\W\d]\w*(?:{MARKED}|(?:\.\d+)*)|(?P<joint>(?<=[^\W\d_])-(?=[^\W\d_]))|[^\s\0]"
)


def words_of(reading: str) -> list[str]:
    """The words and numbers of a reading, without its marks; of a script without case, what stands together."""
    found: list[str] = []
    for is_uncased, tokens in groupby(reading.split("\n"), _is_uncased):
        words = [each for each in tokens if re.search(r"\w", each)]
        found += ["\n".join(words)] if is_uncased else words
    return found


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


MANY = object()
"""The value of a key in a list of several, of which it is not known which is meant."""


def _places(tool: str, result: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The path of each key of the objects in a result, from the tool's name, and its value. A list of one is that one;
    a text that is JSON, also fenced, is its value."""
    stack: list[tuple[tuple[str, ...], Any, bool]] = [((tool,), result, True)]
    while stack:
        path, part, is_one = stack.pop()
        part = result_of(part) if isinstance(part, str) else part
        items = cast("list[Any]", part) if isinstance(part, list) else []
        stack += [(path, each, is_one and len(items) == 1) for each in items]
        for key, value in object_of(part).items():
            yield (*path, key), value if is_one else MANY
            stack.append(((*path, key), value, is_one))


@lru_cache(4096)
def _letters(key: str) -> str:
    return re.sub(r"[\W_]", "", key).casefold()


def result_of(text: str) -> Any:
    """Of a text that is JSON the value, also in a code block or in blocks of a text each; else the text."""
    value = value_of(_FENCE.sub(r"\1", text.strip()))
    blocks = [object_of(each) for each in cast("list[Any]", value)] if isinstance(value, list) else []
    texts = [block["text"] for block in blocks if block.get("type") == "text" and isinstance(block.get("text"), str)]
    if not texts or len(texts) < len(blocks):
        return cast("Any", value)
    values = [*map(result_of, texts)]
    is_text = len(values) == 1 or any(isinstance(each, str) for each in values)
    return result_of("\n".join(texts)) if is_text else values


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
