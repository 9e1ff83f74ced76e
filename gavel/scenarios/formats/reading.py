"""Reads a file of attempts in any known format into groups of trajectories.

    reading = read_file(Path("results.jsonl"))
    reading.summary     # "reads as: verifiers results, 12 rows in 3 groups by example_id"
    reading.groups      # list[TrajectoryGroup]
    reading.notes       # what was left out, what cannot be compared

The format is detected from the rows' fields. All rows must share one format; any other row is an error with file, line
and fields. No row is skipped silently: rows without anything to judge are counted in the notes.
"""

import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from gavel.base import entry_points
from gavel.base.text import counted
from gavel.scenarios.formats.atif import ATIF
from gavel.scenarios.formats.chat import KNOWN_ROLES, misnamed_assistant, odd_fields
from gavel.scenarios.formats.fields import (
    COMPLETIONS,
    CONVERSATIONS,
    EVALUATIONS,
    GROUPS,
    OF_PROMPTS,
    PAIRS,
    SYSTEM,
    TABLE,
    TEXTS,
    TREES,
    UNANSWERED,
    Columns,
    are_rivals,
    columns_by_stem,
    is_answered,
    leaves,
    read_columns,
    without,
)
from gavel.scenarios.formats.files import expand, on_disk, rows_by_file
from gavel.scenarios.formats.grouping import BESIDE, TRUTHS, beside_messages, group
from gavel.scenarios.formats.inspect_log import INSPECT
from gavel.scenarios.formats.logs import BATCH, EXCHANGES, LANGFUSE, LANGSMITH, LOGGED, NEMO_GYM
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
    at,
    cell,
    check_item,
    first_of,
    is_list,
    is_object,
    refused,
    refusing,
)
from gavel.scenarios.formats.text import CUT, is_conversation, is_rendered
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judged_file import groups_of_rows, is_judged_table
from gavel.scenarios.trajectory import Trajectory
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
    ("group", "status", "trajectory", "group_record"),
    # a table may omit a column in rows without a value
    lambda value: (
        is_object(value, "status", "trajectory|group_record") and (is_judged_table(value) or "member" in value)
    ),
    _read_table,
)


_BEFORE = (JUDGED, INSPECT, ATIF, NEMO_GYM, *EVALUATIONS, BATCH, EXCHANGES)
_AFTER = (PAIRS, LANGSMITH, LANGFUSE, COMPLETIONS, CONVERSATIONS, LOGGED, TREES)
_TABLES = (PAIRS, COMPLETIONS, CONVERSATIONS)


@cache
def all_formats() -> tuple[Format, ...]:
    """The formats of this folder and of integrations, in order of detection.

    From the most specific to the most general: a row is of the first that fits.
    """
    of_integrations = [
        each for module in entry_points.load_all("gavel.formats") for each in getattr(module, "FORMATS", ())
    ]
    return *_BEFORE, *of_integrations, *_AFTER


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
    with on_disk([Path(path)] if isinstance(path, str | Path) else list(map(Path, path))) as inputs:
        try:
            reading = _read(inputs.paths, by, columns)
        except RowError as error:
            raise RowError(inputs.told(error.message), inputs.told(error.remedy)) from error
    return replace(reading, notes=list(map(inputs.told, reading.notes)))


