"""A judge's reply -> scores by label, or a `VerdictError` that says what is wrong with it.

Scores are matched by label only, never by position, and nothing is guessed: a score is taken when it can be meant
in one way only. Syntax is repaired (`gavel.judge.reply.lenient_json`) and so is the reply's form; every repair is
counted by kind. Meaning is never repaired: what a label, a scale or a number was meant to be, only the judge can say.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from gavel.errors import GavelError
from gavel.judge.reply.lenient_json import Broken, Found, Repeated, find_values

_LABEL_KEYS = {
    *("trajectory_id", "trajectoryid", "id", "trajectory", "trajectory_label", "label", "name"),
    *("candidate", "attempt", "rollout"),
}
_SCORE_KEYS = {"score", "final_score", "overall_score", "finalscore", "overallscore", "rating", "grade"}
_EXPLANATION_KEYS = ("explanation", "reason", "reasoning", "rationale")
_KEYS = {*_LABEL_KEYS, *_SCORE_KEYS, *_EXPLANATION_KEYS, "scores"}
_DRESS = {"trajectory", "traj", "id", "label", "the", "candidate", "attempt", "rollout", "response", "score", "for"}
"""Words beside a label that leave its meaning alone."""
_BETWEEN = {*_DRESS, "json", "and"}
"""Words that may stand between the objects of a row."""
_SCORES = {"score", "scores", "rating", "ratings", "grade", "grades"}
"""Words in the name of a wrapper that say that the scores are in it."""
_WRAPPERS = {
    *(*_SCORES, *_BETWEEN, "trajectories", "candidates", "attempts", "rollouts", "responses", "ids", "labels"),
    *("result", "results", "output", "outputs", "answer", "answers", "reply", "return", "submit", "structured", "data"),
    *("function", "tool", "call", "input", "arguments", "args", "parameters", "content", "value", "values"),
    *("evaluation", "evaluations", "assessment", "assessments", "judgement", "judgements", "judgment", "judgments"),
    *("verdict", "verdicts", "reward", "rewards", "final", "overall", "quality", "relative", "normalized", "by", "of"),
}
"""Words in the name of a wrapper that say nothing else of bare numbers within than that they are scores."""
_SOMETHING_ELSE = re.compile(
    r"(?<![a-z])(?:draft|initial|first|prelim|tentative|previous|old|before|example|template|format|schema|thought"
    r"|thinking|scratch|rank|order|position|confiden|certain|uncertain|probab|weight|count|length|step|max|min)"
)
"""In the name of a wrapper: what is in it is not the final scores."""
_TOP_KEYS = {"max", "max_score", "maximum", "maximum_score", "out_of", "scale", "score_scale", "range", "score_range"}
"""What a reply may say of the scale of its scores; its last number is the highest score."""
_DEEPEST = 8
"""How many wrappers may be around the scores."""

_PERCENT = re.compile(r"(\d{1,3}(?:[.,]\d+)?)\s?(?:[%％]|percent)", re.ASCII | re.IGNORECASE)
_FRACTION = re.compile(r"(\d{1,3}(?:[.,]\d+)?)\s?(?:/|out of)\s?(\d{1,3})", re.ASCII | re.IGNORECASE)
_DECIMAL = re.compile(r"\+?(?:0?[.,]\d+|[01](?:[.,]0{1,2})?|\d[.]?\d*e-\d+)", re.ASCII | re.IGNORECASE)


class VerdictError(GavelError):
    """A judge's reply cannot be used; the message names what is wrong, for the judge to mend."""


@dataclass(frozen=True, slots=True)
class Scored:
    score: float
    """In [0, 1]."""
    explanation: str = ""
    criteria: Mapping[str, float] = field(default_factory=dict)
    """Scores by criterion, of which `score` is the weighted mean; empty for a rubric without criteria."""


