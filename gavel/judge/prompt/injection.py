"""Detects text that addresses the judge: asks for a score, forges a verdict or the prompt's structure, overrides rules.

The patterns, by language, are in `injection_patterns.toml`; here they are compiled and matched. Gaps within a pattern
are bounded, and a pattern is tried only near one of its stems, so the time is linear in the length of the text.
"""

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import chain

from gavel.judge.prompt.sanitize import normalize_for_matching

_ESCAPED = re.compile(r"\\[nrt\"/]")
"""JSON escapes in arguments and results, which would otherwise run into the next word."""
_DEFAULT_REACH = 250
_GAP = r"(?:[^\n]|(?<=[\w,:!])\n|(?<=[\w,:!] )\n|(?<=\n)\n){0,50}?"
"""Text that crosses a line break only within a sentence or after an address: lines that end one are told apart."""
_SPACED_OUT = re.compile(r"(?<!\S)\S(?: \S){2,}(?!\S)")
"""Letters with a space between any two, `d e a r j u d g e`."""
_LETTER_THEN_DIGIT = re.compile(r"(?<=[^\W\d])(?=\d)")


@dataclass(frozen=True, slots=True)
class _PatternGroup:
    """Patterns of which every match contains one of `stems`."""

    stems: Sequence[str]
    parts: Sequence[Sequence[str]]
    """The words of each stem."""
    patterns: Sequence[re.Pattern[str]]
    reach: int
    """Characters before and after a stem within which a match begins and ends."""

    def may_match(self, words: str) -> bool:
        """A quick test on a text's distinct words, which are far fewer than its words."""
        for parts in self.parts:
            for part in parts:
                if part not in words:
                    break
            else:
                return True
        return False

    def matches(self, text: str) -> bool:
        return any(
            pattern.search(text, start, end)
            for start, end in _windows(text, self.stems, self.reach)
            for pattern in self.patterns
        )


@cache
def _pattern_groups() -> list[_PatternGroup]:
    source = files("gavel.judge.prompt").joinpath("injection_patterns.toml").read_text(encoding="utf-8")
    languages = tomllib.loads(source)
    words: dict[str, str] = {}
    for name, pattern in languages.pop("words").items():
        words[name] = _expand(pattern, words)
    return [
        _PatternGroup(
            stems=entry["stems"],
            parts=[stem.split() for stem in entry["stems"]],
            patterns=[_compile(_expand(pattern, words)) for pattern in entry["patterns"]],
            reach=entry.get("reach", _DEFAULT_REACH),
        )
        for entry in chain.from_iterable(languages.values())
    ]


def _expand(pattern: str, words: dict[str, str]) -> str:
    """The pattern on one line, with each `<word>` replaced."""
    one_line = re.sub(r"(?:^|\n) *", "", pattern)
    return re.sub(r"<(\w+)>", lambda word: words[word[1]], one_line)


def _compile(pattern: str) -> re.Pattern[str]:
    within_sentence = pattern.replace("…", r"(?:[^.!?\n]|\.(?=\w)){0,50}?")
    return re.compile(within_sentence.replace("~", _GAP), re.MULTILINE)


def _windows(text: str, stems: Sequence[str], reach: int) -> Iterator[tuple[int, int]]:
    """The parts of the text within `reach` of a stem, in order and without overlap."""
    start, end = 0, -1
    for position in sorted(chain.from_iterable(_positions(text, stem) for stem in stems)):
        if end < 0 or position - reach > end:
            if end >= 0:
                yield start, end
            start = max(0, position - reach)
        end = position + reach
    if end >= 0:
        yield start, end


def _positions(text: str, stem: str) -> Iterator[int]:
    position = text.find(stem)
    while position >= 0:
        yield position
        position = text.find(stem, position + 1)


def _rejoined(letters: re.Match[str]) -> str:
    return _LETTER_THEN_DIGIT.sub(" ", letters[0].replace(" ", ""))


def addresses_judge(text: str) -> bool:
    """Whether the text addresses a judge, in any of the languages of the pattern file."""
    plain = _ESCAPED.sub("\n", normalize_for_matching(text).replace("_", " ").replace("\r\n", "\n"))
    plain = _SPACED_OUT.sub(_rejoined, plain)
    words = "\n".join(set(plain.split()))
    return any(group.may_match(words) and group.matches(plain) for group in _pattern_groups())
