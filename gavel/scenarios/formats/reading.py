"""Reads a file of attempts in any known format into groups of trajectories.

    reading = read_file(Path("results.jsonl"))
    reading.summary     # "reads as: verifiers results, 12 rows in 3 groups by example_id"
    reading.groups      # list[TrajectoryGroup]
    reading.notes       # what was left out, what cannot be compared

The format is detected from the rows' fields. All rows must share one format; any other row is an error with file, line
and fields. No row is skipped silently: rows without anything to judge are counted in the notes.
"""

import json
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gavel.base import entry_points
from gavel.base.text import counted
from gavel.scenarios.formats.chat import KNOWN_ROLES, misnamed_assistant, odd_fields
from gavel.scenarios.formats.evaluations import EVALUATIONS
from gavel.scenarios.formats.fields import (
    COMPLETIONS,
    CONVERSATIONS,
    GROUPS,
    PAIRS,
    TABLE,
    UNANSWERED,
    Columns,
    holds_dialogue,
    leaves,
    read_columns,
    with_turns,
    without,
)
from gavel.scenarios.formats.files import expand, name_of_file, rows_by_file
from gavel.scenarios.formats.grouping import asked, beside_messages, group, opening
from gavel.scenarios.formats.logs import BATCH, EXCHANGES, LANGFUSE, LANGSMITH, LOGGED
from gavel.scenarios.formats.row import (
    Attempt,
    Format,
    Found,
    Row,
    RowError,
    Source,
    WholeGroup,
    as_list,
    as_number,
    cell,
    check_item,
    is_list,
    is_object,
    refused,
    refusing,
    reward_name,
)
from gavel.scenarios.formats.text import is_conversation, is_rendered
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judged_file import groups_of_rows
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.scenarios.truth import COLUMNS


def _read_table(rows: Sequence[Row], source: Source) -> Iterator[WholeGroup]:
    first = [row for row in rows if row.value.get("group_record")]
    with refusing(rows[0].where):
        groups = groups_of_rows(row.value for row in rows)
    for row, whole in zip(first, groups, strict=True):
        yield WholeGroup(check_item(whole, row.where), row, JUDGED.name)


JUDGED = Format(
    "Gavel's judged table",
    ("group", "member", "trajectory", "group_record"),
    # a row may omit columns without a value
    lambda value: is_object(value, "group", "trajectory|group_record", "member|group_record"),
    _read_table,
)


@cache
def all_formats() -> tuple[Format, ...]:
    """The formats of this folder and of integrations, in order of detection.

    From the most specific to the most general: a row is of the first that fits.
    """
    of_integrations = [
        each for module in entry_points.load_all("gavel.formats") for each in getattr(module, "FORMATS", ())
    ]
    general = (PAIRS, LANGSMITH, LANGFUSE, COMPLETIONS, CONVERSATIONS, LOGGED)
    return JUDGED, *EVALUATIONS, BATCH, EXCHANGES, *of_integrations, *general


def _find_format(value: Any) -> Format | None:
    return next((each for each in all_formats() if each.fits(value)), None)


@dataclass(frozen=True, slots=True)
class Reading:
    """The contents of a file."""

    groups: list[TrajectoryGroup]
    summary: str
    """One line: format, rows, groups, and the grouping."""
    notes: list[str]


def read_groups(path: str | Path | Sequence[str | Path], by: str | None = None) -> list[TrajectoryGroup]:
    """The groups of `read_file`."""
    return read_file(path, by).groups


