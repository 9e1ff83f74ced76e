"""A judge's reply -> scores by label, or a `VerdictError` that says what is wrong with it.

Scores are matched by label, never by position, and only if the reply has exactly one reading. Syntax
(`gavel.judge.reply.lenient_json`) and form are repaired, and every repair is counted by kind. Meaning is never
repaired: an unknown label, another scale or an ambiguous number goes back to the judge.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, cast

from gavel.judge.reply.lenient_json import Broken, Found, Repeated, find_values
from gavel.llm.errors import GavelError

_LABEL_KEYS = {
    *("trajectory_id", "trajectoryid", "id", "trajectory", "trajectory_label", "label", "name"),
    *("candidate", "attempt", "rollout"),
}
_SCORE_KEYS = {"score", "final_score", "overall_score", "finalscore", "overallscore", "rating", "grade"}
_EXPLANATION_KEYS = ("explanation", "reason", "reasoning", "rationale")
_KEYS = {*_LABEL_KEYS, *_SCORE_KEYS, *_EXPLANATION_KEYS, "scores"}
_LABEL_DECORATIONS = {
    "trajectory",
    "traj",
    "id",
    "label",
    "the",
    "candidate",
    "attempt",
    "rollout",
    "response",
    "score",
    "for",
}
"""Words around a label that do not change its meaning."""
_BETWEEN = {*_LABEL_DECORATIONS, "json", "and"}
"""Words that may occur between the objects of one answer."""
_SCORES = {"score", "scores", "rating", "ratings", "grade", "grades"}
"""Words in a wrapper's name that show that the scores are inside."""
_WRAPPERS = {
    *(*_SCORES, *_BETWEEN, "trajectories", "candidates", "attempts", "rollouts", "responses", "ids", "labels"),
    *("result", "results", "output", "outputs", "answer", "answers", "reply", "return", "submit", "structured", "data"),
    *("function", "tool", "call", "input", "arguments", "args", "parameters", "content", "value", "values"),
    *("evaluation", "evaluations", "assessment", "assessments", "judgement", "judgements", "judgment", "judgments"),
    *("verdict", "verdicts", "reward", "rewards", "final", "overall", "quality", "relative", "normalized", "by", "of"),
}
"""Words in a wrapper's name that are compatible with bare numbers inside being scores."""
_SOMETHING_ELSE = re.compile(
    r"(?<![a-z])(?:draft|initial|first|prelim|tentative|previous|old|before|example|template|format|schema|thought"
    r"|thinking|scratch|rank|order|position|confiden|certain|uncertain|probab|weight|count|length|step|max|min)"
)
"""Words in a wrapper's name that show that the content is not the final scores."""
_TOP_KEYS = {"max", "max_score", "maximum", "maximum_score", "out_of", "scale", "score_scale", "range", "score_range"}
"""Keys that state the scale of the scores; the last number in their value is the highest score."""
_MAX_WRAPPERS = 8
"""Nested wrappers around the scores."""

_PERCENT = re.compile(r"(\d{1,3}(?:[.,]\d+)?)\s?(?:[%％]|percent)", re.ASCII | re.IGNORECASE)
_FRACTION = re.compile(r"(\d{1,3}(?:[.,]\d+)?)\s?(?:/|out of)\s?(\d{1,3})", re.ASCII | re.IGNORECASE)
_DECIMAL = re.compile(r"\+?(?:0?[.,]\d+|[01](?:[.,]0{1,2})?|\d[.]?\d*e-\d+)", re.ASCII | re.IGNORECASE)


class VerdictError(GavelError):
    """A judge's reply is invalid; the message names the problems and becomes part of the repair prompt."""


@dataclass(frozen=True, slots=True)
class Scored:
    score: float
    """In [0, 1]."""
    explanation: str = ""
    criteria: Mapping[str, float] = field(default_factory=dict[str, float])
    """Scores by criterion; `score` is their weighted mean. Empty for a rubric without criteria."""


