"""JSON as models write it: every outermost value in a text, and what had to be repaired to read it.

Only syntax is repaired, each repair is counted, and nothing is completed: a value that breaks off is `Broken`, never a
part of what was meant. That is why this is not json_repair (0.64.5): even with `strict=True` it reads a reply cut at
`"score": 0.` as 0.0, `09` as 9, `0.9%` as 0.9, and of a key given twice it keeps the last.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

_T = TypeVar("_T")
_DEEPEST = 64
_BLANK = r"[\s\ufeff\u200b-\u200d\u2060]"
_TAG = r"<(/?)(?:think|thinking|thoughts?|reasoning|reflection|scratchpad)>"

_LANDMARK = re.compile(rf"[{{\[]|{_TAG}", re.IGNORECASE)
_THOUGHT_ENDS = re.compile(_TAG.replace("/?", "/"), re.IGNORECASE)
_PROSE_BRACES = re.compile(r"""\{[^{}\[\]"':,“”]*\}""")
_ESCAPED = re.compile(r'(?=[{\[](?:\s|\\[nrt]|[{\[])*\\+")(?:[^"\\]|\\.)*', re.DOTALL)
_ANNOUNCED = re.compile(rf"(?:<{_BLANK}*/?\w*|:){_BLANK}*\Z")
"""A reply that ends so breaks off: a tag has begun, or something was to follow."""
_AFTER_A_KEY = re.compile(r"""["'”’]\s*:\s*\Z""")

_SPACE = re.compile(rf"{_BLANK}*")
_COMMENT = re.compile(r"/\*.*?\*/|(?://|#)[^\n]*", re.DOTALL)
_SHORT_COMMENT = re.compile(r"""/\*.*?\*/|(?://|#).*?(?=\n|[}\]]|,\s*[{\["'“”‘’])""", re.DOTALL)
_QUOTES = {'"': '"', "'": "'"} | dict.fromkeys("“”„‟", '“”„‟"') | dict.fromkeys("‘’‚‛", "‘’‚‛'")
"""What closes a string, by what opened it."""
_KEY = re.compile(rf"""(?:"[^"\n]*"|'[^'\n]*'|[“”„‟][^“”„‟"\n]*[“”„‟"]|[‘’‚‛][^‘’‚‛'\n]*[‘’‚‛']){_BLANK}*:""")
_BARE_KEY = re.compile(r"[^\W][\w $.-]{0,60}?(?=[^\S\n]*:)")
_KEY_WITHIN = re.compile(r"""(\w+)["'“”‘’]?\s*:""")
_NEXT_OBJECT = re.compile(r"\}\s*,?\s*\{")
_BARE = re.compile(r"(?:(?!//)[\w.+\-/])+(?: ?%)?")
_DECIMAL_COMMA = re.compile(r"[01],\d+(?=\s*[,}])")
_CONSTANTS = {"True": True, "False": False, "None": None}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}


