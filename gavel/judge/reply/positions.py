"""Positions: members that a text names by where they stood, put by their labels.

    "the second one is better than the first"     "B3KD is better than W7QX"
    "number two", "2nd > 1st > 3rd"               "B3KD", "B3KD > W7QX > M2PA"
    "the second call", "on the second attempt"    as they are: parts of an attempt

A position may be that among the members shown or that among the entries: where the two differ, a text has two readings,
and has a problem when both have.
"""

import re
from collections.abc import Callable, Iterator

from gavel.judge.reply.claims import ORDINAL, Said

_WORDS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_SHORT = ("1st", "2nd", "3rd", *(f"{number}th" for number in range(4, 11)))
_COUNTED = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_PLACES = {
    **{word: place for words in (_WORDS, _SHORT, _COUNTED) for place, word in enumerate(words)},
    **{"last": -1, "final": -1},
}
_NTH = "|".join((*_WORDS, *_SHORT, "last"))
_NOUN = r"(?:attempt|trajectory|candidate|one|entry|response|rollout|option|agent|submission|solution|contender)"
_PREDICATE = (
    r"(?:is|was|did|does|has|had|gets?|got|wins?|won|loses?|lost|fails?|failed|solves?|solved|beats?|never|only|also"
    r"|clearly|comes?|came|ranks?|ranked|deserves?|should|performs?|performed|follows?|but|because|since|by|as"
    rf"|(?:and|or) (?:the )?(?:{_NTH}|best|worst|other)|on (?:every|all|balance)|in every|overall"
    r"|best|worst|better|worse|over|than"
    r"|a (?:bit|little))"
)
_NAMED = re.compile(
    rf"(?:\bthe )?\b(?P<nth>{_NTH}|final)(?:[- ]placed)? {_NOUN}\b(?!'s)(?! (?:of|at|to|it|in|for)\b)"
    rf"|\bthe (?P<bare>{_NTH})\b(?=\s*(?:[.,;:!?)>≻<]|$)| {_PREDICATE}\b)"
    rf"|\b(?:number|no\.|nr\.|attempt|candidate|trajectory|option) (?P<number>{'|'.join(_COUNTED)}|(?<=no\. )\d)\b"
    r"(?! (?:of|more|times?|other))"
    rf"|\bthe (?:middle one|one in the middle|{_NOUN} in the middle)\b(?P<middle>)"
    rf"|\bthe {_NOUN} at the (?:start|beginning|top)\b(?P<begins>)|\bthe {_NOUN} at the (?:end|bottom)\b(?P<ends>)",
    re.IGNORECASE,
)
_PART_OF_ONE = re.compile(
    r"\b(?:on|at|in|after|during|its|his|her|their|your|my|a|each|every|until|before|upon) (?:the )?$", re.IGNORECASE
)
_COMPARED = re.compile(
    r"\b(?:than|beats?|outperforms?|surpass\w*|over|behind|ahead of|above|below|trails|as \w+ as|equal to|matches"
    r"|tops|outclasses|inferior to|superior to|loses to|lost to|on (?:a )?par with"
    r"|(?:tie[sd]?|level|compared|equal) with|same as|similar to|compared to|like|unlike) (?:both )?(?:the )?$",
    re.IGNORECASE,
)
_CHAIN = re.compile(
    rf"(?<![\w.,])(?:the )?(?:{_NTH}|\d{{1,2}})(?:\s*[>≻]\s*(?:the )?(?:{_NTH}|\d{{1,2}})){{1,40}}(?![\w%]|[.,]\d)",
    re.IGNORECASE,
)
_LIST = re.compile(
    rf"(?<![\w-])(?:the )?(?:{_NTH})(?: {_NOUN})?"
    rf"(?:\s*(?:,|;|/|\band\b|\bthen\b|\bfollowed by\b){{1,2}}\s*(?:the )?(?:{_NTH})(?: {_NOUN})?\b){{1,40}}",
    re.IGNORECASE,
)
_HEAD = re.compile(
    rf"(?:(?<=^)|(?<=[.;,!|\n] )|(?<=[\n*-]))(?:the )?(?P<nth>{_NTH})(?: {_NOUN})?(?=[*_]{{0,2}}\s?[:=]\s)",
    re.IGNORECASE,
)
_COMPARES = re.compile(
    r" (?:is|was|does|did|handles?|handled|performs?|performed)\b.{0,25}\b(?:better|worse|stronger|weaker)\b",
    re.IGNORECASE,
)
_LINK = re.compile(rf"{_NTH}|\d+", re.IGNORECASE)
_HINT = re.compile(
    rf"\b(?:{_NTH}|final|number|middle|start|beginning|end|top|bottom|{'|'.join(_COUNTED)})\b|\bn[or]\.|[>≻]",
    re.IGNORECASE,
)
_NEAR = 60
"""Characters before a position that say whether it is one of a member."""


