"""Reads rows from a path: text, compressed text, a table, a log archive, or a directory of these.

The kind of a file is detected from its first bytes, not from its name. `-` is standard input.
"""

import base64
import bz2
import gzip
import importlib
import io
import json
import lzma
import struct
import sys
import zipfile
import zlib
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import zstandard
from pydantic_core import to_jsonable_python

from gavel.base.extras import install_line
from gavel.scenarios.formats.row import Row, RowError
from gavel.scenarios.formats.text import SAID, decode, rows

_PARQUET, _ARROW_FILE, _ARROW_STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
_SUFFIXES = (
    *(".parquet", ".arrow", ".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".eval"),
    *(".gz", ".zst", ".bz2", ".xz"),
)
_STORE = ".jsonl.zst"
_BESIDE = {
    *("dataset_info.json", "state.json", "dataset_dict.json", "metadata.json", "dataset_infos.json"),
    *("logs.json", "eval-set.json", "listing.json"),
}
"""Metadata files of datasets, which hold no rows."""


def name_of_file(path: Path) -> str:
    """The file's name for the user."""
    return "standard input" if str(path) == "-" else str(path)


def rows_by_file(path: Path, said: Sequence[str] = ()) -> dict[Path, list[Row]]:
    """All rows of a file, or of each data file of a directory; `said`: see `text.rows`. Raises `RowError`."""
    try:
        return {file: _rows(file, said) for file in (_list_files(path) if path.is_dir() else [path])}
    except OSError as error:
        raise RowError(f"{path} cannot be read: {error.strerror or error}", "Check the path.") from error


def expand(path: Path) -> list[tuple[Path, bool]]:
    """The path itself, or the files that it expands to, each with whether it is a store of trajectory groups.

    A run expands to the stores of its training attempts, in the order of its steps; a directory of stores to these.
    Raises `RowError` for a run without any.
    """
    if (path / "model.json").is_file() and not (path / "config.json").is_file():  # a model's directory has both
        if found := sorted((path / "trajectories" / "train").glob(f"*{_STORE}")):
            return [(file, True) for file in found]
        splits = sorted(each.name for each in (path / "trajectories").glob("*") if any(each.glob(f"*{_STORE}")))
        raise RowError(
            f"the run {path} has no training attempts{' yet' if not splits else ''}.",
            f"Name the attempts of another split: {path / 'trajectories' / splits[0]}."
            if splits
            else "Let it make a step.",
        )
    files = _list_files(path) if path.is_dir() else [path]
    stores = [file for file in files if _is_store(file)]
    if stores and all(file.name.endswith(_STORE) for file in files):
        return [(file, True) for file in files]  # one may hold only the record that its writer was interrupted at
    return [(path, path in stores)]


def _is_store(path: Path) -> bool:
    """Whether a file begins as a store of trajectory groups."""
    if not path.is_file():  # a pipe is read only once
        return False
    try:
        with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
            return stream.read(20).startswith((b'{"format_version":', b'{"trajectories":'))
    except (OSError, zstandard.ZstdError):
        return False


def _list_files(directory: Path) -> list[Path]:
    """The data files of a directory, sorted by name; those of one kind only."""
    files = sorted(
        file
        for file in directory.rglob("*")
        if file.name.endswith(_SUFFIXES)
        and file.name not in _BESIDE
        and not any(part.startswith((".", "cache-")) for part in file.relative_to(directory).parts)
    )
    kinds = dict.fromkeys(next(suffix for suffix in _SUFFIXES if file.name.endswith(suffix)) for file in files)
    if not kinds:
        raise RowError(f"{directory} holds no file of attempts.", f"Files that are read end in {', '.join(_SUFFIXES)}.")
    if len(kinds) > 1:
        raise RowError(f"{directory} holds files of several kinds: {', '.join(kinds)}.", "Name the files to read.")
    return files


def _rows(path: Path, said: Sequence[str]) -> list[Row]:
    name = name_of_file(path)
    data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    if data.startswith((_PARQUET, _ARROW_FILE, _ARROW_STREAM)):
        return _table_rows(name, data)
    if data.startswith(b"PK\x03\x04"):
        return _inspect_samples(name, data)
    return rows(decode(_unpacked(data, name), name), name, said)


def _unpacked(data: bytes, where: str) -> bytes:
    try:
        while unpack := next((unpack for magic, unpack in _PACKED.items() if data.startswith(magic)), None):
            data = unpack(data)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
        raise RowError(f"{where} cannot be unpacked: {error}", "It is damaged or not whole; write it again.") from error
    if data[257:262] == b"ustar":
        raise RowError(f"{where} is a tar archive.", "Unpack it, and name the file inside it.")
    return data


_ZSTD = 93
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")


def _inspect_samples(where: str, data: bytes) -> list[Row]:
    """The samples, in logged order. Raises `RowError` for another kind of zip, or a damaged one."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {info.filename: info for info in archive.infolist()}  # the last member of a name counts
            samples = [info for name, info in members.items() if name.startswith("samples/")]
            if any(name.startswith("xl/workbook.") for name in members):
                raise RowError(
                    f"{where} is an Excel workbook.",
                    'Save it as CSV UTF-8, or write it with df.to_json("rows.jsonl", orient="records", lines=True).',
                )
            if not samples and "header.json" not in members and "_journal/start.json" not in members:
                raise RowError(
                    f"{where} is a zip archive, and no Inspect log: it has neither header.json nor samples/.",
                    "Unpack it, and name the file inside it.",
                )
            return [Row(f"{where} {info.filename}", json.loads(_member(archive, info, data))) for info in samples]
    except (OSError, zipfile.BadZipFile, zlib.error, zstandard.ZstdError, struct.error, ValueError) as error:
        raise RowError(
            f"{where} is a damaged zip archive: {error}", "Copy it again, or `inspect log recover` it."
        ) from error


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, data: bytes) -> bytes:
    """Reads an archive's member; Python's own reader supports zstd only from 3.14 on."""
    if info.compress_type != _ZSTD:
        return archive.read(info)
    *_, name, extra = _LOCAL_HEADER.unpack_from(data, info.header_offset)
    start = info.header_offset + _LOCAL_HEADER.size + name + extra
    found = _unpacked_zstd(data[start : start + info.compress_size])
    if zlib.crc32(found) != info.CRC:
        raise zipfile.BadZipFile(f"{info.filename} has a wrong checksum")
    return found


def _unpacked_zstd(packed: bytes) -> bytes:
    """Decompresses all frames, in order. Raises `ZstdError` if the last one is cut off, unlike zstandard's streams."""
    parts: list[bytes] = []
    while packed:
        frame = zstandard.ZstdDecompressor().decompressobj()
        parts.append(frame.decompress(packed))
        if not frame.eof:
            raise zstandard.ZstdError("it breaks off in the middle of a frame")
        packed = frame.unused_data
    return b"".join(parts)


_PACKED = {
    **{b"\x1f\x8b": gzip.decompress, zstandard.FRAME_HEADER: _unpacked_zstd},
    **{b"BZh": bz2.decompress, b"\xfd7zXZ\0": lzma.decompress},
}
"""Decompressor by magic bytes."""


def _table_rows(where: str, data: bytes) -> list[Row]:
    """The rows of a parquet file, or of an Arrow file or stream. Raises `RowError` if it is damaged, or pyarrow is not
    installed."""
    kind = "parquet" if data.startswith(_PARQUET) else "Arrow"
    try:
        pyarrow = importlib.import_module("pyarrow")
    except ImportError as error:
        raise RowError(
            f"{where} is a {kind} file, and pyarrow, which reads it, is not installed.",
            f"{install_line('parquet')}, or convert the file to JSON lines.",
        ) from error
    ipc, parquet = importlib.import_module("pyarrow.ipc"), importlib.import_module("pyarrow.parquet")
    try:
        if kind == "parquet":
            table: Any = parquet.ParquetFile(pyarrow.BufferReader(data)).read()
        else:
            opened = ipc.open_file if data.startswith(_ARROW_FILE) else ipc.open_stream
            table = opened(pyarrow.BufferReader(data)).read_all()
    except pyarrow.ArrowException as error:
        raise RowError(f"{where} is a damaged {kind} file: {error}", "Write it again.") from error
    found: list[dict[str, Any]] = table.to_pylist()
    values = {name: [row[name] for row in found if row[name] is not None] for name in table.column_names}
    said = {name: None for name, each in values.items() if each and (name in SAID or isinstance(each[0], list))}
    # a lacking answer is told
    return [Row(f"{where}:{number}", said | _plain(row), True) for number, row in enumerate(found, 1)]


def _plain(value: Any) -> Any:
    """The value in JSON's types, without null fields."""
    match value:
        case dict():
            fields = cast(dict[Any, Any], value)
            return {str(name): _plain(each) for name, each in fields.items() if each is not None}
        case list() | tuple():
            return [_plain(each) for each in cast(list[Any], value)]
        case bytes():
            return f"data:application/octet-stream;base64,{base64.b64encode(value).decode()}"
        case None | str() | bool() | int() | float():
            return value
        case _:
            value = float(value) if isinstance(value, Decimal) else value
            return to_jsonable_python(value, timedelta_mode="float", fallback=str)
