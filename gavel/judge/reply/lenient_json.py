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
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import islice
from typing import Any

from gavel.judge.prompt.provider_formats import THOUGHT_NAMES

_MAX_DEPTH = 64
_MAX_THOUGHTS = 16
"""Max closing tags after which an answer is searched."""
_BLANK = r"[\s\ufeff\u00ad\u200b-\u200f\u2060]"

_REASONING = rf"[\w:▁.-]{{0,20}}(?:{THOUGHT_NAMES})[\w:▁.-]{{0,20}}|details"
"""Names of the tags in which models reason: <think>, [THINK], ◁think▷, <|START_THINKING|>, <|begin_of_thought|>."""
_END_OF_THOUGHTS = re.compile(
    rf"(?:<\|?|\[|◁)(?:/|(?=end))(?:{_REASONING})(?:\s[^<>\n]{{0,80}})?(?:\|?>|\]|▷)"
    r"|<\|channel\|>final[^<\n]{0,20}(?:<\|constrain\|>\w{0,10})?<\|message\|>|assistantfinal",
    re.IGNORECASE,
)
"""Closing reasoning tags, and the marks with which gpt-oss opens its final channel."""
_FENCE = r"(?P<fence>`{3,}|~{3,})"
_BEGIN = re.compile(
    rf"{_BLANK}*(?:<\|python_tag\|>{_BLANK}*)?(?:{_FENCE}[ ]?(?:json\w?)?[ ]*\n)?{_BLANK}*", re.IGNORECASE
)
_END_OF_TURN = (
    r"<\|(?:return|end|call|im_end|eot_id|eom_id|endoftext|end_of_text)\|>|<end_of_turn>|<｜end▁of▁sentence｜>|</s>"
)
_END = re.compile(rf"{_BLANK}*{_FENCE}?{_BLANK}*(?:(?:{_END_OF_TURN}){_BLANK}*)*", re.IGNORECASE)
_STARTS_A_VALUE = re.compile(rf"""{_BLANK}*(?:[{{"'`~]|\[(?!(?:{_REASONING})\]))""", re.IGNORECASE)

_COMMENT = r"""(?:/\*\s*[^\W\d_]*\s*\*/|(?://|\#)[^\S\n]*[^\W\d_]*[^\S\n]*(?=\n|\Z|[}\]]|,\s*[{\["'“”‘’]))"""
"""A comment is one word: more may change what it stands beside."""
_SKIPPED = re.compile(rf"{_BLANK}*(?:{_COMMENT}{_BLANK}*)*")
_QUOTES = {'"': '"', "'": "'"} | dict.fromkeys("“”„‟", '“”„‟"') | dict.fromkeys("‘’‚‛", "‘’‚‛'")
"""Closing quotes by opening quote."""
_KEY = re.compile(rf"""(?:"[^"\n]*"|'[^'\n]*'|[“”„‟][^“”„‟"\n]*[“”„‟"]|[‘’‚‛][^‘’‚‛'\n]*[‘’‚‛']){_BLANK}*:""")
_BARE_KEY = re.compile(r"[^\W][\w $.-]{0,60}?(?=[^\S\n]*:)")
_KEY_WITHIN = re.compile(r"""(?<!\w)(\w{1,60})["'“”‘’]?\s*:""")
_NEXT_OBJECT = re.compile(r"\}\s*,?\s*\{")
_BARE = re.compile(r"(?:(?!//)[\w.+\-/])+(?: ?%)?")
_DECIMAL_COMMA = re.compile(r"[01],\d+(?=\s*[,}])")
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
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


_NOT_VALID = "its JSON breaks off or is not valid"


def find_value(reply: str, keys: Collection[str] = ()) -> Found:
    """The object, array or string that the reply is. Raises `Broken`.

    `keys`, in lower case, are the relevant keys: one of them inside a string shows that a quote is missing.
    """
    starts = [0]
    if not _STARTS_A_VALUE.match(reply):  # else tags can only stand in its strings
        starts += [tag.end() for tag in islice(_END_OF_THOUGHTS.finditer(reply), _MAX_THOUGHTS)]
    problem: Broken | None = None
    for start in starts:
        try:
            found = _read_alone(reply, start, keys)
        except Broken as broken:
            problem = problem or broken
        else:
            if start:
                found.repairs["thoughts"] += 1
            return found
    raise problem or Broken(_NOT_VALID)


def _read_alone(reply: str, start: int, keys: Collection[str]) -> Found:
    opening = _BEGIN.match(reply, start)
    assert opening
    at, repairs = opening.end(), Counter[str]()
    if reply[at : at + 1] not in ("{", "[", '"'):
        raise Broken("text stands before its JSON object" if "{" in reply[at:] else "it holds no JSON object")
    try:
        value, end = _STRICT.raw_decode(reply, at)
    except (ValueError, RecursionError):
        if reply[at] == '"':
            raise Broken("it is a string that breaks off") from None
        value, end, repairs = _Mender(reply, at, keys).read()
    closing = _END.match(reply, end)
    assert closing
    if closing.end() < len(reply) or (closing["fence"] and closing["fence"] != opening["fence"]):
        raise Broken("something stands after its JSON object")
    if opening["fence"]:
        repairs["fence"] += 1
    return Found(value, +repairs, at, end)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs) and any(found[key] != value for key, value in pairs):
        raise Broken("a key of its JSON stands there twice, with two values")
    return found