def _read(paths: Sequence[Path], by: str | None, columns: Columns | None) -> Reading:
    source = Source()
    found: list[Found] = []
    form: Format | None = None
    for path, is_store in (each for named in paths for each in expand(named)):
        if is_store:
            for number, each in enumerate(TrajectoryStore(path).read()):
                row = Row(f"{path}, record {number}", each)
                found.append(WholeGroup(check_item(each, row.where), row, GROUPS))
        else:
            source.files |= _read_rows(path, source, columns)
    rows = [row for each in source.files.values() for row in each]
    count = len(found) + len(rows)
    if cut := [row for row in rows if is_object(row.value) and is_list(row.value.get(CUT)) and row.value[CUT]]:
        cells = ", ".join(dict.fromkeys(str(name) for row in cut for name in row.value[CUT]))
        source.notes.append(
            f"{counted(len(cut), 'row')} with cells that were cut off where they were downloaded ({cells}): the judge "
            f"sees only their beginnings. Download the dataset's files. First: {cut[0].where}."
        )
    if columns and found:
        raise RowError(
            f"{', '.join(map(str, paths))} holds trajectories, not a table.",
            "Leave --prompt-column and --answer-column out.",
        )
    if columns:
        found = list(read_columns(rows, columns, source))
    elif rows:
        form = _detect_format(rows)
        found += form.read(rows, source)
    for each in found:
        if isinstance(each, Attempt) and each.trajectory.status != "failed":
            said = each.trajectory.messages()
            if any(message.get("role") == "assistant" for message in said):
                continue
            if misnamed := misnamed_assistant(said):
                raise refused(each.row.where, *misnamed)
            each.trajectory.status, each.trajectory.status_reason = "failed", UNANSWERED
    pairs = PAIRS.task if columns and any(isinstance(each, Attempt) and each.task for each in found) else ""
    grouped = group(found, by, form.task if form else pairs)
    for each in grouped.unasked:
        source.leave_out(each.row, "row with an empty prompt: fill its cells, or name the task with --by FIELD")
    if not any(each.trajectories for each in grouped.groups):
        problem = "; ".join([f"{', '.join(map(str, paths))} holds no trajectory", *source.told()])
        raise RowError(f"{problem}.", "Give a file with one trajectory or group on each line.")
    names = Counter(each.form for each in found)
    forms = ", ".join(names) if len(names) == 1 else " and ".join(f"{n} ({count:,})" for n, count in names.items())
    summary = f"reads as: {forms}, {counted(count, 'row')} in {counted(len(grouped.groups), 'group')}"
    summary += f" by {grouped.by}" if grouped.by else ""
    notes = [f"left out: {each}." for each in source.told()]
    return Reading(
        grouped.groups,
        summary,
        [
            *notes,
            *source.notes,
            *describe_shortfalls(found),
            *_describe_unread(found, grouped.groups, columns, form),
            *grouped.notes,
        ],
    )


def _read_rows(path: Path, source: Source, columns: Columns | None) -> dict[Path, list[Row]]:
    """The rows of a file, or of a directory's files that hold attempts; its other files are reported."""
    if columns:
        return rows_by_file(path, columns.names)
    files = {file: list(map(_with_known_names, rows)) for file, rows in rows_by_file(path).items()}
    others = [
        file for file, rows in files.items() if rows and not any(form.fits(rows[0].value) for form in all_formats())
    ]
    if len(others) == len(files):  # no file holds attempts: the error names the first one's fields
        others = []
    if others:
        names = ", ".join(str(file.relative_to(path)) for file in others[:3])
        more = f" and {len(others) - 3:,} more" if len(others) > 3 else ""
        source.notes.append(f"{counted(len(others), 'file')} of {path} left out, without attempts: {names}{more}.")
    return {file: rows for file, rows in files.items() if file not in others}


def _with_known_names(row: Row) -> Row:
    """A row with `prompt` for `Prompt`, if it is of a format then, and of none as it is."""
    if not is_object(row.value) or not any(name[:1].isupper() for name in row.value):
        return row
    known = {*OF_PROMPTS, *TRUTHS, *(name for form in _TABLES for each in form.fields for name in each.split("|"))}
    named = {name.lower() if name.lower() in known else name: each for name, each in row.value.items()}
    fits = len(named) == len(row.value) and not any(form.fits(row.value) for form in all_formats())
    return replace(row, value=named) if fits and any(form.fits(named) for form in all_formats()) else row


def _detect_format(rows: Sequence[Row]) -> Format:
    """The format of the first row, which all others must share."""
    first: Format | None = None
    for row in rows:
        if is_list(row.value) and is_conversation(row.value) and (error := _messages_as_rows(row, row.value, least=2)):
            raise error
        if first is not None and first.fits(row.value):
            continue
        form = next((each for each in all_formats() if each.fits(row.value)), None)
        if form is None:
            items = [each.value for each in rows if is_object(each.value)]
            error = _messages_as_rows(row, items, least=0) if is_object(row.value) else None
            raise error or _unknown(row, rows, all_formats() if first is None else (first, *all_formats()))
        if first is not None:
            raise RowError(
                f"{rows[0].where} is of the format {first.name}, and {row.where} of {form.name}.",
                "Put rows of different formats into different files, and score each of them.",
            )
        first = form
    assert first is not None
    return first


