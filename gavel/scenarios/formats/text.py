"""Parses text into rows: JSON lines, one JSON document (an array, an object, or several in sequence), or CSV.

    rows('{"a": 1}\n\n{"a": 2}\n', "f.jsonl")    # Row("f.jsonl:1", {"a": 1}), Row("f.jsonl:3", {"a": 2})
    rows('[{"a": 1}, {"a": 2}]', "f.json")       # Row("f.json[0]", {"a": 1}), Row("f.json[1]", {"a": 2})

Any encoding of Unicode is read, with a byte order mark or without. Only empty lines are skipped.
"""

import csv
import io
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import jiter

from gavel.scenarios.formats.row import Row, RowError, cell, is_list, is_object, loaded, refused

READ = "Files of JSON lines, JSON, CSV, Parquet or Arrow are read, and logs of other programs; see docs/files.md."
_DECODER = json.JSONDecoder(parse_constant=str)  # NaN, which JSON lacks, is a text
_TWICE = re.compile(r'duplicate key (".*") at line (\d+)', re.DOTALL)
_SPACE = re.compile(r"\s*")


def decode(data: bytes, where: str) -> str:
    """The text in any Unicode encoding. Raises `RowError` if it is no text."""
    encoding = json.detect_encoding(data)
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise RowError(
            f"{where}:{line} is no {encoding.upper()} text: {error.reason}",
            f"Save it as UTF-8 (Excel: CSV UTF-8), if it is text. {READ}",
        ) from error


def rows(text: str, where: str, said: Sequence[str] = ()) -> list[Row]:
    """The rows of a text; `said`: further text columns of a table, whose cells are not parsed.

    Raises `RowError` with the unreadable line.
    """
    start = text.lstrip()[:2]
    is_table = start[:1] not in ("", "{", "[") and start not in ('"{', '"[')  # rows that were made JSON twice
    if is_table and (table := _parse_csv(text, where, said)) is not None:
        return table
    found = _parse_json(text, where)
    if len(found) == 1:
        return _split_document(found[0][1], where)
    return [Row(f"{where}:{line}", value) for line, value in found]


def _parse_json(text: str, where: str) -> list[tuple[int, Any]]:
    """The JSON values of a text in sequence, on one line each or on several, with the lines that they begin on."""
    found: list[tuple[int, Any]] = []
    at = _space_from(text, 0)
    line = 1 + text.count("\n", 0, at)
    while at < len(text):
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise _no_json(text, where, line, error) from error
        _check_keys(text[at:end], where, line)
        found.append((line, cell(value)))
        start, at = at, _space_from(text, end)
        line += text.count("\n", start, at)
    return found


def _no_json(text: str, where: str, line: int, error: Exception) -> RowError:
    """The error for a value that begins on this line: a row stands on one line, a document may span several."""
    lines = text.split("\n")
    are_rows = any(loaded(each) for each in lines if each.lstrip()[:1] in ("{", "["))
    if isinstance(error, json.JSONDecodeError) and not are_rows:
        line = error.lineno
    if isinstance(cell(lines[line - 1]), dict | list):
        return RowError(
            f"{where}:{line} is a Python dict or list as it is printed, and no JSON.", "Write it with json.dumps."
        )
    is_placed = isinstance(error, json.JSONDecodeError)
    why = f"{error.msg.removesuffix(' at')} at column {error.colno}" if is_placed else str(error)
    is_json = are_rows or text.lstrip()[:1] in ("{", "[")
    remedy = "Mend or delete this line; a row must stand on one line."
    remedy = remedy if is_json else f"If it is a table, delete the lines above its header. {READ}"
    return RowError(f"{where}:{line} is no JSON value: {why}", remedy)


def _check_keys(value: str, where: str, line: int) -> None:
    """Raises `RowError` if an object in the JSON value on this line has a duplicate key: one value would be lost."""
    try:
        jiter.from_json(value.encode(errors="surrogatepass"), catch_duplicate_keys=True)
    except ValueError as error:
        if found := _TWICE.search(str(error)):
            at = f"{where}:{line - 1 + int(found[2])}"
            raise RowError(f"{at} has the key {found[1]} twice in one object.", "Delete or rename one.") from error