_STRICT = json.JSONDecoder(object_pairs_hook=_object, strict=False)


class _Mender:
    """Writes one value anew as strict JSON, token by token. At the end of the text, brackets may be missing after a
    closing one."""

    def __init__(self, text: str, start: int, keys: Collection[str]) -> None:
        self.text = text
        self.at = start
        self.keys = keys
        self.tokens: list[str] = []
        self.expected: list[str] = []
        """The expected closing brackets, outermost first."""
        self.closed = False
        """Whether the last token is a closing bracket; a comment resets it, since it may hide more content."""
        self.repairs: Counter[str] = Counter()

    def read(self) -> tuple[Any, int, Counter[str]]:
        """The value, its end in the text, and the repairs by kind. Raises `Broken`."""
        self.open()
        while self.expected:
            self.skip()
            if self.closes():
                self.close()
            elif self.peek() == "," and self.tokens[-1] not in ("{", "[", ",", ":"):
                self.put(",")
                self.at += 1
            else:
                self.separate()
                if self.expected[-1] == "}" and self.tokens[-1] != ":":
                    self.key()
                else:
                    self.value()
        try:
            return _STRICT.decode("".join(self.tokens)), self.at, self.repairs
        except ValueError as error:
            raise error if isinstance(error, Broken) else Broken(_NOT_VALID) from None

    def put(self, token: str) -> None:
        self.tokens.append(token)
        self.closed = False

    def closes(self) -> bool:
        """Whether the innermost bracket closes here."""
        is_end = self.at == len(self.text) or self.text.startswith("```", self.at)
        return self.peek() in self.expected or (self.closed and is_end)

    def close(self) -> None:
        if self.tokens[-1] == ",":
            self.tokens.pop()
            self.repairs["comma"] += 1
        if self.peek() == self.expected[-1]:
            self.at += 1
        else:
            self.repairs["bracket"] += 1
        self.put(self.expected.pop())
        self.closed = True

    def open(self) -> None:
        if len(self.expected) == _MAX_DEPTH:
            raise Broken(_NOT_VALID)
        self.put(self.peek())
        self.expected.append("}" if self.peek() == "{" else "]")
        self.at += 1

    def separate(self) -> None:
        """Puts the comma that is missing before a value or a key."""
        if self.tokens[-1] in ("{", "[", ",", ":"):
            return
        char, within = self.peek(), self.expected[-1]
        if not ((char == "{" and within == "]" and self.closed) or (char in _QUOTES and within == "}")):
            raise Broken(_NOT_VALID)
        self.repairs["comma"] += 1
        self.put(",")

    def key(self) -> None:
        if self.peek() in _QUOTES:
            self.string(lambda end: self.text[end : end + 1] == ":", inner_quotes=False)
        elif bare := _BARE_KEY.match(self.text, self.at):
            self.repairs["unquoted key"] += 1
            self.put(json.dumps(bare[0]))
            self.at = bare.end()
        self.skip()
        if self.peek() != ":":
            raise Broken(_NOT_VALID)
        self.put(":")
        self.at += 1

    def value(self) -> None:
        if self.peek() in ("{", "["):
            self.open()
        elif self.peek() in _QUOTES:
            self.string(self.ends_value)
        else:
            self.bare()

    def bare(self) -> None:
        """A number, a constant, or an unquoted word, which is read as a string."""
        decimal = self.expected[-1] == "}" and _DECIMAL_COMMA.match(self.text, self.at)
        word = decimal or _BARE.match(self.text, self.at)
        if not word:
            raise Broken(_NOT_VALID)
        self.at = word.end()
        try:
            json.loads(word[0])
            self.put(word[0])
        except ValueError:
            self.repairs["unquoted value"] += not decimal
            self.put(_CONSTANTS.get(word[0]) or json.dumps(word[0]))

    def string(self, ends: Callable[[int], bool], inner_quotes: bool = True) -> None:
        """A string, up to the first quote where `ends(position after blanks)` says that the structure continues.

        Raises `Broken` if the string contains both quotes and something that looks like structure.
        """
        opening, start = self.peek(), self.at + 1
        inner = False
        for found in re.compile(rf"\\.|[{_QUOTES[opening]}]", re.DOTALL).finditer(self.text, start):
            if len(found[0]) > 1:
                continue
            text, position = self.text[start : found.start()], found.end()
            if ends(self.skipped(position)[0]):
                if inner and self.hides_structure(text):
                    break
                self.at = position
                self.repairs["quotes"] += inner or opening != '"'
                self.put(json.dumps(_unescape(text)))
                return
            inner = True
            if not inner_quotes:
                break
        raise Broken(_NOT_VALID)

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
            self.repairs["comment"] += comments
            self.closed = False

    def skipped(self, position: int) -> tuple[int, int]:
        """The position after blanks and comments, and the number of comments."""
        skipped = _SKIPPED.match(self.text, position)
        assert skipped
        return skipped.end(), len(re.findall(r"/\*|//|\#", skipped[0]))

    def hides_structure(self, text: str) -> bool:
        """Whether a string contains a relevant key or a boundary between two objects."""
        return any(key.casefold() in self.keys for key in _KEY_WITHIN.findall(text)) or bool(_NEXT_OBJECT.search(text))


def _unescape(text: str) -> str:
    """The value of a string literal with JSON or Python escapes."""

    def replace(escape: re.Match[str]) -> str:
        code = escape[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _CONTROLS.get(code, code)

    return _ESCAPE.sub(replace, text)
