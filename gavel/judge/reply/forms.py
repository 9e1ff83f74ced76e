"""Forms: finds the entries, each a label with its score, in a JSON value of any of the shapes that models give.

    {"scores": [{"trajectory_id": "W7QX", "score": 0.8}], "note": "fine"}  ->  entries [W7QX: 0.8], fields [note: fine]

What stands beside the entries is kept as fields: whoever reads the answer checks that none of them changes a score.
"""

import re
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, TypeGuard, cast

from gavel.judge.reply.lenient_json import Found, Repeated, find_values

LABEL_KEYS = {
    *("trajectory_id", "trajectoryid", "id", "trajectory", "trajectory_label", "label", "name"),
    *("candidate", "attempt", "rollout"),
}
SCORE_KEYS = {"score", "final_score", "overall_score", "finalscore", "overallscore", "rating", "grade"}
EXPLANATION_KEYS = ("explanation", "reason", "reasoning", "rationale")
KEYS = {*LABEL_KEYS, *SCORE_KEYS, *EXPLANATION_KEYS, "scores"}
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
BETWEEN = {*_LABEL_DECORATIONS, "json", "and"}
"""Words that may occur between the objects of one answer."""
_SCORES = {"score", "scores", "rating", "ratings", "grade", "grades"}
"""Words in a wrapper's name that show that the scores are inside."""
WRAPPERS = {
    *(*_SCORES, *BETWEEN, "trajectories", "candidates", "attempts", "rollouts", "responses", "ids", "labels"),
    *("result", "results", "output", "outputs", "answer", "answers", "reply", "return", "submit", "structured", "data"),
    *("function", "tool", "call", "input", "arguments", "args", "parameters", "content", "value", "values"),
    *("evaluation", "evaluations", "assessment", "assessments", "judgement", "judgements", "judgment", "judgments"),
    *("verdict", "verdicts", "reward", "rewards", "final", "overall", "quality", "relative", "normalized", "by", "of"),
}
"""Words in a wrapper's name that are compatible with bare numbers inside being scores."""
_CALL = {
    "input",
    "arguments",
    "args",
    "parameters",
    "function",
    "tool",
    "call",
    "tool_input",
    "tool_calls",
    "tool_call",
}
"""Names of wrappers that are answers only if the function that they call has an affirmative name."""
_AFFIRMATIVE = {
    *(*_SCORES, *BETWEEN, "submit", "judge", "evaluate", "evaluation", "rate", "return", "report", "give", "record"),
    *("final", "answer", "answers", "result", "results", "verdict", "output", "respond", "reply", "assign", "provide"),
    *(
        "set",
        "trajectories",
        "attempts",
        "group",
        "judgement",
        "judgment",
        "structured",
        "function",
        "tool",
        "of",
        "to",
    ),
    *("grading", "rewards", "reward", "all", "assessment", "emit", "write", "send", "post", "save", "ruler"),
}
_ENVELOPES = {
    "message",
    "choices",
    "text",
    "type",
    "body",
    "payload",
    "items",
    "entries",
    "list",
    "list_of",
    "schema_output",
}
_ANSWERERS = {"assistant", "model", "tool", "function", "judge", "evaluator"}
_SOMETHING_ELSE = re.compile(
    r"(?<![a-z])(?:draft|initial|first|prelim|tentative|previous|old|before|example|template|format|schema|thought"
    r"|thinking|scratch|rank|order|position|confiden|certain|uncertain|probab|weight|count|length|step|max|min)"
)
"""Words in a wrapper's name that show that the content is not the final scores."""
_TOP_KEYS = {"max", "max_score", "maximum", "maximum_score", "out_of", "scale", "score_scale", "range", "score_range"}
"""Keys that state the scale of the scores; the last number in their value is the highest score."""
_MAX_WRAPPERS = 8
"""Nested wrappers around the scores."""


@dataclass(frozen=True, slots=True)
class Entry:
    label: str
    value: Any
    explanation: str = ""


@dataclass(frozen=True, slots=True)
class Field:
    """What a reply says beside the scores."""

    key: str
    value: Any
    label: str = ""
    """The entry in which it stands; empty = beside all of them."""
    before: bool = False
    """Whether it stands before the scores."""