def read_file(
    path: str | Path | Sequence[str | Path], by: str | None = None, columns: Columns | None = None
) -> Reading:
    """The attempts in a file, in a directory or in several of them, grouped, in order of first appearance.

    `path`: `-` is standard input; of the directory of a run, its training attempts are read. An unfinished record at
    the end of a store is skipped, with a warning. `by`: a field of the rows (a dotted path, such as
    `metadata.task.id`), which is kept in the group's metadata, or "opening" (see `grouping.group`). `columns`: the
    columns of a table with prompt and answers.

    Raises `RowError`, and `StoreError` for a store that cannot be read.
    """
    paths = list(dict.fromkeys([Path(path)] if isinstance(path, str | Path) else map(Path, path)))
    source = Source()
    found: list[Found] = []
    rows: list[Row] = []
    form: Format | None = None
    for path, is_store in (each for named in paths for each in expand(named)):
        if is_store:
            for number, each in enumerate(TrajectoryStore(path).read()):
                row = Row(f"{path}, record {number}", each)
                found.append(WholeGroup(check_item(each, row.where), row, GROUPS))
        else:
            rows += _read_rows(path, source, columns)
    count, named = len(found) + len(rows), ", ".join(map(name_of_file, paths))
    if columns and found:
        raise RowError(f"{named} holds trajectories, not a table.", "Leave --prompt-column and --answer-column out.")
    if columns:
        found = list(read_columns(rows, columns, source))
    elif rows:
        form = _detect_format(rows)
        found += form.read(rows, source)
    attempts = [each for each in found if isinstance(each, Attempt)]
    for each in attempts:
        _check_answered(each)
    grouped = group(found, by, form.task if form else "")
    for each in grouped.unasked:
        source.leave_out(each.row, "row with an empty prompt: fill its cells, or name the task with --by FIELD")
    if not any(each.trajectories for each in grouped.groups):
        problem = "; ".join([f"{named} holds no trajectory", *source.told()])
        raise RowError(f"{problem}.", "Give a file with one trajectory or group on each line.")
    names = Counter(each.form for each in found)
    forms = ", ".join(names) if len(names) == 1 else " and ".join(f"{n} ({count:,})" for n, count in names.items())
    summary = f"reads as: {forms}, {counted(count, 'row')} in {counted(len(grouped.groups), 'group')}"
    summary += f" by {grouped.by}" if grouped.by else ""
    notes = [*(f"left out: {each}." for each in source.told()), *source.notes]
    notes += [*_describe_attempts(attempts), *_describe_turns(attempts)]
    if columns or form in (PAIRS, COMPLETIONS, CONVERSATIONS, LOGGED):
        notes += _describe_unread(attempts, [*grouped.by.split(", "), *(columns.names if columns else ())])
    return Reading(grouped.groups, summary, notes + grouped.notes)


def _check_answered(attempt: Attempt) -> None:
    """Marks an attempt in which the assistant says nothing as failed; `RowError` where its role has another name."""
    said = attempt.trajectory.messages()
    if attempt.trajectory.status == "failed" or any(message.get("role") == "assistant" for message in said):
        return
    if misnamed := misnamed_assistant(said):
        raise refused(attempt.row.where, *misnamed)
    attempt.trajectory.status, attempt.trajectory.status_reason = "failed", UNANSWERED


def _read_rows(path: Path, source: Source, columns: Columns | None) -> list[Row]:
    """The rows of a file, or of a directory's files that hold attempts; its other files are reported."""
    files = rows_by_file(path, columns.names if columns else ())
    others = [file for file, rows in files.items() if rows and not columns and not _find_format(rows[0].value)]
    if len(others) == len(files):  # no file holds attempts: the error names the first one's fields
        others = []
    if others:
        names = ", ".join(str(file.relative_to(path)) for file in others[:3])
        more = f" and {len(others) - 3:,} more" if len(others) > 3 else ""
        source.notes.append(f"{counted(len(others), 'file')} of {path} left out, without attempts: {names}{more}.")
    named = columns.names if columns else ()
    return [with_turns(row, named) for file, rows in files.items() if file not in others for row in rows]


def _detect_format(rows: Sequence[Row]) -> Format:
    """The format of the first row, which all others must share."""
    first: Format | None = None
    for row in rows:
        if is_list(row.value) and is_conversation(row.value) and (error := _messages_as_rows(row, row.value, least=2)):
            raise error
        if first is not None and first.fits(row.value):
            continue
        form = _find_format(row.value)
        if form is None:
            items = [each.value for each in rows if is_object(each.value)]
            error = _messages_as_rows(row, items, least=0) if is_object(row.value) else None
            raise error or _unknown(row, all_formats() if first is None else (first, *all_formats()))
        if first is not None:
            raise RowError(
                f"{rows[0].where} is of the format {first.name}, and {row.where} of {form.name}.",
                "Put rows of different formats into different files, and score each of them.",
            )
        first = form
    assert first is not None
    return first


def _messages_as_rows(row: Row, items: Sequence[dict[str, Any]], least: int) -> RowError | None:
    """The error for a table of messages; None where no column holds roles, and where no id stands for both sides of a
    conversation at least so many times."""
    values = {name: [str(each.get(name)).lower() for each in items] for name in items[0]}
    role = next((name for name, said in values.items() if len(set(said)) > 1 and KNOWN_ROLES.keys() >= set(said)), None)
    texts = [name for name, each in items[0].items() if isinstance(each, str) and _WORDS.search(each)]
    if role is None or (not least and len(texts) > 1):  # prompt and answers, and who won
        return None

    def sides(name: str) -> int:
        speakers = Counter(value for value, _ in set(zip(values[name], values[role], strict=True)))
        return sum(number > 1 for number in speakers.values())

    column = max(filter(IDENTIFIER.search, values), key=sides, default="")
    column = column if column and sides(column) >= max(least, 1) else ""
    if least and not column:
        return None
    return RowError(
        f"{row.where} holds messages as rows, and not a conversation in each row.",
        f"Write a row for each conversation, by its {column or 'id'}: {_MESSAGES}"
        + (f". Or take {column} out, if the list is one conversation." if least else "."),
    )