@dataclass(frozen=True, slots=True)
class Repeated:
    """What an object has under a key that it has more than once."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Found:
    value: Any
    """As `json` reads it, but `Repeated` for a key given twice."""
    repairs: Counter[str] = field(default_factory=Counter)
    before: str = ""
    """The text between it and what was found before it."""
    fragment: bool = False
    """Whether it may stand within something broken that began before it."""


class Broken(ValueError):
    """What begins as an object or array and is none; `at` is where it goes wrong."""

    def __init__(self, at: int) -> None:
        super().__init__(f"broken at {at}")
        self.at = at


def find_values(text: str, keys: Collection[str] = ()) -> Iterator[Found | Broken | Literal["thoughts"]]:
    """Every outermost object and array in the text, in order, and `Broken` for each that is none.

    "thoughts" says that what was found before it was only thought; thoughts with a beginning are left out. `keys`, in
    lower case, are those that matter: where one seems to be within a string, a quote is missing, and that is broken.
    """
    position, said, suspect = 0, "", False
    while mark := _LANDMARK.search(text, position):
        since = text[position : mark.start()]
        said += since
        position = mark.end()
        if mark[1] == "/":
            said, suspect = "", False
            yield "thoughts"
        elif mark[1] is not None:
            end = _THOUGHT_ENDS.search(text, position)
            position = end.end() if end else len(text)
            yield Found(None, Counter(["thoughts"])) if end else Broken(position)
        elif escaped := _ESCAPED.match(text, mark.start()):
            position = escaped.end()
            yield Found(None, before=since)
            yield from _find_in_string(f'"{escaped[0]}"', keys)
        elif prose := _PROSE_BRACES.match(text, mark.start()):
            if prose[0].strip("{} \n"):
                position = prose.end()
        else:
            try:
                value, position, repairs = read_value(text, mark.start(), keys)
            except Broken as broken:
                thought = _THOUGHT_ENDS.search(text, mark.end(), broken.at)
                position = thought.start() if thought else max(broken.at, mark.end())
                if mark[0] == "{" or position >= len(text) or "{" in text[mark.start() : position]:
                    suspect = True
                    yield broken
            else:
                follows = text[_SPACE.match(text, position).end() :][:1]  # type: ignore[union-attr]
                within = follows == "," or _AFTER_A_KEY.search(text[max(0, mark.start() - 9) : mark.start()])
                yield Found(value, repairs, since, suspect and bool(within))
    said += text[position:]
    if _ANNOUNCED.search(text, position):
        yield Broken(len(text))
    if "```" in said:
        yield Found(None, Counter(["fence"]))
    if re.sub(r"```\w*|[\"'`\s]", "", said):
        yield Found(None, Counter(["prose"]))


def _find_in_string(literal: str, keys: Collection[str]) -> Iterator[Found | Broken | Literal["thoughts"]]:
    try:
        text = json.loads(literal, strict=False)
    except ValueError:
        yield Broken(0)
    else:
        yield Found(None, Counter(["double encoding"]))
        yield from find_values(text, keys)


def read_value(text: str, start: int, keys: Collection[str] = ()) -> tuple[Any, int, Counter[str]]:
    """The object or array that opens at `start`, where it ends, and its repairs by kind. Raises `Broken`."""
    try:
        value, end = _STRICT.raw_decode(text, start)
    except (ValueError, RecursionError):
        pass
    else:
        return value, end, Counter()
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
    """Reads one value by recursive descent. At the text's end a bracket may be missing, but only after another one."""

    def __init__(self, text: str, start: int, keys: Collection[str], comment: re.Pattern[str]) -> None:
        self.text = text
        self.at = start
        self.keys = keys
        self.comment = comment
        self.due: list[str] = []
        """The closing brackets that are to come, outermost first."""
        self.closed = False
        """Whether the last thing read is a closing bracket; a comment may hide what was to come."""
        self.repairs: Counter[str] = Counter()

    def read(self) -> tuple[Any, int, Counter[str]]:
        return self.value(), self.at, self.repairs

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
        return self.bare()

    def items(self, closing: str, read: Callable[[], _T]) -> Iterator[_T]:
        if len(self.due) == _DEEPEST:
            raise Broken(self.at)
        self.at += 1
        self.due.append(closing)
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
        if char == self.due[-1]:
            self.at += 1
        elif (char and char in self.due) or (self.closed and self.ends()):
            self.repairs["bracket"] += 1
        else:
            return False
        self.due.pop()
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
        elif (char == "{" and self.due[-1] == "]" and self.closed) or (char in _QUOTES and self.due[-1] == "}"):
            self.repairs["comma"] += 1
        elif char not in ("}", "]") and not (self.closed and self.ends()):
            raise Broken(self.at)

    def ends(self) -> bool:
        return self.at == len(self.text) or self.text.startswith("```", self.at)

    def bare(self) -> Any:
        """A number, a constant, or one word, which is a string."""
        if self.due[-1] == "}" and (decimal := _DECIMAL_COMMA.match(self.text, self.at)):
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
        """A string up to the quote after which the structure goes on, by `ends(position after blanks)`.

        Raises `Broken` when there are quotes within it and something that looks like structure.
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
        if self.due[-1] == "]":
            return char in (",", "]", "")
        if char == ",":
            position = self.skipped(position + 1)[0]
            return self.text[position : position + 1] == "}" or self.is_key(position)
        if char == "}":
            return len(self.due) == 1 or self.goes_on(self.skipped(position + 1)[0])
        return not char or (self.text[position - 1].isspace() and bool(_KEY.match(self.text, position)))

    def goes_on(self, position: int) -> bool:
        """Whether what stands here may follow an object within another value."""
        if self.text[position : position + 1] == ",":
            position = self.skipped(position + 1)[0]
            return self.text[position : position + 1] in ("{", "[", "}", "]") or self.is_key(position)
        return self.text[position : position + 1] in ("{", "}", "]", "") or self.text.startswith("```", position)

    def is_key(self, position: int) -> bool:
        return bool(_KEY.match(self.text, position) or _BARE_KEY.match(self.text, position))

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def skip(self) -> None:
        self.at, comments = self.skipped(self.at)
        if comments:
            self.repairs["comment"] += comments
            self.closed = False

    def skipped(self, position: int) -> tuple[int, int]:
        """The position after blanks and comments, and how many comments."""
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
        """Whether one of the keys that matter, or the step to a next object, has come into a string or comment."""
        return any(key.casefold() in self.keys for key in _KEY_WITHIN.findall(text)) or bool(_NEXT_OBJECT.search(text))


def _unescape(text: str) -> str:
    """The string that a literal with JSON's or Python's escapes stands for."""

    def replace(escape: re.Match[str]) -> str:
        code = escape[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _CONTROLS.get(code, code)

    return _ESCAPE.sub(replace, text)
