"""Parquet files and Arrow files (what `datasets.save_to_disk` writes) -> rows, by pyarrow.

A table has every field in every row: nulls stand for fields that a row does not have, and are left out.
"""

import base64
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from gavel.base.extras import install_line
from gavel.scenarios.formats.row import Row, RowError


def parquet_rows(path: Path) -> list[Row]:
    """The rows of a parquet file. Raises `RowError` when it is damaged, or pyarrow is not installed."""
    pyarrow = _pyarrow("parquet", path)
    from pyarrow import parquet  # pyright: ignore

    try:
        with parquet.ParquetFile(str(path)) as file:  # pyright: ignore
            return _rows(file.read(), path)  # pyright: ignore
    except pyarrow.ArrowException as error:
        raise RowError(f"{path} is a damaged parquet file: {error}", "Write it again.") from error


def arrow_rows(path: Path) -> list[Row]:
    """The rows of an Arrow file or stream. Raises `RowError` as `parquet_rows` does."""
    pyarrow = _pyarrow("Arrow", path)
    from pyarrow import ipc  # pyright: ignore

    try:
        with pyarrow.memory_map(str(path)) as file:
            opened = ipc.open_file if file.read(6) == b"ARROW1" else ipc.open_stream  # pyright: ignore
            file.seek(0)
            return _rows(opened(file).read_all(), path)  # pyright: ignore
    except pyarrow.ArrowException as error:
        raise RowError(f"{path} is a damaged Arrow file: {error}", "Write it again.") from error


def _pyarrow(kind: str, path: Path) -> Any:
    try:
        import pyarrow  # pyright: ignore
    except ImportError as error:
        raise RowError(
            f"{path} is a {kind} file, and pyarrow, which reads it, is not installed.",
            f"{install_line('parquet')}, or convert the file to JSON lines.",
        ) from error
    return cast(Any, pyarrow)


def _rows(table: Any, path: Path) -> list[Row]:
    return [Row(f"{path}:{number}", plain(row)) for number, row in enumerate(table.to_pylist(), 1)]


def plain(value: Any) -> Any:
    """The value as JSON knows it, without null fields."""
    match value:
        case dict():
            fields = cast(dict[Any, Any], value)
            return {str(name): plain(each) for name, each in fields.items() if each is not None}
        case list() | tuple():
            return [plain(each) for each in cast(list[Any], value)]
        case bytes():
            return f"data:application/octet-stream;base64,{base64.b64encode(value).decode()}"
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Decimal():
            return float(value)
        case None | str() | bool() | int() | float():
            return value
        case _:
            return str(value)
