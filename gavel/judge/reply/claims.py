"""Claims: the numbers that prose gives members, and whether they are the scores of the object.

"W7QX: 0.9, B3KD (20%)"          two claims, equal to scores of .9 and .2
"W7QX made 3 calls in 0.5 s"     counts and measures, no claims
"Trajectory 2: 0.2"              a claim about the second label shown
"""

import re
from bisect import bisect
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gavel.judge.reply import vocabulary as say
from gavel.judge.reply.lexicon import Words
from gavel.judge.reply.mentions import Mentions

_UNITS = r"%|％|percent|per cent|prozent|por ciento|процент\w*|points?|pts?|stars?|★|punkte?|puntos?|балл\w*|分|点|점"
_NUMBER = re.compile(
    r"(?<![\w.,])[-+~≈]?(?P<n>\d{1,9}(?:[.,]\d{1,9})?|[.,]\d{1,9})"
    r"(?:[ ]?(?:/|out of|of|von|de|sur|из|中)[ ]?(?P<whole>\d{1,4}(?:\.\d+)?))?"
    rf"(?:[ -]?(?P<unit>{_UNITS}))?(?![\w])(?P<noun>[ ](?:[A-Za-zÀ-ÿ]+))?",
    re.IGNORECASE,
)
_NOT_A_NOUN = frozenset(
    {
        *("and", "for", "because", "since", "as", "but", "while", "vs", "versus", "overall", "then", "though"),
        *("which", "given", "due", "or", "at", "is", "was", "to", "so", "if", "with", "by", "on", "und", "für"),
        *("weil", "y", "para", "porque", "et", "pour", "car", "и", "так"),
    }
)
ATTEMPTS = (
    r"trajector(?:y|ies)|attempts?|candidates?|rollouts?|responses?|agents?|members?|options?|runs?|entr(?:y"
    r"|ies)|answers?"
    r"|versuche?n?|trajektorien?|intentos?|trayectorias?|tentatives?|trajectoires?|попыт\w*|траектор\w*|items?"
    r"|solutions?|ids"
)
_ORDINAL = (
    rf"\b(?:{ATTEMPTS})[ ]*(?:no\.?|number|nr\.?|id)?[ ]*[#№(\[]?[ ]*(\d{{1,3}})\b(?![.,]\d|[ ]?(?:%|/|out of))"
    rf"(?:(?:[ ]*,[ ]*|[ ]*&[ ]*|[ ]+(?:and|or|und|y|et|и)[ ]+)#?(\d{{1,3}})\b(?![.,]\d|[ ]?(?:%|/|out of)))*"
    r"|(?<!\w)[#№](\d{1,3})\b(?![.,]\d)|第\s*(\d{1,3})|(?:轨迹|尝试|候选|試行)\s*(\d{1,3})(?![.,]\d)"
)
ORDINAL = Words(lambda plain: _ORDINAL)
_COUNT = re.compile(
    rf"\b(\d{{1,3}})[ ]+(?:[A-Za-z]+[ ]+){{0,2}}(?:{ATTEMPTS}|scores|objects|criteria)\b", re.IGNORECASE
)
UNIT_RANGE = re.compile(
    r"(?:(?:from|between|in|on|of|range|scale|von|de|entre|от"
    r"|从)\s*(?:the\s*)?)?[\[(]?(?<![\w.,])0(?:[.,]0+)?(?P<zero>\s*\([^()]{0,60}\))?\s*"
    r"(?:-|–|—|~|to|and|,|\.\.|…|through|bis|und|a|y|à|et|до|и|到|至|〜|から)\s*1(?:[.,]0+)?(?![\w%]|[.,]\d"
    r"|/)(?P<one>\s*\([^()]{0,60}\))?[\])]?",
    re.IGNORECASE,
)
_GLOSSES = re.compile(
    r"0(?:\.0)?[ ]?(?:=|:|is|means)[ ]?[a-z ]{1,20}[,;]?[ ](?:and )?1(?:\.0)?[ ]?(?:=|:|is|means)[ ]?[a-z ]{1,20}",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"[\"“](?:[^\"”\n ]{1,40}[ ]){2,40}[^\"”\n]{1,40}[\"”]")
"""Reported speech."""
_NUMBERED = re.compile(
    r"(?:steps?|turns?|messages?|calls?|rules?|sections?|lines?|orders?|blocks?|parts?|page|errors?)[ ]?#?$",
    re.IGNORECASE,
)
_TASKS_OWN = re.compile(
    r"\b(?:task|agent|customer|user|tool|test|game|benchmark|quiz|exam|essay|review|problem|puzzle)['’]s (?:own )?\w+",
    re.IGNORECASE,
)
"""Numbers of the task, which may have a scale of its own."""
_CLOSE = 1e-9


@dataclass(frozen=True, slots=True)
class Said:
    """The scores that the object gives, and what finds a member's name in prose."""

    scores: Mapping[str, float]
    """By label in lower case, in the order of the labels."""
    mention: Mentions
    listed: Sequence[str] = ()
    """The labels in lower case in the order of the entries, which prose may number too."""

    @classmethod
    def of(cls, scores: Mapping[str, float], names: Collection[str] = (), listed: Iterable[str] = ()) -> "Said":
        """`names`: further names of members that prose may use; `listed`: labels in the order of the entries."""
        folded = {label.casefold(): score for label, score in scores.items()}
        order = tuple(dict.fromkeys(map(str.casefold, listed))) or tuple(folded)
        return cls(folded, Mentions({*scores, *names}), order)

    def by_criterion(self) -> "list[Said]":
        """The scores of each criterion, where a member has one for each (`W7QXa`, `W7QXb`); else these scores."""
        letters = {label[-1] for label in self.scores}
        if not all(self.mention.fullmatch(label[:-1]) for label in self.scores):
            return [self]
        return [
            replace(
                self,
                scores={label: score for label, score in self.scores.items() if label[-1] == letter},
                listed=[label for label in self.listed if label[-1] == letter],
            )
            for letter in sorted(letters)
        ]

    def of_criterion(self, label: str) -> "Said":
        """The scores that the score of a label is compared with."""
        return next((part for part in self.by_criterion() if label in part.scores), self)

    def as_listed(self) -> "Said":
        """The same with the members numbered as the entries are."""
        return replace(self, scores={label: self.scores[label] for label in self.listed})

    def are(self, value: float, name: str | None = None) -> bool:
        """Whether a number is the score of a member, or of any. A member may have a score for each criterion."""
        if name is not None and name in self.scores:
            return abs(value - self.scores[name]) < _CLOSE
        own = [score for label, score in self.scores.items() if name is None or label[:-1] == name]
        return any(abs(value - score) < _CLOSE for score in own)


