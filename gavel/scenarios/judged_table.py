"""Judged groups as a table for spreadsheets and data frames (CSV, Parquet), one row per member, without loss.

    write_table(Path("judged.csv"), groups, ".csv")
    groups = list(read_table(Path("judged.csv")))

The first columns are for reading: group and member (from 1), score, standard error, status, reason, flags, explanation
and the reward that the trajectory came with. The last two hold the records that the groups are restored from, as JSON:
`trajectory`, and in the first row of a group `group_record`. Parquet needs the extra `parquet`.
"""

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gavel.base.errors import GavelError
from gavel.base.extras import install_line
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.record_format import RECORD_VERSION, check_version
from gavel.scenarios.trajectory import Trajectory

SUFFIXES = (".csv", ".parquet")
COLUMNS = {
    "group": int,
    "member": int,
    "score": float,
    "standard_error": float,
    "status": str,
    "reason": str,
    "flags": str,
    "explanation": str,
    "independent_reward": float,
    "trajectory": str,
    "group_record": str,
}
"""Name and type of each column."""


class TableError(GavelError):
    """A table of judged groups cannot be read or written."""


def write_table(path: Path, groups: Sequence[TrajectoryGroup], suffix: str) -> None:
    """Writes the table in the format of `suffix`. Raises `TableError` when Parquet is not installed, and `OSError`."""
    rows = [row for number, group in enumerate(groups, 1) for row in _rows(number, group)]
    if suffix == ".parquet":
        pyarrow, parquet = _parquet()
        types = {int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
        schema = pyarrow.schema([(name, types[kind]) for name, kind in COLUMNS.items()])
        parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), path)
        return
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def read_table(path: Path) -> Iterator[TrajectoryGroup]:
    """The groups of a table that `write_table` wrote.

    Raises `TableError` for any other table and for Parquet where it is not installed.
    """
    rows: list[dict[str, Any]]
    if path.suffix == ".parquet":
        rows = _parquet()[1].read_table(path).to_pylist()
    else:
        csv.field_size_limit(sys.maxsize)
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = list(csv.DictReader(stream))
    if not is_judged_table(rows[0] if rows else {}):
        raise TableError(f"{path} is no table of judged groups.", "Give a file that `gavel score --out` wrote.")
    yield from groups_of_rows(rows)


def is_judged_table(row: dict[str, Any]) -> bool:
    """Whether a row is of such a table."""
    return {"trajectory", "group_record"} <= row.keys()


def groups_of_rows(rows: Sequence[dict[str, Any]]) -> Iterator[TrajectoryGroup]:
    """The groups that the rows of a table of judged groups hold, in order."""
    record: dict[str, Any] = {}
    members: list[Any] = []
    for row in rows:
        if row["group_record"]:
            if record:
                yield TrajectoryGroup.model_validate(record | {"trajectories": members})
            record, members = json.loads(row["group_record"]), []
            check_version(record)
            record.pop("format_version", None)
        if not record:
            raise TableError("the table's first row holds no group.", "Restore the file, or score again.")
        if row["trajectory"]:
            members.append(json.loads(row["trajectory"]))
    if record:
        yield TrajectoryGroup.model_validate(record | {"trajectories": members})


def _rows(number: int, group: TrajectoryGroup) -> Iterator[dict[str, Any]]:
    record = {"format_version": RECORD_VERSION, **json.loads(group.model_copy(update={"trajectories": []}).to_json())}
    first = {"group": number, "group_record": json.dumps(record)}
    if not group.trajectories:
        yield dict.fromkeys(COLUMNS) | first
    for member, trajectory in enumerate(group, 1):
        row = dict.fromkeys(COLUMNS) | {"group": number, "member": member} | _member(trajectory)
        yield row | (first if member == 1 else {})


def _member(trajectory: Trajectory) -> dict[str, Any]:
    judgement = trajectory.judgement
    independent = trajectory.metrics.get("independent_reward")
    row: dict[str, Any] = {
        "status": "scored" if trajectory.reward is not None else "unscored",
        "independent_reward": None if independent is None else float(independent),
        "trajectory": trajectory.to_json(),
    }
    if judgement is not None:
        row |= {
            "score": judgement.score,
            "standard_error": judgement.standard_error,
            "reason": _text(judgement.reason),
            "flags": "; ".join(judgement.flags),
            "explanation": _text(judgement.explanation),
        }
    return row


def _text(text: str | None) -> str | None:
    """Lone surrogates, which neither format can hold, are replaced; the record keeps them escaped."""
    return text and text.encode("utf-8", "replace").decode()


def _parquet() -> tuple[Any, Any]:
    try:
        import pyarrow  # pyright: ignore[reportMissingTypeStubs]
        from pyarrow import parquet  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise TableError("Parquet files need pyarrow.", install_line("parquet")) from error
    return pyarrow, parquet
