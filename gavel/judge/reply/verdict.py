"""A judge's reply -> scores by label, or a `VerdictError` that says what is wrong with it.

    read_verdict('```json\n{"scores": [{"trajectory_id": "W7QX", "score": "80%",}]}```', ["W7QX"])
    -> Verdict(scores={"W7QX": Scored(0.8)}, repairs={"comma": 1, "fence": 1, "number": 1})
    read_verdict('{"scores": [{"trajectory_id": "W7QX", "score": 8}]}', ["W7QX"])
    -> VerdictError: the score of W7QX is 8, not from 0 to 1

The reply is one JSON value that stands alone (`lenient_json`), in the requested form or as a map from label to score.
Scores are matched by label, never by position. Text around the value, fields that were not asked for, unknown labels
and other scales go back to the judge. Explanations are not interpreted.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from gavel.base.errors import GavelError
from gavel.judge.reply.lenient_json import Broken, Found, find_value
from gavel.judge.rubric import Rubric
from gavel.judge.stats import weighted_mean
from gavel.scenarios.formats.row import is_list, is_object

_ENTRY = {"trajectory_id", "explanation", "score"}
_WRAPPERS = {"parameter", "parameters", "properties", "values", "arguments", "input", "response", "result", "final"}
"""Keys under which vendors' structured outputs and tool calls hand on the whole object (LiteLLM: `parameter` for Claude
on Vertex AI, `properties` on Bedrock)."""
_MAX_WRAPPERS = 3
_SHARE = re.compile(r"(\d{1,3}(?:[.,]\d+)?) ?(?:%|/ ?(\d{1,3})(?:[.,]0+)?)")
"""Percent, or a fraction."""
_DECIMAL = re.compile(r"\+?(?:0?[.,]\d+|[01](?:[.,]0{1,2})?|\d[.]?\d*e-\d+)", re.IGNORECASE)


class VerdictError(GavelError):
    """A judge's reply is invalid; the message names the problems and becomes part of the repair prompt."""


@dataclass(frozen=True, slots=True)
class Scored:
    score: float
    """Score in [0, 1]."""
    explanation: str = ""
    criteria: Mapping[str, float] = field(default_factory=dict[str, float])
    """Scores by criterion; `score` is their weighted mean. Empty for a rubric without criteria."""
    spread: float | None = None
    """Standard deviation of the distribution whose mean `score` is; None = the score was said."""
    states: Sequence[float] = ()
    """The score to be expected after each turn; empty where none are asked for, or what came cannot be used."""


@dataclass(frozen=True, slots=True)
class Verdict:
    scores: dict[str, Scored]
    """By label, in the order of the labels."""
    repairs: Counter[str] = field(default_factory=Counter[str])
    """Number of repairs by kind; empty for a reply in the requested form."""
    unread: dict[str, str] = field(default_factory=dict[str, str])
    """By label, why there is no score: the judge declined it, or its digit could not be read."""
    lost_states: dict[str, str] = field(default_factory=dict[str, str])
    """By label, what is wrong with its states; its score counts all the same."""


def reply_schema(labels: Sequence[str], *, states: bool = False) -> dict[str, Any]:
    """The JSON schema of a reply, the same for all orders of the labels, since it is part of a cached prompt.

    A score may be null: the judge declines that member. `states`: with a number for each turn, in percent.
    """
    properties: dict[str, Any] = {
        "trajectory_id": {"type": "string", "enum": sorted(labels)},
        "explanation": {"type": "string"},
        **({"states": {"type": "array", "items": {"type": "integer"}}} if states else {}),
        "score": {"anyOf": [{"type": "number"}, {"type": "null"}]},
    }
    entry = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {"scores": {"type": "array", "items": entry}},
        "required": ["scores"],
        "additionalProperties": False,
    }


def read_verdict(
    reply: str, labels: Sequence[str], *, cut_off: bool = False, turns: Mapping[str, int] | None = None
) -> Verdict:
    """The score of every label; a label whose score is null is declined, and stands in `unread`.

    `cut_off`: the reply ended at the token limit, so no bracket may be missing. `turns`: how many states each label has
    to have; None = no states are asked for. Raises `VerdictError` unless each label has exactly one score, a number
    from 0 to 1 or null, and one at least has a number.
    """
    entries, _, repairs, problems = read_entries(reply, labels, cut_off=cut_off, states=turns is not None)
    scores: dict[str, Scored] = {}
    unread: dict[str, str] = {}
    lost_states: dict[str, str] = {}
    for label, fields in entries:
        explanation, value = fields.get("explanation"), fields.get("score", "nothing")
        explanation = explanation if isinstance(explanation, str) else ""
        if value is None:
            unread[label] = ": ".join(filter(None, ("the judge declined to score it", explanation)))
            continue
        states: Sequence[float] = ()
        try:
            score = _read_score(value, repairs)
        except VerdictError as error:
            problems.append(f"the score of {label} is {error.message}")
            continue
        if turns is not None:
            try:
                states = _read_states(fields.get("states"), turns[label], score)
            except VerdictError as error:
                lost_states[label] = error.message
        if label in scores:
            repairs["duplicate"] += 1
        if scores.setdefault(label, Scored(score, explanation, states=states)).score != score:
            problems.append(f"{label} has two different scores")
    problems += [f"{label} has a score and null" for label in labels if label in scores and label in unread]
    if not problems and not scores:
        problems.append("it scores no trajectory")
    if problems:
        raise VerdictError("; ".join(dict.fromkeys(problems)))
    return Verdict({label: scores[label] for label in labels if label in scores}, repairs, unread, lost_states)


