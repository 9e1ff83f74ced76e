"""Reads JSON as models write it: finds every outermost object and array in a text, and repairs its syntax.

    find_values("Sure: {'score': 0.5,}")
    -> Found({"score": 0.5}, repairs={"quotes": 2, "comma": 1}, start=6, end=21), Found(None, repairs={"prose": 1})

Each repair is counted, and nothing is completed: a truncated value is `Broken`. The library json_repair (0.64.5)
invents numbers even with `strict=True`: it reads `"score": 0.` (cut off) as 0.0, `09` as 9, `0.9%` as 0.9, and keeps
the last value of a repeated key.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from gavel.judge.reply.thoughts import MARK, MARK_BEGINS, Mark, end_of_thoughts, read_mark

_T = TypeVar("_T")
_MAX_DEPTH = 64
_MAX_VALUES = 300
"""Objects and arrays in one text; one with more is no reply, and reading it would take long."""
_MAX_MARKS = 3_000
"""Tags and fences outside thoughts."""
_BLANK = r"[\s\ufeff\u200b-\u200d\u2060]"

_LANDMARK = re.compile(rf"(?={MARK_BEGINS}|[{{\[])(?:{MARK}|[{{\[])", re.IGNORECASE)
_PROSE_BRACES = re.compile(r"""\{[^{}\[\]"':,“”]{0,200}\}""")
_ESCAPED = re.compile(r'(?=[{\[](?:\s|\\[nrt]|[{\[]){0,40}\\{1,16}")(?:[^"\\]|\\.)*', re.DOTALL)
_TRUNCATED_END = re.compile(rf"(?:[<＜◁【〔⟨][^>＞▷】〕⟩\n]{{0,40}}|:){_BLANK}*\Z")
"""The end of a truncated reply: an unfinished tag, or a colon."""
_AFTER_A_KEY = re.compile(r"""["'”’]\s*:\s*\Z""")

_JSON = Mark("text", "json")
"""An opening bracket."""

_SPACE = re.compile(rf"{_BLANK}*")
_COMMENT = re.compile(r"/\*.*?\*/|(?://|#)[^\n]*", re.DOTALL)
_SHORT_COMMENT = re.compile(r"""/\*.*?\*/|(?://|#).*?(?=\n|[}\]]|,\s*[{\["'“”‘’])""", re.DOTALL)
_QUOTES = {'"': '"', "'": "'"} | dict.fromkeys("“”„‟", '“”„‟"') | dict.fromkeys("‘’‚‛", "‘’‚‛'")
"""Closing quotes by opening quote."""
_KEY = re.compile(rf"""(?:"[^"\n]*"|'[^'\n]*'|[“”„‟][^“”„‟"\n]*[“”„‟"]|[‘’‚‛][^‘’‚‛'\n]*[‘’‚‛']){_BLANK}*:""")
_BARE_KEY = re.compile(r"[^\W][\w $.-]{0,60}?(?=[^\S\n]*:)")
_KEY_WITHIN = re.compile(r"""(?<!\w)(\w{1,60})["'“”‘’]?\s*:""")
_NEXT_OBJECT = re.compile(r"\}\s*,?\s*\{")
_BARE = re.compile(r"(?:(?!//)[\w.+\-/])+(?: ?%)?")
_DECIMAL_COMMA = re.compile(r"[01],\d+(?=\s*[,}])")
_CONSTANTS = {"True": True, "False": False, "None": None}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}


