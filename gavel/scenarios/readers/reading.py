"""A file of attempts in any format that is known -> groups of trajectories.

    reading = read_file(Path("results.jsonl"))
    reading.summary     # "reads as: verifiers results, 12 rows in 3 groups by example_id"
    reading.groups      # list[TrajectoryGroup]
    reading.notes       # what was left out, what cannot be compared

The format is told by the fields of the rows. All rows have one format; a row that has not is an error that names file,
line and fields. No row is skipped: what holds nothing to judge is counted in the notes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.readers.atif_documents import ATIF
from gavel.scenarios.readers.checks import checked
from gavel.scenarios.readers.conversations import CONVERSATIONS, GROUPS
from gavel.scenarios.readers.files import is_store, rows_of
from gavel.scenarios.readers.grouping import group
from gavel.scenarios.readers.inspect_log import INSPECT
from gavel.scenarios.readers.judged_tables import JUDGED
from gavel.scenarios.readers.langfuse import LANGFUSE
from gavel.scenarios.readers.langsmith import LANGSMITH
from gavel.scenarios.readers.openai_batch import BATCH
from gavel.scenarios.readers.row import Format, Found, Row, RowError, Source, WholeGroup, is_object
from gavel.scenarios.readers.shortfalls import shortfalls
from gavel.scenarios.readers.trl import COMPLETIONS, PAIRS
from gavel.scenarios.readers.verifiers import VERIFIERS
from gavel.scenarios.readers.verifiers_traces import TRACES
from gavel.scenarios.trajectory_store import TrajectoryStore

FORMATS = (JUDGED, INSPECT, ATIF, BATCH, VERIFIERS, TRACES, PAIRS, LANGSMITH, LANGFUSE, COMPLETIONS, CONVERSATIONS)
"""From the most specific to the most general: a row is of the first that fits."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a file holds."""

    groups: list[TrajectoryGroup]
    summary: str
    """One line: format, rows, groups, and what they are grouped by."""
    notes: list[str]


def read_groups(path: Path, by: str | None = None) -> list[TrajectoryGroup]:
    """The groups of `read_file`."""
    return read_file(path, by).groups


def read_file(path: Path, by: str | None = None) -> Reading:
    """The attempts in a file or directory, grouped (see `grouping.group`), in order of first appearance.

    `by`: a field of the rows (a dotted path, such as `metadata.task.id`); it is kept in the group's metadata.

    Raises `RowError`, and `StoreError` for a store that cannot be read.
    """
    source = Source(path)
    own = ""
    if is_store(path):
        rows = [Row(f"{path}, record {n}", each) for n, each in enumerate(TrajectoryStore(path).read())]
        found: list[Found] = [WholeGroup(checked(row.value, row.where), row, GROUPS) for row in rows]
    else:
        rows = rows_of(source)
        form = _format(rows)
        found, own = list(form.read(rows, source)), form.task
    grouped = group(found, by, own)
    if not any(each.trajectories for each in grouped.groups):
        raise RowError(
            f"{path} holds no trajectory{_left_out(source.left_out)}.",
            "Give a file with one trajectory or group on each line.",
        )
    names = Counter(each.form for each in found)
    forms = ", ".join(names) if len(names) == 1 else " and ".join(f"{n} ({count:,})" for n, count in names.items())
    count = f"{_many(len(rows), 'row')} in {_many(len(grouped.groups), 'group')}"
    summary = f"reads as: {forms}, {count}{f' by {grouped.by}' if grouped.by else ''}"
    notes = [f"left out: {number:,} × {reason}" for reason, number in source.left_out.items()]
    return Reading(grouped.groups, summary, [*notes, *source.notes, *shortfalls(found), *grouped.notes])


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _left_out(reasons: Counter[str]) -> str:
    return "".join(f"; {number:,} × {reason}" for reason, number in reasons.items())


def _format(rows: Sequence[Row]) -> Format:
    """The format of the first row, which all others must have."""
    if not rows:
        return CONVERSATIONS
    form = next((each for each in FORMATS if each.fits(rows[0].value)), None)
    for row in rows:
        if form is None:
            raise _unknown(row, FORMATS)
        if not form.fits(row.value):
            raise _unknown(row, (form, *FORMATS))
    return form or CONVERSATIONS


def _unknown(row: Row, forms: Sequence[Format]) -> RowError:
    """The error for a row of no format, with the nearest one and the fields that lack."""
    problem = f"{row.where} is neither a list of messages, nor an object with messages, nor a trajectory or group"
    remedy = 'Write each row as {"messages": [{"role": "user", "content": "…"}, …]}, or see docs/files.md.'
    fields = row.value
    if not is_object(fields):
        return RowError(f"{problem}.", remedy)
    if is_object(fields, "choices|output") and not is_object(fields, "input|prompt"):
        return RowError(f"{row.where} is an answer of a model without what was asked.", _QUESTION)
    nearest = max(forms, key=lambda form: _likeness(form, fields))
    lacking = [each.replace("|", " or ") for each in nearest.fields if not _has(each, fields)]
    if _likeness(nearest, fields) < _NEAR:
        return RowError(f"{problem}, nor of another format that is known. Its fields: {', '.join(fields)}.", remedy)
    if not lacking:
        return RowError(f"{problem}; it is nearest to {nearest.name}, but its fields hold other things.", remedy)
    return RowError(f"{problem}; it is nearest to {nearest.name}, but lacks {', '.join(lacking)}.", remedy)


_NEAR = 0.5
"""Share of a format's fields from which on a row is called near to it."""
_QUESTION = "Put the messages of the request beside it: `messages` beside `choices`, or `input` beside `output`."


def _has(name: str, fields: dict[str, Any]) -> bool:
    return any(each in fields for each in name.split("|"))


def _likeness(form: Format, fields: dict[str, Any]) -> float:
    """The share of the format's fields that the row has; one of a similar name counts half."""

    def like(name: str) -> float:
        return 1.0 if _has(name, fields) else 0.5 * any(get_close_matches(n, list(fields)) for n in name.split("|"))

    return sum(map(like, form.fields)) / len(form.fields)
