"""Praise: how good a clause calls the work of a member, from -2 to 2.

    "Flawless."  2      "failed the task"  -1      "found a terrible price"  none: it tells what happened

A short clause is a verdict, a long one tells what happened: only a clause that holds nothing else than a verdict, or
the fixed phrases of one, counts. So an explanation may call a price the best and a tool's answer wrong.
"""

import re
from collections.abc import Iterable
from functools import cache, lru_cache

from gavel.judge.reply.claims import Said
from gavel.judge.reply.clauses import UNSPACED, WORD, Clause, denied
from gavel.judge.reply.lexicon import Words, levels, pattern

_FAILED = re.compile(
    r"\b(?:got|gets) (?:it|everything|this) (?:\w+ )?wrong\b"
    r"|\b(?:fail(?:s|ed)?|flunk(?:s|ed)?) (?:at |in )?(?:the|its|this|that|every|each) (?:\w+ )?(?:task|job"
    r"|goal|request|test|rubric|user)\b"
    r"|\b(?:fail(?:s|ed)?|flunk(?:s|ed)?)\s*$",
    re.IGNORECASE,
)

_SOLVED = re.compile(
    r"\b(?:got|gets) (?:it|everything|this) (?:\w+ )?right\b"
    r"|\b(?:solve[sd]?|complete[sd]?|finish(?:es|ed)?|accomplish(?:es|ed)?|fulfil(?:l|s|led|ls)?|achieve[sd]?|master(?:s|ed)?"
    r"|passe[sd]|aced)"
    r" (?:it|(?:the|its|this) (?:whole |entire )?(?:task|job|goal|request|problem|test))\b",
    re.IGNORECASE,
)

_GRADED = re.compile(
    r"\W*(?i:(?:overall |final |letter )?(?:grade|mark|note|nota|оценка)\W{0,3})?(?P<letter>[A-F])[+−-]?\W*"
)

FILLERS = frozenset(
    [
        "handled",
        "handles",
        "done",
        "executed",
        "from",
        "start",
        "finish",
        "end",
        "to",
        "help",
        "throughout",
        "solution",
        "way",
        "is",
        "was",
        "were",
        "be",
        "been",
        "being",
        "are",
        "has",
        "had",
        "have",
        "does",
        "did",
        "do",
        "a",
        "an",
        "the",
        "very",
        "quite",
        "rather",
        "really",
        "clearly",
        "overall",
        "it",
        "its",
        "this",
        "round",
        "around",
        "all",
        "earns",
        "gets",
        "receives",
        "got",
        "total",
        "complete",
        "utter",
        "plain",
        "sheer",
        "absolute",
        "entire",
        "that",
        "here",
        "again",
        "still",
        "just",
        "simply",
        "also",
        "and",
        "or",
        "both",
        "all",
        "every",
        "most",
        "more",
        "so",
        "such",
        "too",
        "one",
        "attempt",
        "trajectory",
        "run",
        "task",
        "job",
        "goal",
        "user",
        "request",
        "work",
        "result",
        "results",
        "outcome",
        "performance",
        "verdict",
        "quality",
        "grade",
        "rating",
        "mark",
        "score",
        "level",
        "execution",
        "effort",
        "answer",
        "response",
        "in",
        "of",
        "at",
        "on",
        "by",
        "far",
        "for",
        "as",
        "seems",
        "looks",
        "appears",
        "ist",
        "war",
        "sehr",
        "ganz",
        "klar",
        "der",
        "die",
        "das",
        "ein",
        "eine",
        "es",
        "la",
        "el",
        "los",
        "las",
        "un",
        "una",
        "muy",
        "est",
        "était",
        "très",
        "le",
        "les",
        "c",
        "il",
        "elle",
        "é",
        "foi",
        "muito",
        "o",
        "è",
        "stato",
        "molto",
        "это",
        "был",
        "была",
        "очень",
        "и",
        "aufgabe",
        "tarea",
        "tâche",
        "tarefa",
        "compito",
        "задачу",
        "задача",
        "versuch",
        "intento",
        "tentative",
        "tentativa",
        "попытка",
    ]
)


def verdicts(parts: Iterable[Clause], subject: str) -> list[int]:
    """The verdicts, from -2 to 2, that the clauses of a member's explanation pass on it."""
    found = (verdict_of(clause) for clause in parts if clause.member == subject)
    return [level for level in found if level is not None]


