"""Clauses: the parts of a text that are about one member, without its name.

"**K7QX**: poor, W3RT excellent"       K7QX "poor", W3RT "excellent"
"Trajectory 2 failed. It guessed."     the second label "failed"
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gavel.judge.reply.claims import ORDINAL, Said
from gavel.judge.reply.lexicon import pattern

LONG = 400
"""Characters of a clause that are read."""

_CLAUSES = re.compile(
    r"[;:,|\n()\[\]【】]+|\s[-–—]+\s|[—–，、；：。！]|[.!?](?=\s|$)|\s(?:while|whereas|but|aber|mais|pero|но|ma|mas)\s"
)
_SENTENCES = re.compile(r"(?<=[.!?])\s+|\n+|(?<=[。！？])")

ORDINAL_WORD = re.compile(
    r"\b(?:the )?(?P<which>first|second|third|fourth|fifth|last)\b(?: (?:attempt|trajectory|candidate|one|entry|answer"
    r"|run|response|rollout))?(?= (?:is|was|the|as|did|performs|performed|comes)\b)",
    re.IGNORECASE,
)

_PLACES = {"first": 0, "second": 1, "third": 2, "fourth": 3, "fifth": 4, "last": -1}

WORD = re.compile(r"[^\W_]+(?:['’][^\W\d_]+)?")

UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")

_DIGIT, _NUMBER = re.compile(r"\d"), re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Named:
    start: int
    end: int
    label: str


@dataclass(slots=True)
class Clause:
    text: str
    """Without the names of members."""
    member: str
    """Whom it is about."""
    own: bool
    """Whether it is part of that member's own explanation."""
    names: frozenset[str] = frozenset()
    """The members that its text still names."""


def named(text: str, said: Said) -> list[Named]:
    """The members that a text names, by label, by number or by place."""
    labels = list(said.scores)
    found = [Named(match.start(), match.end(), match[0].casefold()) for match in said.mention.finditer(text)]
    for match in ORDINAL.finditer(text) if _DIGIT.search(text) else ():
        number = int(next(filter(None, match.groups())))
        alone = len(_NUMBER.findall(match[0])) == 1
        label = labels[number - 1] if alone and 0 < number <= len(labels) else "?"
        found.append(Named(match.start(), match.end(), label))
    for match in ORDINAL_WORD.finditer(text) if _may_hold_ordinal(text) else ():
        place = _PLACES[match["which"].casefold()]
        found.append(Named(match.start(), match.end(), labels[place] if place < len(labels) else "?"))
    if len(found) < 2:
        return found
    found.sort(key=lambda one: (one.start, -one.end))
    return [one for index, one in enumerate(found) if not index or one.start >= found[index - 1].end]


def _may_hold_ordinal(text: str) -> bool:
    folded = text.casefold()
    return not text.isascii() or any(word in folded for word in _PLACES)


_RANKED = re.compile(r"\b(?P<name>grade|mark|rank|place|note|rang|platz)\s?[:=]\s?", re.IGNORECASE)
_ASPECT = re.compile(
    r"(?:(?<=^)|(?<=[.;,] ))\W{0,3}(?P<name>(?:[^\W\d_]+ ){0,3}"
    r"(?!(?:it|this|that|all|one|here|best|worst|group|three|two|four)\b)[^\W\d_]{2,})\s?[:：=]\s?(?=\S)"
)
"""The name of what a clause judges, which stays with it: "Tone: good" judges the tone."""


def _joined(found: re.Match[str]) -> str:
    judged = pattern("superb", "good", "fair", "poor", "awful", "not", "wins", "loses").search(found["name"])
    return found[0] if judged else f"{found['name']} "


def clauses(text: str, said: Said, subject: str) -> Iterator[Clause]:
    """The clauses of a text that are about one member."""
    for sentence in _SENTENCES.split(text[:50_000]):
        member = subject
        for part in _CLAUSES.split((_ASPECT if subject else _RANKED).sub(_joined, sentence)):
            part = part[:LONG]
            if not part.strip():
                continue
            members = named(part, said)
            if not members:
                others = _THE_OTHERS.match(part) if member and not subject else None
                for label in said.scores if others else filter(None, [member]):
                    if not others or label != member:
                        yield Clause(part[others.end() :] if others else part, label, bool(subject))
                continue
            if subject:
                yield from _about_others(part, members, said, subject)
                continue
            member = members[-1].label
            groups = {one.label for one in members}
            if len(groups) == 1 or not _compared(part, members):
                for label in groups:
                    yield _clause(_without(part, members), label, said, own=False)
            else:
                yield from _of_each(part, said)


_THE_OTHERS = re.compile(
    r"\W*(?:(?:both|all)(?: of)? )?(?:the )?(?:(?:two |three )?others?(?: (?:two|three|four|ones|attempts))?|rest)\b"
    r"(?= (?:\w+ly )?(?:are|is|were|was|do|did|fail|failed|solve|solved|all|both)\b)",
    re.IGNORECASE,
)
_AND = re.compile(r"\s(?:and|und|y|et|e|и)\s")


def _of_each(part: str, said: Said) -> Iterator[Clause]:
    """The clauses of a part that says something of one member, "and" something else of another."""
    pieces = [(piece, named(piece, said)) for piece in _AND.split(part)]
    if len(pieces) > 1 and all(len(members) == 1 for _, members in pieces):
        for piece, members in pieces:
            yield _clause(_without(piece, members), members[0].label, said, own=False)


def _without(part: str, members: list[Named]) -> str:
    pieces, position = list[str](), 0
    for one in members:
        pieces.append(part[position : one.start])
        position = one.end
    return " ".join([*pieces, part[position:]])


def _compared(part: str, members: list[Named]) -> bool:
    """Whether a clause with several members compares them, so that it is about neither alone."""
    between = part[members[0].end : members[-1].start]
    return not re.fullmatch(
        r"\W*(?:and|und|y|et|e|и|和|与|と|,|&|\s|trajector\w*|attempts?)*\W*", between, re.IGNORECASE
    )


def _about_others(part: str, members: list[Named], said: Said, subject: str) -> Iterator[Clause]:
    """A clause of an explanation that names members: about the own one when no other is named."""
    if all(one.label == subject for one in members):
        part = _without(part, members)
    yield _clause(part, subject, said, own=True)


def _clause(text: str, member: str, said: Said, *, own: bool) -> Clause:
    return Clause(text, member, own, frozenset(one.label for one in named(text, said)))


def denied(text: str, position: int) -> bool:
    return bool(
        pattern("not").search(text[max(0, position - 25) : position])
        or text[max(0, position - 3) : position].endswith("不")
    )