@dataclass(frozen=True, slots=True)
class Repeated:
    """The values of a key that occurs more than once in an object."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Found:
    value: Any
    """As from `json`, with `Repeated` for a repeated key; None for something else, which `repairs` names."""
    repairs: Counter[str] = field(default_factory=Counter[str])
    start: int = 0
    end: int = 0
    """Position in the outermost text."""
    fragment: bool = False
    """Whether it may be part of a broken value that began before it."""
    comments: tuple[str, ...] = ()


class Broken(ValueError):
    """Text that begins like an object or array but cannot be read; `at` is the position of the error."""

    def __init__(self, at: int) -> None:
        super().__init__(f"broken at {at}")
        self.at = at


def find_values(text: str, keys: Collection[str] = ()) -> Iterator[Found | Broken]:
    """Every outermost object and array in the text, in order, and `Broken` for each that cannot be read.

    Thoughts are skipped; they are found without a value, with the repair "thoughts", and begin at 0 when their opening
    tag is missing, so that what was found before is part of them. Thoughts that are cut off are broken. `keys`, in
    lower case, are the relevant keys: one of them inside a string shows that a quote is missing, which makes the value
    broken.
    """
    position, prose, suspect, values, marks = 0, "", False, 0, 0
    while found := _LANDMARK.search(text, position):
        start = found.start()
        prose += text[position:start]
        position = found.end()
        mark = read_mark(found, keys) if len(found[0]) > 1 else _JSON
        marks += mark != _JSON
        if marks > _MAX_MARKS:
            yield Broken(len(text))
            return
        if mark.kind == "closes":
            prose, suspect = "", False
            yield Found(None, Counter(["thoughts"]), 0, position)
        elif mark.kind == "opens":
            end = end_of_thoughts(text, position, mark, keys)
            if end is None:
                yield Broken(len(text))
                return
            yield Found(None, Counter(["thoughts"]), start, position := end)
        elif mark.kind == "fence":
            prose += "```"
        elif mark != _JSON:
            continue
        elif (values := values + 1) > _MAX_VALUES:
            yield Broken(len(text))
            return
        elif escaped := _ESCAPED.match(text, start):
            position = escaped.end()
            for inner in _find_in_string(f'"{escaped[0]}"', keys):
                yield inner if isinstance(inner, Broken) else replace(inner, start=start, end=position)
        elif braces := _PROSE_BRACES.match(text, start):
            if braces[0].strip("{} \n"):
                position = braces.end()
        else:
            try:
                value, position, repairs, comments = read_value(text, start, keys)
            except Broken as broken:
                position = _closing_mark(text, found.end(), broken.at, keys) or max(broken.at, found.end())
                if found[0] == "{" or position >= len(text) or "{" in text[start:position]:
                    suspect = True
                    yield broken
            else:
                follows = text[_SPACE.match(text, position).end() :][:1]  # type: ignore[union-attr]
                within = follows == "," or _AFTER_A_KEY.search(text[max(0, start - 9) : start])
                yield Found(value, repairs, start, position, suspect and bool(within), comments)
    prose += text[position:]
    if _TRUNCATED_END.search(text, max(position, len(text) - 100)):
        yield Broken(len(text))
    if "```" in prose:
        yield Found(None, Counter(["fence"]))
    if re.sub(r"```\w*|[\"'`\s]", "", prose):
        yield Found(None, Counter(["prose"]))


def _closing_mark(text: str, start: int, end: int, keys: Collection[str]) -> int | None:
    """The position of the first tag between two positions that closes thoughts."""
    for found in _LANDMARK.finditer(text, start, end):
        if len(found[0]) > 1 and read_mark(found, keys).kind == "closes":
            return found.start()
    return None


def _find_in_string(literal: str, keys: Collection[str]) -> Iterator[Found | Broken]:
    try:
        text = json.loads(literal, strict=False)
    except ValueError:
        yield Broken(0)
    else:
        yield Found(None, Counter(["double encoding"]))
        yield from find_values(text, keys)


def read_value(text: str, start: int, keys: Collection[str] = ()) -> tuple[Any, int, Counter[str], tuple[str, ...]]:
    """The object or array that opens at `start`, its end, its repairs by kind and its comments. Raises `Broken`."""
    try:
        value, end = _STRICT.raw_decode(text, start)
    except (ValueError, RecursionError):
        pass
    else:
        return value, end, Counter(), ()
    try:
        return _Reader(text, start, keys, _COMMENT).read()
    except Broken as first:
        try:
            return _Reader(text, start, keys, _SHORT_COMMENT).read()
        except Broken as second:
            raise Broken(max(first.at, second.at)) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, list[Any]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return {key: values[0] if len(values) == 1 else Repeated(tuple(values)) for key, values in found.items()}


_STRICT = json.JSONDecoder(object_pairs_hook=_object, strict=False)


class _Reader:
    """Reads one value by recursive descent. At the end of the text, brackets may be missing after a closing one."""

    def __init__(self, text: str, start: int, keys: Collection[str], comment: re.Pattern[str]) -> None:
        self.text = text
        self.at = start
        self.keys = keys
        self.comment = comment
        self.expected: list[str] = []
        """The expected closing brackets, outermost first."""
        self.closed = False
        """Whether the last token is a closing bracket; a comment resets it, since it may hide more content."""
        self.repairs: Counter[str] = Counter()
        self.comments: list[str] = []

    def read(self) -> tuple[Any, int, Counter[str], tuple[str, ...]]:
        return self.value(), self.at, self.repairs, tuple(self.comments)

    def value(self) -> Any:
        self.skip()
        self.closed = False
        match self.peek():
            case "{":
                return _object(list(self.items("}", self.pair)))
            case "[":
                return list(self.items("]", self.value))
            case quote if quote and quote in _QUOTES:
                return self.string(self.ends_value)
            case _:
                return self.bare()

    def items(self, closing: str, read: Callable[[], _T]) -> Iterator[_T]:
        if len(self.expected) == _MAX_DEPTH:
            raise Broken(self.at)
        self.at += 1
        self.expected.append(closing)
        while not self.closes():
            yield read()
            self.comma()

    def pair(self) -> tuple[str, Any]:
        self.closed = False
        if self.peek() in _QUOTES:
            key = self.string(lambda end: self.text[end : end + 1] == ":", inner_quotes=False)
        elif bare := _BARE_KEY.match(self.text, self.at):
            self.repairs["unquoted key"] += 1
            key, self.at = bare[0], bare.end()
        else:
            raise Broken(self.at)
        self.skip()
        if self.peek() != ":":
            raise Broken(self.at)
        self.at += 1
        return key, self.value()

    def closes(self) -> bool:
        """Whether the innermost bracket closes here; reads the closing bracket."""
        self.skip()
        char = self.peek()
        if char == self.expected[-1]:
            self.at += 1
        elif (char and char in self.expected) or (self.closed and self.ends()):
            self.repairs["bracket"] += 1
        else:
            return False
        self.expected.pop()
        self.closed = True
        return True

    def comma(self) -> None:
        self.skip()
        char = self.peek()
        if char == ",":
            self.at += 1
            self.closed = False
            self.skip()
            if self.peek() in ("}", "]"):
                self.repairs["comma"] += 1
        elif (char == "{" and self.expected[-1] == "]" and self.closed) or (
            char in _QUOTES and self.expected[-1] == "}"
        ):
            self.repairs["comma"] += 1
        elif char not in ("}", "]") and not (self.closed and self.ends()):
            raise Broken(self.at)

    def ends(self) -> bool:
        return self.at == len(self.text) or self.text.startswith("```", self.at)

    def bare(self) -> Any:
        """A number, a constant, or an unquoted word, which is read as a string."""
        if self.expected[-1] == "}" and (decimal := _DECIMAL_COMMA.match(self.text, self.at)):
            self.at = decimal.end()
            return decimal[0]
        word = _BARE.match(self.text, self.at)
        if not word:
            raise Broken(self.at)
        self.at = word.end()
        try:
            return json.loads(word[0])
        except ValueError:
            self.repairs["unquoted value"] += 1
            return _CONSTANTS.get(word[0], word[0])

    def string(self, ends: Callable[[int], bool], inner_quotes: bool = True) -> str:
        """A string, up to the first quote where `ends(position after blanks)` says that the structure continues.

        Raises `Broken` if the string contains both quotes and something that looks like structure.
        """
        opening, start = self.peek(), self.at + 1
        delimiter = re.compile(rf"\\.|[{_QUOTES[opening]}]", re.DOTALL)
        position = start
        inner = False
        while found := delimiter.search(self.text, position):
            position = found.end()
            if len(found[0]) > 1:
                continue
            after = self.skipped(position)[0]
            if ends(after):
                if inner and self.hides_structure(self.text[start : found.start()]):
                    raise Broken(position)
                self.at = position
                self.repairs["quotes"] += inner or opening != '"'
                return _unescape(self.text[start : found.start()])
            if not inner_quotes:
                raise Broken(position)
            inner = True
        raise Broken(len(self.text))

    def ends_value(self, position: int) -> bool:
        char = self.text[position : position + 1]
        if self.expected[-1] == "]":
            return char in (",", "]", "")
        if char == ",":
            position = self.skipped(position + 1)[0]
            return self.text[position : position + 1] == "}" or self.is_key(position)
        if char == "}":
            return len(self.expected) == 1 or self.continues(self.skipped(position + 1)[0])
        return not char or (self.text[position - 1].isspace() and bool(_KEY.match(self.text, position)))

    def continues(self, position: int) -> bool:
        """Whether the text here may follow an object inside another value."""
        if self.text[position : position + 1] == ",":
            position = self.skipped(position + 1)[0]
            return self.text[position : position + 1] in ("{", "[", "}", "]") or self.is_key(position)
        return self.text[position : position + 1] in ("{", "}", "]", "") or self.text.startswith("```", position)

    def is_key(self, position: int) -> bool:
        return bool(_KEY.match(self.text, position) or _BARE_KEY.match(self.text, position))

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def skip(self) -> None:
        start = self.at
        self.at, comments = self.skipped(start)
        if comments:
            self.comments.append(self.text[start : self.at].strip())
            self.repairs["comment"] += comments
            self.closed = False

    def skipped(self, position: int) -> tuple[int, int]:
        """The position after blanks and comments, and the number of comments."""
        comments = 0
        while True:
            if blank := _SPACE.match(self.text, position):
                position = blank.end()
            comment = self.comment.match(self.text, position)
            if not comment:
                return position, comments
            if self.hides_structure(comment[0]):
                raise Broken(position)
            position = comment.end()
            comments += 1

    def hides_structure(self, text: str) -> bool:
        """Whether a string or comment contains a relevant key or a boundary between two objects."""
        return any(key.casefold() in self.keys for key in _KEY_WITHIN.findall(text)) or bool(_NEXT_OBJECT.search(text))


def _unescape(text: str) -> str:
    """The value of a string literal with JSON or Python escapes."""

    def replace(escape: re.Match[str]) -> str:
        code = escape[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _CONTROLS.get(code, code)

    return _ESCAPE.sub(replace, text)