def verdicts_contradict(found: dict[str, list[int]], said: Said, apart: int = 2) -> str:
    """Why verdicts contradict scores: a member that is only praised scores below one that is only blamed."""
    scores = said.scores
    lowest, highest = min(scores.values()), max(scores.values())
    for name, own in found.items():
        if own and max(own) < 0 and scores[name] == highest > lowest and highest >= 0.7:
            return f"{name.upper()} is called bad"
        if own and min(own) > 0 and max(own) > 1 and scores[name] == lowest < highest and lowest < 0.5:
            return f"{name.upper()} is called very good"
        for other, theirs in found.items():
            if own and theirs and scores[name] < scores[other] and min(own) - max(theirs) >= apart:
                return f"{name.upper()} is called better than {other.upper()}"
    return ""


def verdict_of(clause: Clause) -> int | None:
    """The verdict of a clause that holds nothing else, from -2 to 2."""
    return _verdict_of(clause.text, clause.own)


_GIVES = re.compile(
    r"\W*(?:so |hence |therefore |thus |and )?"
    r"(?:(?:this|it)?(?: one| attempt)? ?(?:only )?(?:gets|receives|earns|deserves)"
    r"|(?:I|we)(?: would|['’]d)? (?:give|award|grant) (?:it|this)(?: one| attempt)?)"
    r" (?:an? |the )?(?P<what>.+?)\W*",
    re.IGNORECASE,
)
_MAX_WORDS = 9
"""Words of a longer clause hold more than a verdict on its own member."""


@lru_cache(maxsize=4096)
def _verdict_of(text: str, own: bool) -> int | None:
    words = [word.casefold() for word in WORD.findall(text)]
    if len(text) > 160 or (own and len(words) > _MAX_WORDS and text.isascii()):
        return None
    if re.search(r"\b(?:if|would|could|should|might|or|seems to)\b", text) or re.search(r"\bas \w+ as\b", text):
        return None
    if len(words) <= _MAX_WORDS:
        for pair, level in ((_FAILED, -1), (_SOLVED, 1)):
            if found := pair.search(text):
                if re.search(r"\b(?:half|part|almost|nearly|first)\b", text):
                    return None
                return -level if denied(text, found.start()) else level
    negated = pattern("not").search(text)
    for concept, level in (("low_score", -2), ("high_score", 2)):
        if not own and pattern(concept).search(text) and pattern("deserves").search(text):
            return -level if negated else level
        if own and (gives := _GIVES.fullmatch(text)) and pattern(concept).fullmatch(gives["what"]):
            return level
    if graded := _GRADED.fullmatch(text.strip()):
        return "FDCBA".index(graded["letter"].upper().replace("E", "F")) - 2
    if UNSPACED.search(text):
        return _unspaced_verdict(text)
    if not words or len(words) > 6:
        return None
    level, rest = _phrase_level(" ".join(words))
    if level is None or any(word not in FILLERS and not pattern("not").fullmatch(word) for word in rest):
        return None
    is_denied = negated and not pattern("not").fullmatch(" ".join(words)) and any(map(pattern("not").fullmatch, rest))
    return -level if is_denied else level


def _phrases() -> Words:
    return pattern("awful", "poor", "fair", "good", "superb")


def _phrase_level(text: str) -> tuple[int | None, list[str]]:
    """The level of the verdict in a text, and its other words."""
    found = list(_phrases().finditer(text))
    if not found:
        return None, []
    values = {level_of(match[0]) for match in found} - {None}
    rest = _phrases().sub(" ", text).split()
    return (values.pop() if len(values) == 1 else None), rest


def _unspaced_verdict(text: str) -> int | None:
    found = _phrases().search(text)
    bare = re.sub(r"[\W_]+|[的了是很都也を がはにで]", "", text)
    if not found or len(bare) > len(found[0]) + 2:
        return None
    level = level_of(found[0])
    return -level if level is not None and denied(text, found.start()) else level


@cache
def level_of(word: str) -> int | None:
    """The level of a word or phrase, from -2 to 2; None = it is no verdict."""
    word = re.sub(r"[\s_-]+", " ", word.strip().casefold())
    if word in levels():
        return levels()[word]
    concepts = (("superb", 2), ("awful", -2), ("good", 1), ("poor", -1), ("fair", 0))
    return next((level for concept, level in concepts if pattern(concept).fullmatch(word)), None)