_MOST_APART = 0.5
"""Between a score and the state after the last turn, which is the same thing: more is a misunderstanding."""


def _read_states(value: Any, turns: int, score: float) -> tuple[float, ...]:
    """Raises `VerdictError` unless the states are whole numbers of percent, one for each turn, and end at the score."""
    states = [each for each in value if type(each) is int and 0 <= each <= 100] if is_list(value) else []
    if not is_list(value) or len(states) < len(value):
        raise VerdictError(f"{json.dumps(value, default=str)[:40]}, not whole numbers from 0 to 100")
    if len(states) != turns:
        raise VerdictError(f"{len(states)} numbers for {turns} turns")
    if states and abs(states[-1] / 100 - score) > _MOST_APART:
        raise VerdictError(f"{states[-1]} percent after the last turn beside the score {score:g}")
    return tuple(state / 100 for state in states)


Entry = tuple[str, Mapping[str, Any]]
"""The part of a reply about one label: the label and the fields."""


def read_entries(
    reply: str, labels: Sequence[str], *, cut_off: bool = False, states: bool = False
) -> tuple[list[Entry], Found, Counter[str], list[str]]:
    """The entries of a reply, its JSON value with its position, the repairs by kind, and the problems.

    `states`: an entry may have them.
    Raises `VerdictError` for a reply that is no JSON value alone.
    """
    if not reply.strip():
        raise VerdictError("it is empty")
    reader = _FormReader(labels, {*_ENTRY, "states"} if states else _ENTRY)
    try:
        found = find_value(reply, reader.keys)
        reader.repairs.update(found.repairs)
        reader.read(found.value)
    except Broken as broken:
        raise VerdictError(str(broken)) from broken
    problems, named = reader.problems, {label for label, _ in reader.entries}
    if cut_off and reader.repairs["bracket"]:
        problems.append("it was cut off")
    if missing := [label for label in labels if label not in named]:
        problems.append(f"there is no score for {', '.join(missing)}")
        problems += [f"{name} is none of the ids" for name in reader.unknown]
    reader.repairs.update({"unknown label": len(reader.unknown)})
    return reader.entries, found, +reader.repairs, problems


class _FormReader:
    """Finds the entries in a JSON value: a list of them, or a map from label to score, alone or under `scores`."""

    def __init__(self, labels: Sequence[str], fields: Collection[str]) -> None:
        """`fields`: those that an entry may have."""
        self.known = {label.casefold(): label for label in labels}
        self.fields = fields
        self.keys = {*_ENTRY, "scores", *self.known}
        """Those that have a meaning in a reply, in lower case."""
        self.repairs = Counter[str]()
        self.entries: list[Entry] = []
        self.unknown: list[str] = []
        """Ids that the prompt does not contain."""
        self.problems: list[str] = []

    def read(self, value: Any) -> None:
        for _ in range(_MAX_WRAPPERS + 1):
            fields = self.folded(value)
            if isinstance(value, str):
                value = find_value(value, self.keys).value
                self.repairs["double encoding"] += 1
            elif len(fields) == 1 and (wrapper := next(iter(fields))) in _WRAPPERS:
                value = fields[wrapper]
                self.repairs["wrapper"] += 1
            elif "scores" not in fields:
                self.repairs["form"] += 1
                return self.read_items(value)
            else:
                self.refuse_fields(fields.keys() - {"scores"}, "it")
                value = fields["scores"]
                if not isinstance(value, str):
                    self.repairs["form"] += is_object(value)
                    return self.read_items(value)
        raise VerdictError("it holds no scores")

    def read_items(self, value: Any) -> None:
        for item in value if is_list(value) else ():
            fields = self.folded(item)
            if "trajectory_id" in fields and "score" in fields:
                self.read_entry(fields["trajectory_id"], fields)
            else:
                self.problems.append(f"its scores hold {json.dumps(item, default=str)[:40]}")
        for key, item in value.items() if is_object(value) else ():
            self.read_entry(key, self.folded(item) if is_object(item) else {"score": item})
        if not value or not isinstance(value, dict | list):
            self.problems.append("it holds no scores")

    def read_entry(self, name: Any, fields: Mapping[str, Any]) -> None:
        if label := self.label(name):
            self.entries.append((label, fields))
            self.refuse_fields(fields.keys() - self.fields, label)
        elif isinstance(name, str) and name.isalnum() and name == name.upper() and len(name) in map(len, self.known):
            self.unknown.append(name)  # it could have been a label of another call: its entry is left out
        else:
            self.problems.append(f"{json.dumps(name, ensure_ascii=False, default=str)[:40]} is none of the ids")

    def refuse_fields(self, names: Collection[str], of: str) -> None:
        self.problems += [f"{of} has a field {name[:40]!r} that was not asked for" for name in sorted(names)]

    def folded(self, value: Any) -> dict[str, Any]:
        """The object with its keys in lower case; empty for another value. Raises `VerdictError` when two keys become
        one with two values."""
        found: dict[str, Any] = {}
        for name, item in value.items() if is_object(value) else ():
            key = name.strip().casefold()
            if key != name:
                self.repairs["key"] += key == "scores" or key in self.fields
            if key in found and found[key] != item:
                raise VerdictError(f"{key[:40]!r} stands there twice, with two values")
            found[key] = item
        return found

    def label(self, name: Any) -> str | None:
        """The label that an id names, bare or as "trajectory_K7QX"."""
        if not isinstance(name, str):
            return None
        if label := self.known.get(name.casefold()):
            return label
        *before, last = re.findall(r"[^\W_]+", name.casefold()) or [""]
        label = self.known.get(last) if before in ([], ["trajectory"], ["trajectory", "id"]) else None
        self.repairs["label"] += label is not None
        return label