def _messages_as_rows(row: Row, items: Sequence[dict[str, Any]], least: int) -> RowError | None:
    """The error for a table of messages; None where no column holds roles or messages, and where no id stands for both
    sides of a conversation at least so many times."""
    if (
        not any(map(IDENTIFIER.search, items[0]))
        if least
        else any(_tells_apart(items, each) for each in _proposals(items[0]))
    ):
        return None
    held = Counter(name for each in items for name, value in each.items() if is_object(value, "role", "content"))
    holder = next(iter(dict(held.most_common(1))), "")
    items = (
        [{"role": each[holder]["role"], **each} for each in items if is_object(each.get(holder))] if holder else items
    )
    values = {name: [str(each.get(name)).lower() for each in items] for name in items[0]}
    named = [name for name in ("role", "from") if is_object(items[0], name, "content|value")]
    varied = [name for name, said in values.items() if len(set(said)) > 1 and KNOWN_ROLES.keys() >= set(said)]
    role = next(iter([*varied, *named]), None)
    if role is None:
        return None

    def sides(name: str) -> int:
        speakers = Counter(value for value, _ in set(zip(values[name], values[role], strict=True)))
        return sum(number > 1 for number in speakers.values())

    column = max(filter(IDENTIFIER.search, items[0]), key=sides, default="")
    column = column if column and sides(column) >= max(least, 1) else ""
    if least and not column:
        return None
    texts = [name for name, each in items[0].items() if isinstance(each, str) and _SENTENCE.search(each)]
    content = next(name for name in ("content", "value", *texts, "COLUMN") if name in items[0] or name == "COLUMN")
    by = f".groupby({json.dumps(column or 'COLUMN')}, sort=False)"
    gathered = (
        f"df.dropna(subset=[{json.dumps(holder)}]){by}[{json.dumps(holder)}].apply(list)"
        if holder
        else f'df.rename(columns={json.dumps({role: "role", content: "content"})}){by}[["role", "content"]]'
        ".apply(lambda rows: rows.to_dict('records'))"
    )
    return RowError(
        f"{row.where} holds messages as rows, and not a conversation in each row.",
        f"Write a row for each conversation, by its {column or 'id'}, in pandas: {gathered}"
        '.rename("messages").reset_index().to_json("rows.jsonl", orient="records", lines=True).'
        + (f" Or take {column} out, if the list is one conversation." if least else ""),
    )


def _unknown(row: Row, rows: Sequence[Row], forms: Sequence[Format]) -> RowError:
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
    items = [each.value for each in rows if is_object(each.value)][:_TRIED]
    is_flat = not any(isinstance(each, list | dict) for each in fields.values())
    texts = {name: [each[name] for each in items if isinstance(each.get(name), str)] for name in fields}
    tried = [{name: max(each, key=len, default=None) for name, each in texts.items()}] if is_flat else items
    for columns in (columns for item in tried for columns in _proposals(item, is_flat=is_flat)):
        if _tells_apart(items, columns):
            named = [("--prompt-column", columns.prompt), *(("--answer-column", each) for each in columns.answers)]
            told = " ".join(f"{option} {shlex.quote(name)}" for option, name in named if name)
            renamed = "them to prompt and completion" if columns.prompt else "one to messages"
            renamed = "them to prompt, response_a, response_b, …" if len(columns.answers) > 1 else renamed
            return RowError(problem, f"Say which columns hold what: {told}; or rename {renamed}. {_FORM}")
    for path, items in () if row.is_cells else _rows_within(fields):
        if all(any(form.fits(each) for form in all_formats()) for each in items) or any(
            _tells_apart(items, each) for each in _proposals(items[0])
        ):
            return RowError(
                problem, f"Its rows are a list within it. Write each on a line: jq -c '{path}' FILE > rows.jsonl."
            )
    paths = {path: each for path, each in leaves(fields) if isinstance(each, str) and each.strip()}
    if len(paths) < 2:
        return RowError(problem, f"Write what was asked and what was answered apart. {_FORM}")
    written = [path for path, each in paths.items() if _SENTENCE.search(each)]
    if written and _ANSWERED.search(written[0]):
        return RowError(problem, f"No text beside {written[0]} says what was asked: add a column `prompt`. {_FORM}")
    told = ", ".join((written if len(written) > 1 else list(paths))[:_MOST_NAMES])
    options = f"--prompt-column PATH --answer-column PATH, of the paths {told}"
    return RowError(problem, f"Name the texts that hold the prompt and each answer: {options}. {_FORM}")