def _unknown(row: Row, forms: Sequence[Format]) -> RowError:
    """The error for a row of no format: its fields, the nearest format with the fields that lack, and what to type."""
    fields = row.value
    if not is_object(fields):
        return RowError(f"{row.where} is neither an object nor a list of messages.", _FORM)
    said = [*as_list(fields.get("choices")), *as_list(fields.get("output"))]
    if said and all(is_object(each, "message|type") for each in said) and not is_object(fields, "input|prompt"):
        return RowError(f"{row.where} is an answer of a model without what was asked.", _QUESTION)
    problem = f"{row.where} is of no format that is known. Its fields: {', '.join(fields)}."
    nearest = min(forms, key=lambda form: sum(not is_object(fields, each) for each in form.fields) / len(form.fields))
    lacking = [each.replace("|", " or ") for each in nearest.fields if not is_object(fields, each)]
    if len(lacking) <= _FAR * len(nearest.fields):
        lack = f"lacks {', '.join(lacking)}" if lacking else "its fields hold other things"
        problem += f" It is nearest to {nearest.name}, but {lack}."
    if empty := [name for name, value in fields.items() if value == []]:
        problem += f" Without anything in it: {', '.join(empty)}."
    paths = list(dict.fromkeys(_text_paths(fields)))
    is_wrapper = len(paths) == 1 and is_list(fields.get(paths[0]))
    for path, item in () if row.is_cells else _objects_within(fields):
        if is_wrapper or _find_format(item):
            return RowError(
                problem, f"Its rows are a list within it. Write each on a line: jq -c '{path}' FILE > rows.jsonl."
            )
    if len(paths) == 1 and isinstance(fields.get(paths[0]), str):
        return RowError(problem, f"A text that holds a whole conversation is not taken apart. {_FORM}")
    return RowError(
        problem,
        "Name the texts that hold the prompt and each answer: --prompt-column PATH --answer-column PATH "
        f"(a whole conversation needs --answer-column alone), of the paths {_names(paths)}. {_FORM}",
    )


_MESSAGES = '{"messages": [{"role": "user", "content": "…"}, …]}'
_FORM = f"Rows of messages are {_MESSAGES}; docs/files.md has all formats."
_QUESTION = "Put the messages of the request beside it: `messages` beside `choices`, or `input` beside `output`."
IDENTIFIER = re.compile(r"(?:^|[^a-zA-Z])(?:ids?|hash)$|Ids?$")
_WORDS = re.compile(r"[^\W\d_]\s+[^\W\d_]")
_FAR = 0.5
"""Max share of a format's fields that may lack in a row near to it."""
_MOST_NAMES = 16


