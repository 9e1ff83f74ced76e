"""Parses a reply as one JSON value: strips what servers and models put around it, and repairs its syntax.

    find_value('<think>so…</think>```json\\n{"W7QX": 0.8,}\\n```')  ->  {"W7QX": 0.8}, repairs: thoughts, fence, comma
    find_value('Here you are: {"W7QX": 0.8}')                        ->  Broken: text stands before it

A reply is accepted only if the value stands alone. Stripped are a byte-order mark and invisible characters at the
edges, closed reasoning before it, a code fence around it, and chat templates' turn tokens. Nothing is completed: a
truncated value cannot be read. (The library json_repair 0.64.5 invents numbers even with `strict=True`: it reads
`"score": 0.`, cut off, as 0.0, `09` as 9, and keeps the last value of a repeated key.)
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from gavel.judge.prompt.provider_formats import THOUGHT_NAMES

_T = TypeVar("_T")
_MAX_DEPTH = 64
_MAX_THOUGHTS = 16
"""Max closing tags after which an answer is searched."""
_BLANK = r"[\s\ufeff\u00ad\u200b-\u200f\u2060]"

_REASONING = rf"[\w:▁.-]{{0,20}}(?:{THOUGHT_NAMES})[\w:▁.-]{{0,20}}|details"
"""Names of the tags in which models reason: <think>, [THINK], ◁think▷, <|START_THINKING|>, <|begin_of_thought|>."""
_TAG = re.compile(
    rf"(?:<\|?|\[|◁)(?P<slash>/?)(?P<name>{_REASONING})(?P<attributes>(?:\s[^<>\n]{{0,80}})?)(?:\|?>|\]|▷)"
    r"|(?P<final><\|channel\|>final[^<\n]{0,20}(?:<\|constrain\|>\w{0,10})?<\|message\|>|assistantfinal)"
    r"|<\|(?:channel|start)\|>",
    re.IGNORECASE,
)
"""Reasoning tags, and the marks between which gpt-oss reasons before its final channel."""
_FENCE = r"(?P<fence>`{3,}|~{3,})"
_BEGIN = re.compile(
    rf"{_BLANK}*(?:<\|python_tag\|>{_BLANK}*)?(?:{_FENCE}[ ]?(?:json\w?)?[ ]*\n)?{_BLANK}*", re.IGNORECASE
)
_END_OF_TURN = (
    r"<\|(?:return|end|call|im_end|eot_id|eom_id|endoftext|end_of_text)\|>|<end_of_turn>|<｜end▁of▁sentence｜>|</s>"
)
_END = re.compile(rf"{_BLANK}*{_FENCE}?{_BLANK}*(?:(?:{_END_OF_TURN}){_BLANK}*)*", re.IGNORECASE)
_STARTS_A_VALUE = re.compile(rf"""{_BLANK}*[{{\["'`~]""")
_SHORT_REMARK = re.compile(r"(?:/\*|//|#)\s*[^\W\d_]*\s*(?:\*/)?")

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
class Found:
    value: Any
    repairs: Counter[str]
    """Number of repairs by kind."""
    start: int
    end: int
    """Position of the value in the reply."""


class Broken(ValueError):
    """The text is no JSON value that stands alone; the message says why."""

    def __init__(self, problem: str, at: int = 0) -> None:
        super().__init__(problem)
        self.problem = problem
        self.at = at


def find_value(reply: str, keys: Collection[str] = ()) -> Found:
    """The object, array or string that the reply is. Raises `Broken`.

    `keys`, in lower case, are the relevant keys: one of them inside a string shows that a quote is missing.
    """
    first: Broken | None = None
    for start in _find_starts(reply):
        try:
            found = _read_alone(reply, start, keys)
        except Broken as broken:
            first = first or broken
        else:
            found.repairs["thoughts"] += start > 0
            return Found(found.value, +found.repairs, found.start, found.end)
    assert first
    raise first


def _find_starts(reply: str) -> Iterator[int]:
    """Positions where the answer may begin: the beginning, or after closed reasoning, whose opening tag may be lost."""
    yield 0
    opens, thoughts = False, 0
    begins = not _STARTS_A_VALUE.match(reply)
    for tag in _TAG.finditer(reply):
        closes = tag["slash"] or tag["final"] or (tag["name"] or "").casefold().startswith("end")
        if not closes:
            if not reply[: tag.start()].strip():
                begins = opens = True
            elif not opens:
                return  # the reply mentions reasoning before it reasons
        elif begins and thoughts < _MAX_THOUGHTS:
            thoughts += 1
            yield tag.end()


def _read_alone(reply: str, start: int, keys: Collection[str]) -> Found:
    opening = _BEGIN.match(reply, start)
    assert opening
    at = opening.end()
    if reply[at : at + 1] == '"':
        try:
            value, end = _STRICT.raw_decode(reply, at)
        except ValueError:
            raise Broken("it is a string that breaks off", at) from None
        repairs = Counter[str]()
    elif reply[at : at + 1] in ("{", "["):
        value, end, repairs = read_value(reply, at, keys)
    else:
        raise Broken("text stands before its JSON object" if "{" in reply[at:] else "it holds no JSON object", at)
    closing = _END.match(reply, end)
    assert closing
    if closing.end() < len(reply) or (closing["fence"] and closing["fence"] != opening["fence"]):
        raise Broken("something stands after its JSON object", end)
    repairs["fence"] += bool(opening["fence"])
    return Found(value, repairs, at, end)


def read_value(text: str, start: int, keys: Collection[str] = ()) -> tuple[Any, int, Counter[str]]:
    """The object or array that opens at `start`, its end, and its repairs by kind. Raises `Broken`."""
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
            raise max(first, second, key=lambda broken: broken.at) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs) and any(found[key] != value for key, value in pairs):
        raise Broken("a key of its JSON stands there twice, with two values")
    return found


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
            case _:
                return self.bare()

    def items(self, closing: str, read: Callable[[], _T]) -> Iterator[_T]:
        if len(self.expected) == _MAX_DEPTH:
            raise self.broken(self.at)
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
            raise self.broken(self.at)
        self.skip()
        if self.peek() != ":":
            raise self.broken(self.at)
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
            raise self.broken(self.at)

    def ends(self) -> bool:
        return self.at == len(self.text) or self.text.startswith("```", self.at)

    def bare(self) -> Any:
        """A number, a constant, or an unquoted word, which is read as a string."""
        if self.expected[-1] == "}" and (decimal := _DECIMAL_COMMA.match(self.text, self.at)):
            self.at = decimal.end()
            return decimal[0]
        word = _BARE.match(self.text, self.at)
        if not word:
            raise self.broken(self.at)
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
                    raise self.broken(position)
                self.at = position
                self.repairs["quotes"] += inner or opening != '"'
                return _unescape(self.text[start : found.start()])
            if not inner_quotes:
                raise self.broken(position)
            inner = True
        raise self.broken(len(self.text))

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

    def broken(self, at: int) -> Broken:
        return Broken("its JSON breaks off or is not valid", at)

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def skip(self) -> None:
        start = self.at
        self.at, comments = self.skipped(start)
        if comments:
            self.repairs["comment"] += comments
            self.closed = False

    def skipped(self, position: int) -> tuple[int, int]:
        """The position after blanks and comments, and the number of comments. A comment is one word: more may change
        what it stands beside."""
        comments = 0
        while True:
            if blank := _SPACE.match(self.text, position):
                position = blank.end()
            comment = self.comment.match(self.text, position)
            if not comment:
                return position, comments
            if not _SHORT_REMARK.fullmatch(comment[0]):
                raise Broken("a comment stands in its JSON", position)
            position = comment.end()
            comments += 1

    def hides_structure(self, text: str) -> bool:
        """Whether a string contains a relevant key or a boundary between two objects."""
        return any(key.casefold() in self.keys for key in _KEY_WITHIN.findall(text)) or bool(_NEXT_OBJECT.search(text))


def _unescape(text: str) -> str:
    """The value of a string literal with JSON or Python escapes."""

    def replace(escape: re.Match[str]) -> str:
        code = escape[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _CONTROLS.get(code, code)

    return _ESCAPE.sub(replace, text)