_FORM = 'Rows of messages are {"messages": [{"role": "user", "content": "…"}, …]}; docs/files.md has all formats.'
_ASKED = re.compile("question|query|instruction|input|task|request|prompt|problem", re.I)
_ANSWERED = re.compile("answer|reply|output|resp|completion|predict|gener", re.I)
"""Column names to propose; the user decides."""
_EXPECTED = re.compile("expect|(?<!p)reference|truth|gold|target|ideal|correct|label|^gts?$", re.I)
"""Names of columns with expected answers, which are never proposed: nobody wants them judged."""
IDENTIFIER = re.compile(r"(?:^|[^a-zA-Z])(?:ids?|hash)$|Ids?$")
_SENTENCE = re.compile(r"\S\s+\S|[^\x00-\x7f]")
"""Words separated by spaces, or a script that may do without."""
_REWARD = re.compile("reward|score|label|rating|grade", re.I)
_SHORT_ANSWER = re.compile(r"[^\W\d_]+\W?|-?\d[\d.,]*\W?")
_FAR = 0.5
"""Max share of a format's fields that may lack in a row near to it."""
_TRIED = 20
"""Max rows on which columns are tried before they are proposed."""
_QUESTION = "Put the messages of the request beside it: `messages` beside `choices`, or `input` beside `output`."


def _tells_apart(items: Sequence[dict[str, Any]], columns: Columns) -> bool:
    """Whether the columns can be read in these rows, and give them answers that are not all the same."""
    try:
        found = list(read_columns([Row("", each) for each in items], columns, Source()))
    except RowError:
        return False
    answers = [each.trajectory.messages()[each.prompt or 0 :] for each in found]
    said = all(any(any(without(message, "role").values()) for message in each) for each in answers)
    return said and len({json.dumps(each, default=str) for each in answers}) > (len(items) > 1)


def _rows_within(value: Any, path: str = "") -> Iterator[tuple[str, list[Any]]]:
    """The lists of objects in a value, and the objects of objects, with their paths for jq; of a list, those in its
    first item."""
    if is_object(value):
        for name, each in value.items():
            yield from _rows_within(each, f"{path}.{name if name.isidentifier() else json.dumps(name)}")
    items = list(value.values()) if is_object(value) else as_list(value)
    if len(items) > is_object(value) and all(map(is_object, items)) and not is_conversation(items):
        yield f"{path or '.'}[]", items[:_TRIED]
        if is_list(value):
            yield from _rows_within(items[0], f"{path}[]")


