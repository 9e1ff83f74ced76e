"""Words for what judges say of members and scores, by concept, from `words.toml`, in all its languages at once.

best = pattern("best")            best.search("K7QX is the strongest"), best.search("W3RT 最好")
language("Begründung: alles geprüft, nichts vergessen")  ->  "de"
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
"""Characters of languages whose words are matched without boundaries."""
_SCRIPTS = (
    ("ja", re.compile(r"[\u3040-\u30ff]")),
    ("ko", re.compile(r"[\uac00-\ud7af]")),
    ("zh", re.compile(r"[\u3400-\u9fff]")),
    ("ru", re.compile(r"[\u0400-\u04ff]")),
)
_LETTERS = re.compile(r"[^\W\d_]+['’]?")


@cache
def _words() -> dict[str, dict[str, list[str]]]:
    return tomllib.loads(files("gavel.judge.reply").joinpath("words.toml").read_text(encoding="utf-8"))


class Words:
    """A pattern without regard to case, for which plain text, the most usual, is searched for plain words only.

    Text is plain that is printable ASCII. In it no word with other characters can stand, and the others are found in a
    third of the time: what is found is the same.
    """

    def __init__(self, make: Callable[[bool], str]) -> None:
        """`make`: the source, or (True) that for plain text."""
        self._make = make

    def search(self, text: str, start: int = 0) -> re.Match[str] | None:
        return self._for(text).search(text, start)

    def match(self, text: str) -> re.Match[str] | None:
        return self._for(text).match(text)

    def fullmatch(self, text: str) -> re.Match[str] | None:
        return self._for(text).fullmatch(text)

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        return self._for(text).finditer(text)

    def sub(self, replacement: str, text: str) -> str:
        return self._for(text).sub(replacement, text)

    def subn(self, replacement: str, text: str) -> tuple[str, int]:
        return self._for(text).subn(replacement, text)

    def source(self, plain: bool) -> str:
        """To be part of another pattern."""
        return self._make(plain)

    def _for(self, text: str) -> re.Pattern[str]:
        return self._plain if text.isascii() and text.isprintable() else self._whole

    @cached_property
    def _whole(self) -> re.Pattern[str]:
        return re.compile(self._make(False), re.IGNORECASE)

    @cached_property
    def _plain(self) -> re.Pattern[str]:
        return re.compile(self._make(True), re.IGNORECASE | re.ASCII)


@cache
def pattern(*concepts: str, languages: tuple[str, ...] = ()) -> Words:
    """A pattern that finds a word of any of the concepts, in any of the languages (none = all)."""
    return Words(lambda plain: source(*concepts, languages=languages, plain=plain))


@cache
def source(*concepts: str, languages: tuple[str, ...] = (), plain: bool = False) -> str:
    """The source of `pattern`, to be part of another one. Words that begin alike share a branch, so it is fast."""
    spaced, unspaced = dict[str, Any](), dict[str, Any]()
    for word in entries(*concepts, languages=languages):
        node = unspaced if _UNSPACED.search(word) else spaced
        for character in word.casefold():
            node = node.setdefault(character, {})
        node[""] = {}
    if plain:
        return rf"(?:(?<![^\W_])(?:{_branches(_plain_words(spaced))}))"
    return rf"(?:(?<![^\W_])(?:{_branches(spaced)})|(?:{_branches(unspaced)}))"


def _plain_words(node: Mapping[str, Any]) -> dict[str, Any]:
    """The tree without the words that hold other characters than ASCII, in the same order."""
    inner = {character: _plain_words(below) for character, below in node.items() if character and character.isascii()}
    kept = {character: below for character, below in inner.items() if below}
    return {character: kept.get(character, {}) for character in node if character in kept or not character}


def entries(*concepts: str, languages: tuple[str, ...] = ()) -> Iterator[str]:
    for code, words in _words().items():
        if not languages or code in languages:
            for concept in concepts:
                yield from words.get(concept, ())


_SPECIAL = {" ": r"[\s_-]{1,3}", "*": r"[^\W_]{0,20}", "'": "['’]"}


def _branches(node: Mapping[str, Any], last: str = "") -> str:
    """The source for a tree of characters; `last` leads to it."""
    parts = [
        _SPECIAL.get(character, re.escape(character)) + _branches(inner, character)
        for character, inner in node.items()
        if character
    ]
    if "" in node:
        whole = last.isalpha() and not _UNSPACED.match(last)
        parts.append(r"(?![^\W_])" if whole else "")
    if not parts:
        return "(?!)"
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"


@cache
def levels() -> dict[str, int]:
    """How good a verdict of one word is, from -2 to 2."""
    concepts = {"awful": -2, "poor": -1, "fair": 0, "good": 1, "superb": 2}
    return {word.rstrip("*"): level for concept, level in concepts.items() for word in entries(concept)}


@cache
def understood() -> frozenset[str]:
    """English words that may stand in a sentence about the scores without changing what they are."""
    return frozenset(entries("understood"))


@cache
def common() -> frozenset[str]:
    """Frequent English words, by which a sentence is known to be English."""
    return frozenset(entries("common"))


def language(text: str) -> str | None:
    """The language of a text that is not English: by its script, or its function words; None = another or none."""
    for code, script in _SCRIPTS:
        if script.search(text):
            return code
    count = max(1, len(_LETTERS.findall(text)))
    concepts = ("function", "not", "rationale", "subject")
    found = {
        code: sum(1 for _ in pattern(*concepts, languages=(code,)).finditer(text))
        for code in _words()
        if code not in {"en", *dict(_SCRIPTS)}
    }
    best = max(found, key=lambda code: found[code])
    return best if found[best] >= max(1, count / 8) else None