@dataclass(frozen=True, slots=True)
class Verdict:
    scores: dict[str, Scored]
    """By label, in the order of the labels."""
    repairs: Counter[str] = field(default_factory=Counter)
    """How often what had to be repaired to read it, by kind; empty for a reply in the form that was asked for."""


def reply_schema(labels: Sequence[str]) -> dict[str, Any]:
    """The JSON schema of a reply, with the labels in the order in which they were shown."""
    entry = {
        "type": "object",
        "properties": {
            "trajectory_id": {"type": "string", "enum": list(labels)},
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
    """The score of every label, from the last complete reply object in the text.

    An object for each label will do as well; `groups` are names under which some labels may stand together. Raises
    `VerdictError` unless each label has exactly one score, a number from 0 to 1.
    """
    if not reply.strip():
        raise VerdictError("it is empty")
    wrappers = _WRAPPERS.union(*map(_words, groups))
    said = _last_words(reply, {label.casefold(): label for label in labels}, wrappers)
    scores: dict[str, Scored] = {}
    problems = [f"it is on a scale up to {top}, not up to 1" for top in said.scales]
    for entry in said.entries:
        try:
            scored = Scored(_score(entry.value, said.repairs), entry.explanation)
        except VerdictError as error:
            problems.append(f"the score of {entry.label} is {error}")
            continue
        if entry.label in scores:
            said.repairs["duplicate"] += 1
        if scores.setdefault(entry.label, scored).score != scored.score:
            problems.append(f"{entry.label} has two different scores")
    if missing := [label for label in labels if label not in said.names()]:
        problems.append(f"there is no score for {', '.join(missing)}")
        problems += [f"{name} is none of the ids" for name in said.strangers]
    if problems:
        raise VerdictError("; ".join(dict.fromkeys(problems)))
    said.repairs["unknown label"] += len(said.strangers)
    return Verdict({label: scores[label] for label in labels}, +said.repairs)


@dataclass(frozen=True, slots=True)
class _Entry:
    label: str
    value: Any
    explanation: str = ""


@dataclass(slots=True)
class _Said:
    """What a reply, or a part of it, says of the labels."""

    entries: list[_Entry] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    """Ids that were never given out."""
    repairs: Counter[str] = field(default_factory=Counter)
    scales: list[str] = field(default_factory=list)
    """The highest scores that it speaks of and that are above 1."""
    broken: bool = False

    def names(self) -> set[str]:
        return {entry.label for entry in self.entries}

    def add(self, other: "_Said") -> None:
        self.entries += other.entries
        self.strangers += other.strangers
        self.scales += other.scales
        self.repairs += other.repairs
        self.repairs["several objects"] += 1


def _last_words(text: str, known: Mapping[str, str], wrappers: Set[str]) -> _Said:
    """The last object that names all labels, or row of objects that do so together, and whatever follows it.

    Where there is none, the last row, in which labels are then missing.
    """
    rows: list[_Said] = []
    around: Counter[str] = Counter()
    between = ""
    for found in find_values(text, {*_KEYS, *known}):
        match found:
            case "thoughts":
                rows = []
                around["thoughts"] += 1
            case Broken():
                rows.append(_Said(broken=True))
            case Found(None, repairs, before):
                around += repairs
                between += before
            case Found(value, repairs, before, fragment):
                between += before
                reader = _FormReader(known, wrappers)
                reader.read(value)
                part = reader.said
                if not part.entries and not part.strangers and not part.broken:
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
    for place in reversed(range(len(rows))):
        if rows[place].names() >= set(known.values()):
            rows = rows[place:]
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
        """Words that may make up the name of what bare scores stand in."""
        self.said = _Said()

    def read(self, value: Any, wrappers: int = 0, under: str = "") -> None:
        """`under`: the name of a wrapper around the value that bare numbers may not be scores by."""
        if wrappers > _DEEPEST:
            return
        match value:
            case list():
                self.said.repairs["form"] += wrappers == 0
                for item in value:
                    self.read(item, wrappers + 1, under)
            case Repeated(values):
                for item in values:
                    self.read(item, wrappers, under)
            case str() if "{" in value:
                self.read_string(value, wrappers, under)
            case dict():
                self.read_object(self.folded(value), wrappers, under)

    def read_object(self, value: Mapping[str, Any], wrappers: int, under: str) -> None:
        if _LABEL_KEYS & value.keys() and _SCORE_KEYS & value.keys():
            self.read_entry(value)
        elif labelled := {key: label for key in value if (label := self.label(key))}:
            self.said.repairs["form"] += 1
            for key, label in labelled.items():
                self.read_score(label, value[key], under)
        else:
            named = [key for key in value if _SCORES.intersection(_words(key))]
            for key in named or value:
                if not _SOMETHING_ELSE.search(key):
                    self.said.repairs["wrapper"] += key != "scores"
                    other = under if key not in named else ""
                    self.read(value[key], wrappers + 1, other if set(_words(key)) <= self.wrappers else key)

    def folded(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """The object with its keys in lower case; what it says of its scale is noted."""
        found: dict[str, tuple[Any, ...]] = {}
        for name, item in value.items():
            key = name.strip().casefold()
            found[key] = (*found.get(key, ()), *_all(item))
            self.said.repairs["key"] += key != name and key in _KEYS
            tops = re.findall(r"\d+(?:\.\d+)?", str(item)) if key in _TOP_KEYS else []
            self.said.scales += [top for top in tops[-1:] if float(top) > 1]
        return {key: items[0] if len(items) == 1 else Repeated(items) for key, items in found.items()}

    def read_string(self, text: str, wrappers: int, under: str) -> None:
        for found in find_values(text, {*_KEYS, *self.known}):
            if isinstance(found, Found):
                self.said.repairs += found.repairs
                self.read(found.value, wrappers + 1, under)
            else:
                self.said.broken = True
        self.said.repairs["double encoding"] += 1

    def read_entry(self, entry: Mapping[str, Any]) -> None:
        names = [name for key in _LABEL_KEYS & entry.keys() for name in _all(entry[key])]
        labels = {label for name in names if (label := self.label(name))}
        if not labels:
            self.said.strangers += [name[:40] for name in names[:1] if isinstance(name, str)]
        elif len(labels) == 1:
            self.read_score(labels.pop(), entry)
        else:
            self.said.entries += [_Entry(label, f"given to {' and '.join(sorted(labels))}") for label in labels]

    def read_score(self, label: str, item: Any, under: str = "") -> None:
        if not isinstance(item, dict):
            values = [f"{value} under {under!r}" if under else value for value in _all(item)]
            self.said.entries += [_Entry(label, value) for value in values]
            return
        item = self.folded(item)
        explanation = next((item[key] for key in _EXPLANATION_KEYS if isinstance(item.get(key), str)), "")
        explanation = explanation.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        keys = _SCORE_KEYS & item.keys()
        self.said.repairs["key"] += bool(keys) and "score" not in keys
        values = [value for key in sorted(keys) for value in _all(item[key])] or [None]
        self.said.entries += [_Entry(label, value, explanation) for value in values]

    def label(self, name: Any) -> str | None:
        """The one known label that an id names, bare or dressed up as in "trajectory_K7QX"."""
        words = set(_words(name)) if isinstance(name, str) else set()
        named = words & self.known.keys()
        if len(named) != 1 or words - named - _DRESS:
            return None
        label = self.known[named.pop()]
        self.said.repairs["label"] += label.casefold() != name.casefold()
        return label


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.casefold())


def _all(value: Any) -> tuple[Any, ...]:
    return value.values if isinstance(value, Repeated) else (value,)


def _score(value: Any, repairs: Counter[str]) -> float:
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
    """What a string says as a number; None for anything that can be read in two ways, as "0.9%" or "0.9/10" can."""
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