def _proposals(fields: dict[str, Any], *, is_flat: bool = False) -> Iterator[Columns]:
    """The likely columns (dotted paths) of prompt and answers, by names and texts, likeliest first. A column with a
    whole conversation needs no prompt; one that does not end with an answer is the prompt of a text beside it. In a
    table that `is_flat`, the first text is the prompt where no name tells it, and the others are the answers."""
    given = dict(_columns(fields))
    found = {
        path: text
        for path, text in sorted(given.items(), key=lambda each: (_depth(each[0]), -len(each[1])))
        if not (_EXPECTED.search(path) or IDENTIFIER.search(path) or path in (*SYSTEM, *BESIDE))
    }
    talks = [path for path in given if is_list(value := at(fields, path)) and is_conversation(value)]
    rivals = [path for path in talks if are_rivals(at(fields, path))]
    talks = [path for path in talks if path not in rivals]
    whole = [path for path in talks if is_answered(at(fields, path))]
    if whole and is_answered(at(fields, whole[0])[-1:]):
        yield Columns(None, whole)
    asking = {path: text for path, text in found.items() if text and _ASKED.search(path)}
    named = [path for path, text in asking.items() if _SENTENCE.search(text)]
    before = list(takewhile(lambda path: not _ANSWERED.search(path), given))  # verdicts come after the answers
    others = [path for path, text in found.items() if path in asking or (path in before and _SENTENCE.search(text))]
    others = others if len(others) == 1 else [path for path in given if path in others] if is_flat else []
    asked = next(iter([*whole, *named, *talks, *others]), "")
    likely = [path for path, text in found.items() if _ANSWERED.search(path) and path != asked and text]
    # A deeper column of such a name is part of the question: the expected answer.
    likely = [path for path in likely if _depth(path) == _depth(likely[0])]
    if is_flat and not likely:
        likely = [path for path in given if path in found and path != asked and not _REWARD.search(path)]
    written = [path for path in likely if _SENTENCE.search(found[path])]
    short = [path for path in likely if _SHORT_ANSWER.fullmatch(found[path])]
    alike = [list(columns.values()) for columns in columns_by_stem(given).values() if len(columns) > 1]
    alike += [each for each in (written, short) if is_flat]
    of_several = [path for path in likely if any(path in columns for columns in alike)]
    question = found.get(asked, "")
    rendered = [path for path, text in found.items() if path not in likely and question and question in text]
    for prompt in sorted([*rendered, asked], key=lambda path: -len(found.get(path, ""))):  # what was made of it
        for answered in [*rivals, *written, *short, *of_several] if asked else ():
            yield Columns(prompt, next((columns for columns in alike if answered in columns), [answered]))
    if whole:
        yield Columns(None, whole)


def _depth(path: str) -> int:
    return sum(not part.isdecimal() for part in path.split("."))


def _columns(fields: dict[str, Any], within: str = "") -> Iterator[tuple[str, str]]:
    """Each field, also of nested objects, and its text; of a list, its first text, or what its first object says."""
    for name, value in fields.items():
        if is_object(value):
            yield from _columns(value, f"{within}{name}.")
            continue
        path = f"{within}{name}"
        while is_list(value) and value and is_list(value[0]):
            path, value = f"{path}.0", value[0]
        first = value[0] if is_list(value) and value else value
        text = first_of(first, *TEXTS) if is_object(first) else first
        text = text if isinstance(text, str) else ""
        yield path, text if path == f"{within}{name}" or _SENTENCE.search(text) else ""


def describe_shortfalls(found: Sequence[Found]) -> list[str]:
    """One note per kind of problem, with the first affected attempt. Groups stored as groups are skipped."""
    attempts = [each for each in found if isinstance(each, Attempt)]
    failed = [each for each in attempts if each.trajectory.status == "failed"]
    all_of_them = counted(len(attempts), "attempt")
    notes: list[str] = []
    if failed:
        notes.append(
            f"{len(failed):,} of {all_of_them} failed, and get{'s' * (len(failed) == 1)} no score. "
            f"First: {failed[0].row.where} ({failed[0].trajectory.status_reason or 'no reason is recorded'})."
        )
    objects = [
        f"{each.row.where} ({', '.join(map(str, given))})"
        for each in attempts
        if is_object(given := _given(each.trajectory, each.form in (TABLE, LOGGED.name)))
    ]
    if objects:
        notes.append(
            f"{counted(len(objects), 'answer')} in JSON: the judge sees all fields. If one of them is a label, name "
            f"the answer's: --prompt-column COLUMN --answer-column COLUMN.FIELD. First: {objects[0]}."
        )
    rendered = [
        each
        for each in attempts
        if any(is_rendered(str(m.get("content"))) for m in each.trajectory.messages() if m.get("role") != "assistant")
    ]
    if rendered:
        notes.append(
            f"{counted(len(rendered), 'prompt')} rendered by a chat template: the judge sees its tokens, and all as "
            f"one message. Write messages in the template's place. First: {rendered[0].row.where}."
        )
    odd = [(each, name) for each in attempts for message in each.trajectory.messages() for name in odd_fields(message)]
    if odd:
        names = list(dict.fromkeys(name for _, name in odd))
        notes.append(
            f"the judge is shown further fields of messages as if they were said ({', '.join(names[:_MOST_NAMES])}): "
            f"take out what was not. First: {odd[0][0].row.where}."
        )
    hidden = [each for each in attempts if beside_messages(each.trajectory)]
    if hidden:
        names = ", ".join(dict.fromkeys(name for each in hidden for name in beside_messages(each.trajectory)))
        notes.append(
            f"the judge is not shown what rows hold beside their messages ({names}); put it into the messages. First: "
            f"{hidden[0].row.where}."
        )
    return notes


