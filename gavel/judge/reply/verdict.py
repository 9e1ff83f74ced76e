"""A judge's reply -> scores by label, or a `VerdictError` that says what is wrong with it.

Scores are matched by label, never by position, and only if the reply has exactly one reading. Syntax
(`gavel.judge.reply.lenient_json`) and form are repaired, and every repair is counted by kind. Meaning is never
repaired: an unknown label, another scale or an ambiguous number goes back to the judge.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gavel.judge.reply.answer import final_answer
from gavel.judge.reply.claims import Said
from gavel.judge.reply.errors import VerdictError
from gavel.judge.reply.explanations import problems_with_explanations
from gavel.judge.reply.fields import problems_with
from gavel.judge.reply.forms import WRAPPERS, Answer, words
from gavel.judge.reply.positions import in_every_reading
from gavel.judge.reply.surroundings import problem_after, problem_before, problem_with_comment

_MAX_SURROUNDINGS = 50_000
"""Characters around the object and outside thoughts, and as many within it beside the scores."""
_FENCE = re.compile(r"(?:`{3,}|~{3,})[\w+.-]*")
_PERCENT = re.compile(r"(\d{1,3}(?:[.,]\d+)?)\s?(?:[%％]|percent)", re.ASCII | re.IGNORECASE)
_FRACTION = re.compile(r"(\d{1,3}(?:[.,]\d+)?)\s?(?:/|out of)\s?(\d{1,3})", re.ASCII | re.IGNORECASE)
_DECIMAL = re.compile(r"\+?(?:0?[.,]\d+|[01](?:[.,]0{1,2})?|\d[.]?\d*e-\d+)", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Scored:
    score: float
    """In [0, 1]."""
    explanation: str = ""
    criteria: Mapping[str, float] = field(default_factory=dict[str, float])
    """Scores by criterion; `score` is their weighted mean. Empty for a rubric without criteria."""
    spread: float | None = None
    """Standard deviation of the distribution whose mean `score` is; None = the score was said."""


@dataclass(frozen=True, slots=True)
class Verdict:
    scores: dict[str, Scored]
    """By label, in the order of the labels."""
    repairs: Counter[str] = field(default_factory=Counter[str])
    """Number of repairs by kind; empty for a reply in the requested form."""
    unread: dict[str, str] = field(default_factory=dict[str, str])
    """By label, why there is no score; empty for a reply in words, which scores all or cannot be used."""


def reply_schema(labels: Sequence[str]) -> dict[str, Any]:
    """The JSON schema of a reply. It is the same for all orders of the labels, since it is part of a cached prompt."""
    entry = {
        "type": "object",
        "properties": {
            "trajectory_id": {"type": "string", "enum": sorted(labels)},
            "explanation": {"type": "string"},
            "score": {"type": "number"},
        },
        "required": ["trajectory_id", "explanation", "score"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {"scores": {"type": "array", "items": entry}},
        "required": ["scores"],
        "additionalProperties": False,
    }


def read_verdict(
    reply: str,
    labels: Sequence[str],
    groups: Iterable[str] = (),
    *,
    names: Collection[str] = (),
    cut_off: bool = False,
    by_program: bool = False,
) -> Verdict:
    """The score of every label, from the final reply object in the text, or from one object per label.

    `groups` are names of wrappers in which labels may be grouped, `names` further names of members. `cut_off`: the
    reply ended at the token limit, so only the object alone is taken. `by_program`: its explanations quote the rubric
    and the attempts and are never second thoughts, so they are not held against the scores. Raises `VerdictError`
    unless each label has exactly one score, a number from 0 to 1, and nothing else that the reply says changes one.
    """
    if not reply.strip():
        raise VerdictError("it is empty")
    wrappers = WRAPPERS.union(*map(words, groups))
    answer, before, after = final_answer(reply, {label.casefold(): label for label in labels}, wrappers)
    scores: dict[str, Scored] = {}
    problems = [f"it is on a scale up to {top}, not up to 1" for top in answer.scales]
    for entry in answer.entries:
        try:
            scored = Scored(_read_score(entry.value, answer.repairs), entry.explanation)
        except VerdictError as error:
            problems.append(f"the score of {entry.label} is {error}")
            continue
        if entry.label in scores:
            answer.repairs["duplicate"] += 1
        if scores.setdefault(entry.label, scored).score != scored.score:
            problems.append(f"{entry.label} has two different scores")
    if missing := [label for label in labels if label not in answer.names()]:
        problems.append(f"there is no score for {', '.join(missing)}")
        problems += [f"{name} is none of the ids" for name in answer.unknown_labels]
    else:
        problems += [f"its JSON holds {stray}" for stray in answer.strays]
    if len(before) + len(after) > _MAX_SURROUNDINGS:
        problems.append("there is too much text around its JSON object")
    if not by_program and sum(map(len, _texts_within(answer))) > _MAX_SURROUNDINGS:
        problems.append("there is too much text beside its scores")
    if not problems:
        said = Said.of({label: scores[label].score for label in labels}, names, scores)
        around = ((problem_before, before), (problem_after, after))
        problems += filter(None, (in_every_reading(partial(of, said=said), text, said) for of, text in around))
        problems += problems_with(answer.fields, said)
        explanations = {label.casefold(): scores[label].explanation for label in labels}
        problems += [] if by_program else problems_with_explanations(explanations, said)
        problems += filter(None, (problem_with_comment(comment, said) for comment in answer.comments))
        if cut_off and (re.search(r"\w", _FENCE.sub("", before + after)) or answer.repairs["bracket"]):
            problems.append("it is not only the JSON object")
    if problems:
        raise VerdictError("; ".join(dict.fromkeys(problems)))
    answer.repairs["unknown label"] += len(answer.unknown_labels)
    return Verdict({label: scores[label] for label in labels}, +answer.repairs)


def _texts_within(answer: Answer) -> Iterator[str]:
    """What an answer holds beside scores: its explanations, comments and further fields."""
    yield from {entry.explanation for entry in answer.entries}
    yield from answer.comments
    yield from (json.dumps(field.value, ensure_ascii=False, default=str) for field in answer.fields)


def _read_score(value: Any, repairs: Counter[str]) -> float:
    shown = json.dumps(value, ensure_ascii=False, default=str)[:40]
    if isinstance(value, str):
        value = _number(value.strip())
        repairs["number"] += 1
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise VerdictError(f"{shown}, not a number")
    if not 0 <= value <= 1:
        raise VerdictError(f"{shown}, not from 0 to 1")
    return float(value) + 0.0


def _number(text: str) -> float | None:
    """The number in a string; None if it has two readings, such as "0.9%" or "0.9/10"."""
    if _DECIMAL.fullmatch(text):
        return float(text.replace(",", "."))
    if percent := _PERCENT.fullmatch(text):
        part, whole = percent[1], "100"
    elif fraction := _FRACTION.fullmatch(text):
        part, whole = fraction[1], fraction[2]
    else:
        return None
    number = float(part.replace(",", "."))
    if int(whole) == 0 or (0 < number < 1 and whole != "1"):
        return None
    return number / int(whole)