@dataclass(slots=True)
class Answer:
    """The entries of a reply or of a part of it."""

    entries: list[Entry] = field(default_factory=list[Entry])
    fields: list[Field] = field(default_factory=list[Field])
    unknown_labels: list[str] = field(default_factory=list[str])
    """Ids that the prompt did not give out."""
    repairs: Counter[str] = field(default_factory=Counter[str])
    scales: list[str] = field(default_factory=list[str])
    """Stated highest scores above 1."""
    strays: list[str] = field(default_factory=list[str])
    """What stands where only entries of known labels, or their wrappers, may stand."""
    broken: bool = False
    comments: list[str] = field(default_factory=list[str])
    """Comments within its values."""
    spans: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Where its values stand in the reply."""

    def names(self) -> set[str]:
        return {entry.label for entry in self.entries}

    def add(self, other: "Answer") -> None:
        self.entries += other.entries
        self.fields += other.fields
        self.unknown_labels += other.unknown_labels
        self.scales += other.scales
        self.strays += other.strays
        self.repairs += other.repairs
        self.comments += other.comments
        self.spans += other.spans
        self.repairs["several objects"] += 1


class FormReader:
    """Finds entries in a JSON value: in a list of them, in a map from label to score, or in either, wrapped."""

    def __init__(self, known: Mapping[str, str], wrappers: Set[str]) -> None:
        self.known = known
        self.wrappers = wrappers
        """Words allowed in the name of a wrapper around bare scores."""
        self.answer = Answer()

    def read(self, value: Any, wrappers: int = 0, under: str = "") -> None:
        """`under`: the name of an enclosing wrapper in which bare numbers are not accepted as scores."""
        if wrappers > _MAX_WRAPPERS:
            return
        match value:
            case list():
                self.answer.repairs["form"] += wrappers == 0
                self.read_list(cast("list[Any]", value), wrappers, under)
            case Repeated(values):
                for item in values:
                    self.read(item, wrappers, under)
            case str() if "{" in value:
                self.read_string(value, wrappers, under)
            case dict():
                self.read_object(self.folded(cast("dict[str, Any]", value)), wrappers, under)
            case _:
                pass

    def read_list(self, items: list[Any], wrappers: int, under: str) -> None:
        strays: list[Any] = []
        entries = len(self.answer.entries)
        for item in items:
            found = len(self.answer.entries) + len(self.answer.unknown_labels)
            self.read(item, wrappers + 1, under)
            read = len(self.answer.entries) + len(self.answer.unknown_labels) > found
            if not read and not (isinstance(item, dict) and "type" in item):
                strays.append(item)
        if len(self.answer.entries) > entries:
            self.answer.strays += [f"{str(item)[:40]} among its entries" for item in strays]

    def read_object(self, value: Mapping[str, Any], wrappers: int, under: str) -> None:
        if LABEL_KEYS & value.keys() and SCORE_KEYS & value.keys():
            self.read_entry(value)
            return
        labelled = {key: label for key in value if (label := self.label(key))}
        named = [key for key in value if _SCORES.intersection(words(key))]
        main = labelled or named
        if labelled:
            self.answer.repairs["form"] += 1
        scored = False
        for key, item in value.items():
            scored |= key in main
            if key in labelled:
                self.read_score(labelled[key], item, under)
            elif _SOMETHING_ELSE.search(key):
                if not isinstance(item, dict | Repeated) and "{" not in str(item):
                    self.answer.fields.append(Field(key, item))
            elif main and key not in named:
                self.read_beside(key, item, wrappers, before=not scored)
            else:
                self.answer.repairs["wrapper"] += not main or (key != "scores" and not labelled)
                other = under if key not in named else ""
                entries = len(self.answer.entries)
                self.read(item, wrappers + 1, other if set(words(key)) <= self.wrappers else key)
                if len(self.answer.entries) > entries and not self.unwraps(key, value):
                    self.answer.strays.append(f"scores under {key!r}")
                if not _is_container(item):
                    self.answer.fields.append(Field(key, item))

    def unwraps(self, key: str, value: Mapping[str, Any]) -> bool:
        """Whether a key may hold the answer, by its name and by what stands beside it."""
        role, name = value.get("role"), value.get("name")
        if isinstance(role, str) and role.casefold() not in _ANSWERERS:
            return False
        if key in _CALL:
            named = isinstance(name, str) and bool(words(name)) and set(words(name)) <= _AFFIRMATIVE
            return named or (name is None and key != "input")
        return key in _ENVELOPES or set(words(key)) <= self.wrappers - {"input"}

    def read_beside(self, key: str, item: Any, wrappers: int, *, before: bool) -> None:
        """What stands beside the scores: scores once more, which must agree with them, or a field."""
        reader = FormReader(self.known, self.wrappers)
        if _is_container(item):
            reader.read(item, wrappers + 1, "")
        found = reader.answer
        if any(_is_number(entry.value) for entry in found.entries) or found.broken:
            self.answer.entries += found.entries
            self.answer.broken |= found.broken
        else:
            self.answer.fields.append(Field(key, item, before=before))
        self.answer.scales += found.scales
        self.answer.strays += found.strays

    def folded(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """The object with its keys in lower case; a stated scale is recorded."""
        found: dict[str, tuple[Any, ...]] = {}
        for name, item in value.items():
            key = name.strip().casefold()
            found[key] = (*found.get(key, ()), *all_of(item))
            self.answer.repairs["key"] += key != name and key in KEYS
            tops = re.findall(r"\d+(?:\.\d+)?", str(item)) if key in _TOP_KEYS else []
            self.answer.scales += [top for top in tops[-1:] if float(top) > 1]
        return {key: items[0] if len(items) == 1 else Repeated(items) for key, items in found.items()}

    def read_string(self, text: str, wrappers: int, under: str) -> None:
        for found in find_values(text, {*KEYS, *self.known}):
            if isinstance(found, Found):
                self.answer.repairs += found.repairs
                self.read(found.value, wrappers + 1, under)
            else:
                self.answer.broken = True
        self.answer.repairs["double encoding"] += 1

    def read_entry(self, entry: Mapping[str, Any]) -> None:
        names = [name for key in LABEL_KEYS & entry.keys() for name in all_of(entry[key])]
        labels = {label for name in names if (label := self.label(name))}
        if not labels:
            unknown = [name[:40] for name in names[:1] if isinstance(name, str)]
            self.answer.unknown_labels += unknown
            lengths = set(map(len, self.known))
            self.answer.strays += [
                f"an entry of {name}"
                for name in unknown
                if not (name.isalnum() and name == name.upper() and len(name) in lengths)
            ]
        elif len(labels) == 1:
            self.read_score(labels.pop(), entry)
        else:
            self.answer.entries += [Entry(label, f"given to {' and '.join(sorted(labels))}") for label in labels]

    def read_score(self, label: str, item: Any, under: str = "") -> None:
        if not isinstance(item, dict):
            values = [f"{value} under {under!r}" if under else value for value in all_of(item)]
            self.answer.entries += [Entry(label, value) for value in values]
            return
        fields = self.folded(cast("dict[str, Any]", item))
        told = next((key for key in EXPLANATION_KEYS if isinstance(fields.get(key), str)), "")
        explanation = str(fields.get(told, ""))
        explanation = explanation.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        keys = SCORE_KEYS & fields.keys()
        self.answer.repairs["key"] += bool(keys) and "score" not in keys
        values = [value for key in sorted(keys) for value in all_of(fields[key])] or [None]
        self.answer.entries += [Entry(label, value, explanation) for value in values]
        asked = {told, *KEYS} - {key for key in EXPLANATION_KEYS if key != told}
        asked -= {
            key for key in LABEL_KEYS & fields.keys() if isinstance(fields[key], str) and not self.label(fields[key])
        }
        self.answer.fields += [Field(key, value, label) for key, value in fields.items() if key not in asked]

    def label(self, name: Any) -> str | None:
        """The one known label that an id names, bare or decorated as in "trajectory_K7QX"."""
        if not isinstance(name, str) or re.search(r"[?¿？~!]", name):
            return None
        parts = set(words(name))
        named = parts & self.known.keys()
        if len(named) != 1 or parts - named - _LABEL_DECORATIONS:
            return None
        label = self.known[named.pop()]
        self.answer.repairs["label"] += label.casefold() != name.casefold()
        return label


def words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.casefold())


def all_of(value: Any) -> tuple[Any, ...]:
    return value.values if isinstance(value, Repeated) else (value,)


def _is_container(value: Any) -> TypeGuard[Any]:
    return isinstance(value, list | dict | Repeated) or (isinstance(value, str) and "{" in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (
        isinstance(value, str) and len(value) < 20 and any(map(str.isdigit, value))
    )