def _describe_unread(
    found: Sequence[Found], groups: Sequence[TrajectoryGroup], columns: Columns | None, form: Format | None
) -> list[str]:
    """Notes on columns that nobody reads: texts that are nowhere in what was read, and rewards that are no number."""
    if not columns and form not in (*_TABLES, LOGGED):
        return []
    rows = {
        id(each.trajectory): each
        for each in found
        if isinstance(each, Attempt) and not is_object(each.row.value, "messages_and_choices")
    }
    unread: dict[str, str] = {}
    named = columns.names if columns else []
    for one in groups:
        members = [each for each in one.trajectories if id(each) in rows]
        told = [{name: each.get(name) for name in COLUMNS} for each in (one.metadata, *(m.metadata for m in members))]
        truths = _texts(told)
        said = truths + _texts([each.messages() for each in members])
        for each in members:
            own = ("answer_column", "preference")
            for path, value in leaves(without(each.metadata, *own, *COLUMNS, *beside_messages(each))):
                name = ".".join(part for part in path.split(".") if not part.isdecimal())
                last, text = name.rpartition(".")[2], str(value).strip()
                is_expected = _EXPECTED.search(name) and not IDENTIFIER.search(last)
                is_answer = form is CONVERSATIONS and _ANSWERED.search(last) and not IDENTIFIER.search(last)
                is_text = isinstance(value, str) and (is_expected or is_answer or _SENTENCE.search(text))
                is_text = is_text or (is_expected and _is_count(value) and not _REWARD.search(name))
                is_told = name in named or not text or text in (truths if is_expected else said)
                is_asked = name.partition(".")[0] in OF_PROMPTS and value is not None and text not in KNOWN_ROLES
                if (is_text or is_asked) and not is_told:
                    unread.setdefault(name, rows[id(each)].row.where)
    notes: list[str] = []
    if unread:
        names, more = list(unread), len(unread) - _MOST_NAMES
        notes.append(
            f"the judge is not shown {', '.join(names[:_MOST_NAMES])}{f' and {more} more' if more > 0 else ''}. What "
            "is part of the task belongs into the prompt (--prompt-column names it, and --by groups by a column), "
            "an expected answer into a column called reference; --answer-column names an answer to judge instead. "
            f"First: {unread[names[0]]}."
        )
    given = [
        (each, name) for each in rows.values() for name in ("reward", "score") if each.trajectory.metadata.get(name)
    ]
    odd = [(each, name) for each, name in given if as_number(each.trajectory.metadata[name]) is None]
    if odd:
        first, name = odd[0]
        notes.append(
            f"{counted(len(odd), 'reward')} that {'is' if len(odd) == 1 else 'are'} no number, and not read. First: "
            f"{first.row.where} ({name} {str(first.trajectory.metadata[name])[:40]!r})."
        )
    return notes


_MOST_NAMES = 8


def _is_count(value: Any) -> bool:
    """Whether a value is a number, and no yes or no."""
    return isinstance(value, int | float) and value not in (0, 1) and not math.isnan(value)


def _texts(value: Any) -> str:
    return "\n".join(str(each) for _, each in leaves(value) if isinstance(each, str | int | float))


def _given(trajectory: Trajectory, in_text: bool) -> Any:
    """The object that the last message holds, also as JSON `in_text`; of a list there, its first item."""
    value = trajectory.messages()[-1].get("content")
    if not in_text or not isinstance(value, str):
        return value
    value = cell(value)
    return value[0] if is_list(value) and value else value