@dataclass(frozen=True, slots=True)
class Verdict:
    scores: dict[str, Scored]
    """By label, in the order of the labels."""
    repairs: Counter[str] = field(default_factory=Counter[str])
    """Number of repairs by kind; empty for a reply in the requested form."""


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


def read_verdict(reply: str, labels: Sequence[str], groups: Iterable[str] = ()) -> Verdict:
    """The score of every label, from the last complete reply object in the text, or from one object per label.

    `groups` are names of wrappers in which labels may be grouped. Raises `VerdictError` unless each label has exactly
    one score, a number from 0 to 1.
    """
    if not reply.strip():
        raise VerdictError("it is empty")
    wrappers = _WRAPPERS.union(*map(_words, groups))
    answer = _last_answer(reply, {label.casefold(): label for label in labels}, wrappers)
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
    if problems:
        raise VerdictError("; ".join(dict.fromkeys(problems)))
    answer.repairs["unknown label"] += len(answer.unknown_labels)
    return Verdict({label: scores[label] for label in labels}, +answer.repairs)


@dataclass(frozen=True, slots=True)
class _Entry:
    label: str
    value: Any
    explanation: str = ""


@dataclass(slots=True)
class _Answer:
    """The entries of a reply or of a part of it."""

    entries: list[_Entry] = field(default_factory=list[_Entry])
    unknown_labels: list[str] = field(default_factory=list[str])
    """Ids that the prompt did not give out."""
    repairs: Counter[str] = field(default_factory=Counter[str])
    scales: list[str] = field(default_factory=list[str])
    """Stated highest scores above 1."""
    broken: bool = False

    def names(self) -> set[str]:
        return {entry.label for entry in self.entries}

    def add(self, other: "_Answer") -> None:
        self.entries += other.entries
        self.unknown_labels += other.unknown_labels
        self.scales += other.scales
        self.repairs += other.repairs
        self.repairs["several objects"] += 1


def _last_answer(text: str, known: Mapping[str, str], wrappers: Set[str]) -> _Answer:
    """The last object, or sequence of adjacent objects, that names all labels, with everything after it.

    If there is none, the last sequence; the caller then finds the missing labels.
    """
    rows: list[_Answer] = []
    around: Counter[str] = Counter()
    between = ""
    for found in find_values(text, {*_KEYS, *known}):
        match found:
            case "thoughts":
                rows = []
                around["thoughts"] += 1
            case Broken():
                rows.append(_Answer(broken=True))
            case Found(None, repairs, before):
                around += repairs
                between += before
            case Found(value, repairs, before, fragment):
                between += before
                reader = _FormReader(known, wrappers)
                reader.read(value)
                part = reader.answer
                if not part.entries and not part.unknown_labels and not part.broken:
                    between += " something else "
                    continue
                part.repairs += repairs
                part.broken |= fragment
                alone = part.names() >= set(known.values()) or set(_words(between)) - known.keys() - _BETWEEN
                if not rows or alone or rows[-1].broken:
                    rows.append(part)
                else:
                    rows[-1].add(part)
                between = ""
    for index in reversed(range(len(rows))):
        if rows[index].names() >= set(known.values()):
            rows = rows[index:]
            break
    else:
        rows = [row for row in rows if row.broken] + rows[-1:]
    if any(row.broken for row in rows):
        raise VerdictError("its last JSON object breaks off or is not valid JSON")
    if not rows:
        raise VerdictError("it holds no complete JSON object with the trajectories' ids and scores")
    for row in rows[1:]:
        rows[0].add(row)
    rows[0].repairs += around
    return rows[0]


