"""Gavel's own tables of judged groups (CSV, Parquet), one row per member: see `judged_table.py`."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from gavel.scenarios.judged_table import groups_of_rows, is_judged_table
from gavel.scenarios.readers.checks import checked, unusable
from gavel.scenarios.readers.row import Format, Row, Source, WholeGroup, is_object

_RECORDS = ("trajectory", "group_record")


def _read(rows: Sequence[Row], source: Source) -> Iterator[WholeGroup]:
    records = [{name: _text(row.value.get(name)) for name in _RECORDS} for row in rows]
    first = [row for row, record in zip(rows, records, strict=True) if record["group_record"]]
    try:
        groups = list(groups_of_rows(records))
    except (ValidationError, ValueError, TypeError) as error:
        raise unusable(rows[0].where, error) from error
    for row, group in zip(first, groups, strict=True):
        yield WholeGroup(checked(group, row.where), row, JUDGED.name)


def _text(record: Any) -> str:
    return json.dumps(record) if is_object(record) else str(record or "")


def _fits(value: Any) -> bool:
    """A column may be missing where a row has no value in it."""
    return is_object(value, "status", "trajectory|group_record") and (is_judged_table(value) or "member" in value)


JUDGED = Format("Gavel's judged table", ("group", "status", "trajectory", "group_record"), _fits, _read)