def _objects_within(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The first object of each list in a value, and of objects in an object, with the path of all for jq."""
    if is_object(value):
        if value and all(map(is_object, value.values())):
            yield f"{path or '.'}[]", next(iter(value.values()))
        for name, each in value.items():
            yield from _objects_within(each, f"{path}.{name if name.isidentifier() else json.dumps(name)}")
    elif is_list(value) and value and is_object(value[0]) and not is_conversation(value):
        yield f"{path}[]", value[0]
        yield from _objects_within(value[0], f"{path}[]")


def _text_paths(value: Any, within: str = "") -> Iterator[str]:
    """The columns (dotted paths) that may hold a prompt or an answer, as they are to be typed: texts, and lists."""
    for name, each in value.items():
        if is_object(each):
            yield from _text_paths(each, f"{within}{name}.")
        elif (isinstance(each, str) and each.strip()) or (is_list(each) and each):
            yield shlex.quote(f"{within}{name}")


_OF_CONVERSATION = re.compile(r"(?:session|conversation|thread|dialog(?:ue)?|chat)(?:[_ -]?(?:id|key|uuid))?", re.I)
"""Names of columns with the id of a conversation."""


def _describe_turns(attempts: Sequence[Attempt]) -> Iterator[str]:
    """A note on rows that are single exchanges of conversations, by an id which they share."""
    prompts: defaultdict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for each in attempts:
        before = opening(each.trajectory, each.prompt)
        for name, value in each.trajectory.metadata.items():
            if _OF_CONVERSATION.fullmatch(name) and not any(it.get("role") == "assistant" for it in before):
                prompts[name, str(value)].setdefault(asked(each.trajectory, each.prompt), each.row.where)
    parted = [(where, name) for (name, _), own in prompts.items() if len(own) > 1 for where in own.values()]
    yield from _tell(
        parted,
        f"{counted(len(parted), 'row')} of one {_found(parted)} ask different things, and each is "
        "judged without the turns before it. If they are one conversation, write it as messages",
    )


Place = tuple[str, str]
"""Where something was found, and what."""


def _describe_attempts(attempts: Sequence[Attempt]) -> Iterator[str]:
    """One note per kind of problem, with the first affected attempt."""
    failed: list[Place] = []
    objects: list[Place] = []
    talks: list[Place] = []
    rendered: dict[str, str] = {}
    odd: list[Place] = []
    hidden: list[Place] = []
    for each in attempts:
        where, found = each.row.where, each.trajectory
        if found.status == "failed":
            failed.append((where, found.status_reason or "no reason is recorded"))
        if is_object(said := _said_in_json(each)):
            objects.append((where, ", ".join(map(str, said))))
        if isinstance(said, str) and each.form == TABLE and holds_dialogue(said):
            talks.append((where, ""))
        for message in found.messages():
            if message.get("role") != "assistant" and is_rendered(str(message.get("content"))):
                rendered[where] = ""
            odd += ((where, name) for name in odd_fields(message))
        hidden += ((where, name) for name in beside_messages(found))
    number = f"{len(failed):,} of {counted(len(attempts), 'attempt')}"
    yield from _tell(failed, f"{number} failed, and get{'s' * (len(failed) == 1)} no score")
    yield from _tell(
        objects,
        f"{counted(len(objects), 'answer')} in JSON: the judge sees all fields. If one of them is a label, name the "
        "answer's: --prompt-column COLUMN --answer-column COLUMN.FIELD",
    )
    yield from _tell(
        talks,
        f"{counted(len(talks), 'answer')} with several speakers: the judge sees each as one answer. To read turns, "
        "name --answer-column alone",
    )
    yield from _tell(
        [*rendered.items()],
        f"{counted(len(rendered), 'prompt')} rendered by a chat template: the judge sees its tokens, and all as one "
        "message. Write messages in the template's place",
    )
    yield from _tell(
        odd,
        f"the judge is shown further fields of messages as if they were said ({_found(odd)}): take out what was not",
    )
    yield from _tell(
        hidden,
        f"the judge is not shown what rows hold beside their messages ({_found(hidden)}); put it into the messages",
    )


def _tell(places: Sequence[Place], problem: str) -> Iterator[str]:
    if places:
        where, what = places[0]
        yield f"{problem}. First: {where}{f' ({what})' if what else ''}."


def _names(names: Iterable[str]) -> str:
    """`a, b and 3 more`."""
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _found(places: Sequence[Place]) -> str:
    return _names(name for _, name in places)


def _said_in_json(attempt: Attempt) -> Any:
    """What the last message holds, parsed where it is a table's text; of a list there, its first item."""
    value = attempt.trajectory.messages()[-1].get("content")
    if attempt.form in (TABLE, LOGGED.name) and isinstance(value, str):
        value = cell(value)
        return value[0] if is_list(value) and value else value
    return value


def _describe_unread(attempts: Sequence[Attempt], named: Sequence[str]) -> Iterator[str]:
    """Notes on the fields of rows that are no part of what the judge is shown, and on rewards that are no number."""
    known = {*map(_without_numbers, named)}
    unread: list[Place] = []
    odd: list[Place] = []
    for each in attempts:
        fields, where = each.trajectory.metadata, each.row.where
        if is_object(each.row.value, "messages_and_choices"):
            continue
        given = {name: it for name in ("reward", "rewards", "score") if (it := fields.get(name))}
        odd += [(where, f"{name} {str(it)[:40]!r}") for name, it in given.items() if as_number(it) is None]
        read = ("answer_column", reward_name(fields), *_shown_columns(fields), *beside_messages(each.trajectory))
        left = ((_without_numbers(path), value) for path, value in leaves(without(fields, *read)))
        unread += [(where, name) for name, value in left if value is not None and name not in known]
    yield from _tell(
        [(where, "") for where, _ in unread],
        f"not read: {_found(unread)}. What is part of the task belongs into the prompt (--prompt-column names it), an "
        "expected answer into a column called reference, what an agent did into messages; --answer-column names "
        "another answer",
    )
    are = "is" if len(odd) == 1 else "are"
    yield from _tell(odd, f"{counted(len(odd), 'reward')} that {are} no number, and not read")


def _without_numbers(path: str) -> str:
    return ".".join(part for part in path.split(".") if not part.isdecimal())


def _shown_columns(fields: Mapping[str, Any]) -> list[str]:
    """The columns that tell the judge what is right; of a reference and an answer the reference."""
    return [name for name in COLUMNS if name != "answer" or not fields.get("reference")]