class _FormReader:
    """Finds entries in a JSON value: in a list of them, in a map from label to score, or in either, wrapped."""

    def __init__(self, known: Mapping[str, str], wrappers: Set[str]) -> None:
        self.known = known
        self.wrappers = wrappers
        """Words allowed in the name of a wrapper around bare scores."""
        self.answer = _Answer()

    def read(self, value: Any, wrappers: int = 0, under: str = "") -> None:
        """`under`: the name of an enclosing wrapper in which bare numbers are not accepted as scores."""
        if wrappers > _MAX_WRAPPERS:
            return
        match value:
            case list():
                self.answer.repairs["form"] += wrappers == 0
                for item in cast("list[Any]", value):
                    self.read(item, wrappers + 1, under)
            case Repeated(values):
                for item in values:
                    self.read(item, wrappers, under)
            case str() if "{" in value:
                self.read_string(value, wrappers, under)
            case dict():
                self.read_object(self.folded(cast("dict[str, Any]", value)), wrappers, under)
            case _:
                pass

    def read_object(self, value: Mapping[str, Any], wrappers: int, under: str) -> None:
        if _LABEL_KEYS & value.keys() and _SCORE_KEYS & value.keys():
            self.read_entry(value)
        elif labelled := {key: label for key in value if (label := self.label(key))}:
            self.answer.repairs["form"] += 1
            for key, label in labelled.items():
                self.read_score(label, value[key], under)
        else:
            named = [key for key in value if _SCORES.intersection(_words(key))]
            for key in named or value:
                if not _SOMETHING_ELSE.search(key):
                    self.answer.repairs["wrapper"] += key != "scores"
                    other = under if key not in named else ""
                    self.read(value[key], wrappers + 1, other if set(_words(key)) <= self.wrappers else key)

    def folded(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """The object with its keys in lower case; a stated scale is recorded."""
        found: dict[str, tuple[Any, ...]] = {}
        for name, item in value.items():
            key = name.strip().casefold()
            found[key] = (*found.get(key, ()), *_all(item))
            self.answer.repairs["key"] += key != name and key in _KEYS
            tops = re.findall(r"\d+(?:\.\d+)?", str(item)) if key in _TOP_KEYS else []
            self.answer.scales += [top for top in tops[-1:] if float(top) > 1]
        return {key: items[0] if len(items) == 1 else Repeated(items) for key, items in found.items()}

    def read_string(self, text: str, wrappers: int, under: str) -> None:
        for found in find_values(text, {*_KEYS, *self.known}):
            if isinstance(found, Found):
                self.answer.repairs += found.repairs
                self.read(found.value, wrappers + 1, under)
            else:
                self.answer.broken = True
        self.answer.repairs["double encoding"] += 1

    def read_entry(self, entry: Mapping[str, Any]) -> None:
        names = [name for key in _LABEL_KEYS & entry.keys() for name in _all(entry[key])]
        labels = {label for name in names if (label := self.label(name))}
        if not labels:
            self.answer.unknown_labels += [name[:40] for name in names[:1] if isinstance(name, str)]
        elif len(labels) == 1:
            self.read_score(labels.pop(), entry)
        else:
            self.answer.entries += [_Entry(label, f"given to {' and '.join(sorted(labels))}") for label in labels]

    def read_score(self, label: str, item: Any, under: str = "") -> None:
        if not isinstance(item, dict):
            values = [f"{value} under {under!r}" if under else value for value in _all(item)]
            self.answer.entries += [_Entry(label, value) for value in values]
            return
        fields = self.folded(cast("dict[str, Any]", item))
        explanation = next((fields[key] for key in _EXPLANATION_KEYS if isinstance(fields.get(key), str)), "")
        explanation = explanation.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        keys = _SCORE_KEYS & fields.keys()
        self.answer.repairs["key"] += bool(keys) and "score" not in keys
        values = [value for key in sorted(keys) for value in _all(fields[key])] or [None]
        self.answer.entries += [_Entry(label, value, explanation) for value in values]

    def label(self, name: Any) -> str | None:
        """The one known label that an id names, bare or decorated as in "trajectory_K7QX"."""
        if not isinstance(name, str):
            return None
        words = set(_words(name))
        named = words & self.known.keys()
        if len(named) != 1 or words - named - _LABEL_DECORATIONS:
            return None
        label = self.known[named.pop()]
        self.answer.repairs["label"] += label.casefold() != name.casefold()
        return label


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.casefold())


def _all(value: Any) -> tuple[Any, ...]:
    return value.values if isinstance(value, Repeated) else (value,)


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