def _read_score(given: Any, repairs: Counter[str]) -> float:
    value = given
    if isinstance(given, str):
        value = _number(unicodedata.normalize("NFKC", given).strip())
        repairs["number"] += 1
    wanted = "a number"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if 0 <= value <= 1:
            return float(value) + 0.0
        wanted = "from 0 to 1"
    raise VerdictError(f"{json.dumps(given, ensure_ascii=False, default=str)[:40]}, not {wanted}")


def _number(text: str) -> float | None:
    """The number in a string; None if it has two readings, such as "0.9%" or "0.9/10"."""
    if not text.isascii():
        return None
    if _DECIMAL.fullmatch(text):
        return float(text.replace(",", "."))
    if (share := _SHARE.fullmatch(text)) is None:
        return None
    part, whole = share[1], share[2] or "100"
    number = float(part.replace(",", "."))
    if int(whole) == 0 or (0 < number < 1 and whole != "1"):
        return None
    return number / int(whole)


def ids_to_score(rubric: Rubric, labels: Sequence[str]) -> list[str]:
    """The ids that the judge scores: the labels, or one id per label and criterion for a rubric with criteria, such as
    `W7QXa`. They occur in no trajectory's text, since labels do not."""
    return [label + letter for letter in [letter for letter, _ in rubric.lettered] or [""] for label in labels]


def requested_ids(prompt: str, label: str) -> list[str]:
    """The ids under which a prompt asks for scores of a member: its label, or one id per criterion."""
    by_criterion = dict.fromkeys(re.findall(rf"\b{re.escape(label)}[a-z]\b", prompt))
    return list(by_criterion) or [label]


def sections(words: str) -> dict[str, str]:
    """The text of each criterion in `Rubric.words`, by letter."""
    _, *parts = re.split(r"^Criterion ([a-z]): .*$", words, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def read_scores(
    reply: str, rubric: Rubric, labels: Sequence[str], *, cut_off: bool = False, turns: Sequence[int] = ()
) -> Verdict:
    """The score of every label, combined from the rubric's criteria if it has any. Raises `VerdictError`.

    `cut_off`: the reply ended at the token limit. `turns`: how many states each label has to have; empty where none are
    asked for.
    """
    ids = ids_to_score(rubric, labels)
    names = dict(zip(ids, cycle(labels), strict=False))
    due = dict(zip(ids, cycle(turns), strict=False)) if turns else None
    verdict = read_verdict(reply, ids, cut_off=cut_off, turns=due)
    if not rubric.criteria:
        return verdict
    declined = {names[name]: why for name, why in verdict.unread.items()}
    scores = {label: _vote(verdict.scores, rubric, label) for label in labels if label not in declined}
    if not scores:
        raise VerdictError("it scores no trajectory by all criteria")
    lost = {names[name]: why for name, why in verdict.lost_states.items()}
    return Verdict(scores, verdict.repairs, declined, lost)


def _vote(scores: Mapping[str, Scored], rubric: Rubric, label: str) -> Scored:
    by_name = {criterion.name: scores[label + letter] for letter, criterion in rubric.lettered}
    values = {name: scored.score for name, scored in by_name.items()}
    weights = [criterion.weight for criterion in rubric.criteria]
    score = weighted_mean(list(values.values()), weights)
    by_turn = zip(*(scored.states for scored in by_name.values()), strict=all(s.states for s in by_name.values()))
    states = tuple(weighted_mean(each, weights) for each in by_turn)
    parts = [f"{name} {scored.score:g}: {scored.explanation}".removesuffix(": ") for name, scored in by_name.items()]
    return Scored(score, " · ".join(parts), values, states=states)