def _space_from(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _split_document(document: Any, where: str) -> list[Row]:
    """The rows of one JSON document: those of an array or of an API page, or the document itself."""

    def numbered(name: str, items: Sequence[Any]) -> list[Row]:
        return [Row(f"{where}{name}[{number}]", item) for number, item in enumerate(items)]

    match document:
        case list() if not is_conversation(cast(list[Any], document)):
            return numbered("", cast(list[Any], document))
        case {"rows": [{"row": _}, *_] as page}:  # a page of the Hugging Face dataset viewer
            for number, item in enumerate(cast(list[Any], page)):
                if cut := item.get("truncated_cells"):
                    problem = f"{where} rows[{number}] has cells that were cut off where it was downloaded"
                    raise RowError(f"{problem}: {', '.join(cut)}.", "Download the dataset's files.")
            return numbered(" rows", [item["row"] for item in cast(list[Any], page)])
        case {"eval": {}, "samples": [{}, *_] as samples}:  # an Inspect log
            return numbered(" samples", cast(list[Any], samples))
        case {"results": {"results": [{}, *_] as page}} | {"results": [{"testIdx": _}, *_] as page}:  # promptfoo
            return numbered(" results", cast(list[Any], page))
        case {"test_results": [{}, *_] as page}:  # DeepEval's evaluation result, and its test runs
            return numbered(" test_results", cast(list[Any], page))
        case {"testCases": list()} | {"conversationalTestCases": list()} if not is_object(document, "prompt|messages"):
            absent: dict[str, Any] = {"metricsData": [], "actualOutput": None}  # fields that a run omits from a case
            return [
                replace(row, value={**absent, **row.value} if is_object(row.value) else row.value)
                for name in ("testCases", "conversationalTestCases")
                for row in numbered(f" {name}", document.get(name) or [])
            ]
        case {"data": [{}, *_] as page, **rest} if _is_beside_rows(cast(dict[str, Any], rest), list(page)):
            items = cast(list[Any], page)
            # items of one OpenAI conversation, unless they are a thread's, which come newest first
            is_one = is_conversation(items) and not any(is_object(item, "object") for item in items)
            return [Row(f"{where} data", items)] if is_one else numbered(" data", items)
        case {"runs": [{}, *_] as page, **rest} if not set(cast(dict[str, Any], rest)) - _PAGE:
            return numbered(" runs", cast(list[Any], page))
        case dict() if (table := _read_columns(cast(dict[str, Any], document))) is not None:
            return [Row(f"{where} row {number}", row) for number, row in table.items()]
        case _:
            return [Row(f"{where}:1", document)]


def _read_columns(document: dict[str, Any]) -> dict[Any, dict[str, Any]] | None:
    """The rows of a table that is written as pandas does (`to_json` but for lines, `to_dict`), by their numbers.

    Columns that are lists are a table only if one of them is all text, and none holds a conversation's messages.
    """
    columns = list(document.values())
    if is_list(names := document.get("columns")) and is_list(rows := document.get("data")):
        whole = bool(names) and all(isinstance(name, str) for name in names)
        whole = whole and all(is_list(each) and len(each) == len(names) for each in rows)
        return {n: dict(zip(names, each, strict=True)) for n, each in enumerate(rows)} if whole else None
    first = columns[0] if columns else None
    if is_object(first) and first and all(is_object(each) and each.keys() == first.keys() for each in columns):
        if all(map(str.isdecimal, first)):
            return {number: {name: each[number] for name, each in document.items()} for number in first}
        return document if all(map(str.isdecimal, document)) else None
    if not all(map(is_list, columns)):
        return None
    if len(columns) < 2 or len(set(map(len, columns))) > 1:
        return None
    if any(map(is_conversation, columns)) or not any(all(isinstance(item, str) for item in each) for each in columns):
        return None
    return {n: dict(zip(document, each, strict=True)) for n, each in enumerate(zip(*columns, strict=True))}


def _is_beside_rows(fields: dict[str, Any], rows: list[Any]) -> bool:
    """Whether all fields merely describe the rows beside them, as `version` does: none belongs to an API or holds
    data."""
    plain = not any(isinstance(each, list | dict) for each in fields.values())
    return not fields.keys() - _PAGE or (plain and not is_conversation(rows) and not is_object(fields, "prompt"))


_PAGE = {
    *("meta", "cursors", "cursor", "object", "has_more", "first_id", "last_id", "search_cursors", "parsed_query"),
    "schema",
}
"""Fields that APIs, and pandas, write beside the rows of a page."""


def is_conversation(items: list[Any]) -> bool:
    """Whether a list is one conversation: its items are messages, not rows."""
    return bool(items) and all(isinstance(item, dict) and _is_message(cast(dict[str, Any], item)) for item in items)


def _is_message(item: dict[str, Any]) -> bool:
    names = item.keys()
    if "role" in item or {"from", "value"} <= names:
        return not names & {"messages", "prompt", "completion", "chosen", "conversations", "trajectories"}
    if names in ({"human", "assistant"}, {"type", "data"}) or any(pair <= names for pair in _PAIRS):
        return True
    is_typed = isinstance(item.get("type"), str) and "messages" not in item
    return is_typed and bool({"call_id", "summary", "content"} & names)


_PAIRS = ({"kind", "parts"}, {"message", "finish_reason"}, {"lc", "kwargs"})
"""Field sets of a Pydantic AI message, of a choice, and of LangChain's serialization."""


_PRINTED = re.compile(r"""\s*(?:(?:np\.|numpy\.)?array\()?\s*\[?\s*\{\s*['"]""")
_ROLE = re.compile(r"""['"](?:role|from)['"]:\s*['"](?:system|developer|user|human|assistant|gpt|tool)['"]""")
_FORM = 'Write [{"role": …, "content": …}, …].'
_WRITE = (
    "It is messages as Python prints an array of them, or is cut off. Write the table with "
    'df.to_json("rows.jsonl", orient="records", lines=True) or df.to_parquet("rows.parquet").'
)


def parsed(value: Any, where: str, name: str, only_lists: bool = False) -> Any:
    """What a cell holds. Raises `RowError` for messages that numpy or pandas printed, or that are cut off, and with
    `only_lists` for anything but a list."""
    found = cell(value)
    is_printed = isinstance(found, str) and _PRINTED.match(found) and _ROLE.search(found)
    if is_printed or (only_lists and not is_list(found)):
        held = "it is text, and no JSON list" if isinstance(found, str) else "it is no list"
        raise refused(where, f"{name}: {held}.", _WRITE if is_printed else _FORM)
    return found


_TOKEN = r"(?:<s>|<bos>|<[|｜][^<>\n]{1,40}>|<(?:start|end)_of_turn>|\[/?INST\])"
_RENDERED_BEGINS = re.compile(rf"\s*{_TOKEN}")
_RENDERED_ENDS = re.compile(
    rf"(?:{_TOKEN}\s*\w{{0,20}}\s*)+(?:(?:</?[^<>\n]{{1,40}}>|\[/?THINK\]|◁/?think▷)\s*){{0,2}}\Z"
)


def is_rendered(text: str) -> bool:
    """Whether a prompt was rendered by a chat template: it begins with special tokens and ends by opening the
    assistant's turn, perhaps with thoughts."""
    return bool(_RENDERED_BEGINS.match(text)) and bool(_RENDERED_ENDS.search(text[-400:]))


SAID = ("prompt", "completion", "response", "chosen", "rejected", "output", "user_input", "question", "answer")
"""Text columns: their cells are text even if they look like JSON, unless they are messages."""


def _said(text: str) -> Any:
    value = cell(text)
    items = value if is_list(value) else [value]
    said = (is_object(item, "role|from") or is_object(item, "type", "content") for item in items)
    return value if items and all(said) else text


_EXCEL_HINT = re.compile(r"sep=[,;|\t]\r?\n")
_ONE_COLUMN = re.compile(r"""\s*(?:[A-Za-z_]\w*|"[A-Za-z_]\w*")[ \t]*\r?\n\s*(?:"\s*)?(?:[\[{]|array\()""")
"""A table with one column, whose cells hold JSON or a printed Python list."""


def _parse_csv(text: str, where: str, said: Sequence[str]) -> list[Row] | None:
    """Rows of a table with a header, separated by commas, semicolons, bars or tabs; None if the text is none."""
    if hint := _EXCEL_HINT.match(text):
        text = "\n" + text[hint.end() :]
    header = text.lstrip("\r\n").split("\n", 1)[0]
    if header.startswith("<") or (header.startswith("|") and header.rstrip().endswith("|")):  # HTML, Markdown
        return None
    delimiter = max(",;\t|", key=header.count)
    if not header.count(delimiter) and not _ONE_COLUMN.match(text):
        return None
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    names: list[str] = []
    found: list[Row] = []
    line = 1
    try:
        for cells in reader:
            place, line = f"{where}:{line}", reader.line_num + 1
            if not any(cells):
                continue
            if not names:
                names = [name.strip() for name in cells]
                if len(set(names)) < len(names) or not all(names[1:]):
                    remedy = (
                        "Name each column once. (promptfoo's results are read as JSON: promptfoo eval -o results.json)"
                    )
                    raise RowError(f"{place} has columns without a name or twice: {names}.", remedy)
                continue
            if len(cells) != len(names):
                raise RowError(
                    f"{place} has {len(cells)} cells, the header has {len(names)} columns.",
                    "Quote cells that contain the separator or line breaks; delete lines above the header."
                    + ("" if found else f" {READ}"),
                )
            named = zip(names, cells, strict=True)
            found.append(
                Row(place, {n: _said(text) if n in SAID or n in said else cell(text) for n, text in named if n}, True)
            )
    except csv.Error as error:
        raise RowError(f"{where}:{reader.line_num} is no row of a table: {error}", "Mend or delete it.") from error
    return found