def gives_other_scores(sentence: str, said: Said, *, after: bool) -> bool:
    """Whether a sentence gives numbers that are not the scores. `after` the object nothing but attempts is counted."""
    rest = _GLOSSES.sub(" ", UNIT_RANGE.sub(" ", sentence))
    if not after:
        rest = _QUOTED.sub(" ", rest)
    members = [(found.start(), found.end(), found[0].casefold()) for found in said.mention.finditer(rest)]
    covered = list(ORDINAL.finditer(rest))
    for found in covered:
        number = next(filter(None, found.groups()))
        labels = list(said.scores)
        own = (
            labels[int(number) - 1]
            if 0 < int(number) <= len(labels) and len(re.findall(r"\d+", found[0])) == 1
            else "?"
        )
        members.append((found.start(), found.end(), own))
    members.sort()
    rest = _blank(rest, [(start, end) for start, end, _ in members])
    if after:
        rest = re.sub(r"^\s{0,9}[-*]?\s{0,9}\d{1,2}[.)]\s", lambda found: " " * len(found[0]), rest)
        if any(
            int(found[1]) != len(said.scores) and int(found[1]) > len(said.scores) for found in _COUNT.finditer(rest)
        ):
            return True
        rest = _blank(rest, [found.span() for found in _COUNT.finditer(rest)])
        if _loose_digits(rest):
            return True
    if not after and _TASKS_OWN.search(rest) and not members:
        return False
    strict = after or (not members and bool(say.SCALE.search(rest)))
    if strict and not after:
        rest = _blank(rest, [found.span() for found in _COUNT.finditer(rest)])
    numbers = [
        (found.start(), value)
        for found in _NUMBER.finditer(rest)
        if (value := _score_like(found, rest, members, after, strict)) is not None
    ]
    if not numbers:
        return False
    if not members:
        values = [value for _, value in numbers]
        if len(values) > 1 and not after and not re.search(r"\brange|\bbetween\b|\bfrom\b|=", rest):
            return values != list(said.scores.values())
        about = strict or say.SCORE_TALK.search(rest) or len(numbers) > 1
        return bool(about) and not all(said.are(value) or (value in (0, 1) and not after) for _, value in numbers)
    return not (_assigned(numbers, members, said, forward=True) or _assigned(numbers, members, said, forward=False))


def _loose_digits(text: str) -> bool:
    """Whether a digit is no part of a number that can be read."""
    left = _NUMBER.sub(" ", text)
    return any(map(str.isdigit, left))


def _blank(text: str, spans: Collection[tuple[int, int]]) -> str:
    parts, position = list[str](), 0
    for start, end in sorted(spans):
        if start >= position:
            parts += text[position:start], " " * (end - start)
            position = end
    return "".join([*parts, text[position:]])


def _score_like(
    found: re.Match[str], text: str, members: list[tuple[int, int, str]], after: bool, strict: bool
) -> float | None:
    """The number as a score from 0 to 1; None when it counts something else."""
    number = float(found["n"].replace(",", "."))
    unit, whole = (found["unit"] or "").casefold(), found["whole"]
    noun = (found["noun"] or "").strip().casefold()
    if whole:
        number = number / float(whole) if float(whole) else -1.0
    elif unit.startswith(("%", "％", "per", "pro", "por", "про")):
        number /= 100
    elif unit:
        number = number if number <= 1 else -number
    if after:
        return number
    if (
        noun
        and not (strict and re.search("[.,]", found["n"]))
        and noun not in _NOT_A_NOUN
        and not (unit and not unit.startswith(("%", "％", "p")))
    ):
        return None
    before = text[max(0, found.start() - 24) : found.start()]
    if not after and _NUMBERED.search(before):
        return None
    if strict:
        return number
    if re.search(r"[$€£#]\s*$", before):
        return None
    if whole or unit or ("." in found[0] and number <= 1) or "," in found["n"]:
        return number
    index = bisect(members, (found.start(),)) - 1
    near = index >= 0 and 0 <= found.start() - members[index][1] <= 24
    follows = text[found.end() : found.end() + 2]
    assigned = re.search(
        r"(?:[:=→>(]|->|gets?|deserves?|earns?|scores?|score of|rated?|an?|give)[\s*_`]*$", before, re.IGNORECASE
    )
    if near and assigned and not re.match(r"\s?[A-Za-z\-]", follows):
        return number
    return None


def _assigned(numbers: list[tuple[int, float]], members: list[tuple[int, int, str]], said: Said, forward: bool) -> bool:
    """Whether each number is the score of the nearest member before it, or (not `forward`) after it."""
    starts = [start for start, _, _ in members]
    for position, value in numbers:
        index = bisect(starts, position) - forward
        if not 0 <= index < len(members) or not said.are(value, members[index][2]):
            return False
    return True
