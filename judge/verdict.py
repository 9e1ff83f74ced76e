"""A judge's reply -> scores by label, or a `VerdictError` that says what is wrong with it.

Scores are matched by label only, never by position, and nothing is guessed: a score is taken when it can be meant
in one way only.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scenarios.errors import GavelError

_LABEL_KEYS = ("trajectory_id", "trajectoryid", "id", "trajectory", "label")
_EXPLANATION_KEYS = ("explanation", "reason", "reasoning", "rationale")
_PERCENT = re.compile(r"(\d{1,3}(?:[.,]\d+)?) ?%", re.ASCII)
_DECIMAL = re.compile(r"0?[.,]\d+|[01](?:[.,]0{0,2})?", re.ASCII)
_OPENING = re.compile(r"[{\[]")
_THOUGHT = re.compile(r"\A\s*<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE)
_DEEPEST = 8
"""How many wrappers may be around the scores."""


class VerdictError(GavelError):
    """A judge's reply cannot be used; the message names what is wrong, for the judge to mend."""


@dataclass(frozen=True, slots=True)
class Scored:
    score: float
    """In [0, 1]."""
    explanation: str = ""


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


def read_verdict(reply: str, labels: Sequence[str]) -> dict[str, Scored]:
    """The score of every label, from the last complete reply object in the text.

    Raises `VerdictError` unless each label has exactly one score, a number from 0 to 1.
    """
    known = {label.casefold(): label for label in labels}
    entries = _last_reply(_THOUGHT.sub("", reply), known)
    scores: dict[str, Scored] = {}
    problems: list[str] = []
    for label, value, explanation in entries:
        try:
            scored = Scored(_score(value), explanation)
        except VerdictError as error:
            problems.append(f"the score of {label} is {error}")
            continue
        if scores.setdefault(label, scored).score != scored.score:
            problems.append(f"{label} has two different scores")
    named = {label for label, _, _ in entries}
    if missing := [label for label in labels if label not in named]:
        problems.append(f"there is no score for {', '.join(missing)}")
    if problems:
        raise VerdictError("; ".join(dict.fromkeys(problems)))
    return {label: scores[label] for label in labels}


_Entry = tuple[str, Any, str]


def _last_reply(text: str, known: Mapping[str, str]) -> list[_Entry]:
    if not text.strip():
        raise VerdictError("it is empty")
    last: list[_Entry] = []
    broken = False
    for value in _json_values(text):
        if value is _BROKEN:
            broken = True
        elif entries := list(_entries(value, known)):
            last, broken = entries, False
    if not last:
        raise VerdictError("it holds no complete JSON object with the trajectories' ids and scores")
    if broken:
        raise VerdictError("its last JSON object breaks off or is not valid JSON")
    return last


_BROKEN = object()


def _json_values(text: str) -> Iterator[Any]:
    """Every outermost JSON object or array in the text, and `_BROKEN` for each brace that opens none."""
    decoder = json.JSONDecoder(object_pairs_hook=_object, strict=False)
    position = 0
    while opening := _OPENING.search(text, position):
        try:
            value, position = decoder.raw_decode(text, opening.start())
        except (ValueError, RecursionError):
            position = opening.end()
            if opening[0] == "{":
                yield _BROKEN
        else:
            yield value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object with its keys in lower case; one key with two values means nothing."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        key = key.strip().casefold()
        if key in found and found[key] != value:
            raise VerdictError(f'the key "{key[:40]}" has two different values')
        found[key] = value
    return found


def _entries(value: Any, known: Mapping[str, str], depth: int = 0) -> Iterator[_Entry]:
    """What a JSON value says of known labels: a list of entries, a map from label to score, or either, wrapped."""
    if depth > _DEEPEST:
        return
    if isinstance(value, list):
        for item in value:
            yield from _entries(item, known, depth + 1)
    elif isinstance(value, dict):
        key = next((key for key in _LABEL_KEYS if key in value), None)
        if "scores" in value:
            yield from _entries(value["scores"], known, depth + 1)
        elif key and "score" in value:
            if label := _label(value[key], known):
                yield label, value["score"], _explanation(value)
        elif any(_label(key, known) for key in value):
            yield from _by_label(value, known)
        else:
            for item in value.values():
                yield from _entries(item, known, depth + 1)


def _by_label(value: Mapping[str, Any], known: Mapping[str, str]) -> Iterator[_Entry]:
    for key, item in value.items():
        if label := _label(key, known):
            yield (label, item.get("score"), _explanation(item)) if isinstance(item, dict) else (label, item, "")


def _label(name: Any, known: Mapping[str, str]) -> str | None:
    """The one known label that an id names, bare or dressed up as in "trajectory_K7QX"."""
    words = re.findall(r"[^\W_]+", str(name).casefold())
    named = {known[word] for word in words if word in known}
    return named.pop() if len(named) == 1 else None


def _explanation(entry: Mapping[str, Any]) -> str:
    return next((entry[key] for key in _EXPLANATION_KEYS if isinstance(entry.get(key), str)), "")


def _score(value: Any) -> float:
    shown = repr(value)[:40]
    if isinstance(value, str):
        text = value.strip()
        if percent := _PERCENT.fullmatch(text):
            value = float(percent[1].replace(",", ".")) / 100
        elif _DECIMAL.fullmatch(text):
            value = float(text.replace(",", "."))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise VerdictError(f"{shown}, not a number")
    if not 0 <= value <= 1:
        raise VerdictError(f"{shown}, not from 0 to 1")
    return float(value) + 0.0