def readings(text: str, said: Said, subject: str = "") -> Iterator[str]:
    """The text with labels for positions: one for each order that positions may be counted in.

    `subject`: whose explanation the text is. There, and in a line that names a member by its label, only what is
    compared with something counts as a member: an attempt has a first call and a second answer of its own.
    """
    if not _HINT.search(text):
        yield text
        return
    one = _by_labels(text, said, subject)
    yield one
    if one != text and list(said.listed) != list(said.scores):
        yield _by_labels(text, said.as_listed(), subject)


def in_every_reading(problem: Callable[[str], str], text: str, said: Said, subject: str = "") -> str:
    """The problem that a text has in its first reading, if it has one in each; empty = none."""
    found = [problem(reading) for reading in readings(text, said, subject)]
    return found[0] if all(found) else ""


def position(value: object, said: Said) -> str:
    """The label of the member that a field names by its position alone, "second" or 2; empty = it names none."""
    if isinstance(value, str):
        bare = re.fullmatch(rf"(?:the )?({_NTH}|\d{{1,2}})(?: {_NOUN})?\.?", value.strip(), re.IGNORECASE)
        value = bare[1].casefold() if bare else None
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    return _label(str(value), said)


def _label(name: str, said: Said) -> str:
    labels, place = list(said.scores), _PLACES.get(name, int(name) - 1 if name.isdigit() else None)
    return labels[place].upper() if place is not None and -1 <= place < len(labels) and name != "0" else ""


def _by_labels(text: str, said: Said, subject: str) -> str:
    if not subject:
        heads = [_label(found["nth"].casefold(), said) for found in _HEAD.finditer(text)]
        if all(heads) and sorted(heads) == sorted(label.upper() for label in said.scores):
            text = _HEAD.sub(lambda found: _label(found["nth"].casefold(), said), text)
    return "".join(_line_by_labels(line, said, subject) for line in text.splitlines(keepends=True))


def _line_by_labels(line: str, said: Said, subject: str) -> str:
    names_others = bool(subject) or said.mention.search(line) is not None or ORDINAL.search(line) is not None

    def of_chain(found: re.Match[str]) -> str:
        names = [_label(link.casefold(), said) for link in _LINK.findall(found[0])]
        return " > ".join(names) if all(names) and len(set(names)) == len(names) else found[0]

    def of_name(found: re.Match[str]) -> str:
        before = line[max(0, found.start() - _NEAR) : found.start()]
        compared = _COMPARED.search(before) or (subject and _COMPARES.match(line[found.end() : found.end() + _NEAR]))
        if (names_others and not compared) or _PART_OF_ONE.search(before):
            return found[0]
        return _label_of(found, said) or found[0]

    def of_list(found: re.Match[str]) -> str:
        names = [_label(link.casefold(), said) for link in _LINK.findall(found[0])]
        return ", ".join(names) if all(names) and len(set(names)) == len(names) == len(said.scores) else found[0]

    if not subject:
        line = _LIST.sub(of_list, _CHAIN.sub(of_chain, line))
    return _NAMED.sub(of_name, line)


def _label_of(found: re.Match[str], said: Said) -> str:
    count = len(said.scores)
    if found["middle"] is not None:
        return list(said.scores)[count // 2].upper() if count % 2 else ""
    if found["begins"] is not None:
        return _label("first", said)
    if found["ends"] is not None:
        return _label("last", said)
    return _label((found["nth"] or found["bare"] or found["number"]).casefold(), said)
