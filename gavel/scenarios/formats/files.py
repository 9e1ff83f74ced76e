"""Reads rows from a path: text, compressed text, a table, a log archive, or a directory of these.

The kind of a file is detected from its first bytes, not from its name. Standard input (`-`) and pipes are read once,
into a temporary file.
"""

import base64
import bz2
import gzip
import importlib
import json
import lzma
import struct
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, cast

import zstandard
from pydantic_core import to_jsonable_python

from gavel.base.extras import install_line
from gavel.scenarios.formats.row import Row, RowError
from gavel.scenarios.formats.text import SAID, decode, rows

GZIP, ZSTD, ZIP, PARQUET, ARROW_FILE, ARROW_STREAM = (
    b"\x1f\x8b",
    zstandard.FRAME_HEADER,
    b"PK\x03\x04",
    b"PAR1",
    b"ARROW1",
    b"\xff\xff\xff\xff",
)
_PLAIN = (".parquet", ".arrow", ".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".eval")
_SUFFIXES = (*_PLAIN, ".gz", ".zst", ".bz2", ".xz")
_STORE = ".jsonl.zst"
_BESIDE = {
    "dataset_info.json",
    "state.json",
    "dataset_dict.json",
    "metadata.json",
    "dataset_infos.json",
    "logs.json",
    "eval-set.json",
    "listing.json",
}
"""Metadata files of datasets, which hold no rows."""


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
    if not path.is_dir():
        return [(path, _is_store(path))]
    files = _list_files(path)
    # Beside complete stores, one may hold only the record that its writer was interrupted at.
    if any(map(_is_store, files)) and all(file.name.endswith(_STORE) and _is_store(file, torn=True) for file in files):
        return [(file, True) for file in files]
    return [(path, False)]


def _is_store(path: Path, torn: bool = False) -> bool:
    """Whether a file is a store of trajectory groups, or should be by its name; with `torn`, whether it may be one that
    ends within its first record."""
    try:
        with path.open("rb") as file:
            head = file.read(64)
            if torn and ZSTD.startswith(head):
                return True
            if not head.startswith(ZSTD):
                return path.suffix == ".zst" and head.lstrip()[:1] not in b"{["
            file.seek(0)
            with zstandard.ZstdDecompressor().stream_reader(file) as stream:
                start = stream.read(20)
            return (torn and not start) or start.startswith((b'{"format_version":', b'{"trajectories":'))
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
    data = path.read_bytes()
    if data.startswith((PARQUET, ARROW_FILE, ARROW_STREAM)):
        return table_rows(path, data)
    if data.startswith(ZIP):
        return inspect_samples(path)
    return rows(decode(_unpacked(data, str(path)), str(path)), str(path), said)


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


def inspect_samples(path: Path) -> list[Row]:
    """The samples, in logged order.

    Raises `RowError` for another kind of zip, or a damaged one.
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            members = {info.filename: info for info in archive.infolist()}  # the last member of a name counts
            samples = [info for name, info in members.items() if name.startswith("samples/")]
            if any(name.startswith("xl/workbook.") for name in members):
                raise RowError(
                    f"{path} is an Excel workbook.",
                    'Save it as CSV UTF-8, or write it with df.to_json("rows.jsonl", orient="records", lines=True).',
                )
            if not samples and "header.json" not in members and "_journal/start.json" not in members:
                raise RowError(
                    f"{path} is a zip archive, and no Inspect log: it has neither header.json nor samples/.",
                    "Unpack it, and name the file inside it.",
                )
            return [Row(f"{path} {info.filename}", json.loads(_member(archive, info, file))) for info in samples]
    except (OSError, zipfile.BadZipFile, zlib.error, zstandard.ZstdError, struct.error, ValueError) as error:
        raise RowError(
            f"{path} is a damaged zip archive: {error}", "Copy it again, or `inspect log recover` it."
        ) from error


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: BinaryIO) -> bytes:
    """Reads an archive's member; Python's own reader supports zstd only from 3.14 on."""
    if info.compress_type != _ZSTD:
        return archive.read(info)
    file.seek(info.header_offset)
    *_, name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    file.seek(name + extra, 1)
    packed = file.read(info.compress_size)
    data = unpacked_zstd(packed)
    if zlib.crc32(data) != info.CRC:
        raise zipfile.BadZipFile(f"{info.filename} has a wrong checksum")
    return data


def unpacked_zstd(packed: bytes) -> bytes:
    """Decompresses all frames, in order. Raises `ZstdError` if the last one is cut off, unlike zstandard's streams."""
    parts: list[bytes] = []
    while packed:
        frame = zstandard.ZstdDecompressor().decompressobj()
        parts.append(frame.decompress(packed))
        if not frame.eof:
            raise zstandard.ZstdError("it breaks off in the middle of a frame")
        packed = frame.unused_data
    return b"".join(parts)


_PACKED = {GZIP: gzip.decompress, ZSTD: unpacked_zstd, b"BZh": bz2.decompress, b"\xfd7zXZ\0": lzma.decompress}
"""Decompressor by magic bytes."""

STDIN = Path("-")


@dataclass(frozen=True, slots=True)
class Inputs:
    paths: list[Path]
    names: dict[str, str] = field(default_factory=dict[str, str])
    """A temporary file's path -> its name for the user."""

    def told(self, message: str) -> str:
        for path, name in self.names.items():
            message = message.replace(path, name)
        return message


@contextmanager
def on_disk(named: Sequence[Path]) -> Generator[Inputs]:
    """Provides local paths of the named files while the context lasts. Raises `RowError` for an unreadable one."""
    with tempfile.TemporaryDirectory(prefix="gavel-") as directory:
        inputs = Inputs([])
        for number, path in enumerate(named):
            if path != STDIN and (not path.exists() or path.is_file() or path.is_dir()):
                inputs.paths.append(path)
                continue
            name = "standard input" if path == STDIN else str(path)
            copy = Path(directory) / str(number)
            try:
                copy.write_bytes(sys.stdin.buffer.read() if path == STDIN else path.read_bytes())
            except OSError as error:
                raise RowError(f"{name} cannot be read: {error.strerror or error}", "Check the path.") from error
            inputs.paths.append(copy)
            inputs.names[str(copy)] = name
        yield inputs


def table_rows(path: Path, data: bytes) -> list[Row]:
    """The rows of a parquet file, or of an Arrow file or stream, whose bytes are `data`.

    Raises `RowError` if it is damaged, or pyarrow is not installed.
    """
    kind = "parquet" if data.startswith(PARQUET) else "Arrow"
    try:
        pyarrow = importlib.import_module("pyarrow")
    except ImportError as error:
        raise RowError(
            f"{path} is a {kind} file, and pyarrow, which reads it, is not installed.",
            f"{install_line('parquet')}, or convert the file to JSON lines.",
        ) from error
    ipc, parquet = importlib.import_module("pyarrow.ipc"), importlib.import_module("pyarrow.parquet")
    try:
        if kind == "parquet":
            table: Any = parquet.ParquetFile(pyarrow.BufferReader(data)).read()
        else:
            opened = ipc.open_file if data.startswith(ARROW_FILE) else ipc.open_stream
            table = opened(pyarrow.BufferReader(data)).read_all()
    except pyarrow.ArrowException as error:
        raise RowError(f"{path} is a damaged {kind} file: {error}", "Write it again.") from error
    found: list[dict[str, Any]] = table.to_pylist()
    values = {name: [row[name] for row in found if row[name] is not None] for name in table.column_names}
    said = {name: None for name, each in values.items() if each and (name in SAID or isinstance(each[0], list))}
    return [
        Row(f"{path}:{number}", said | plain(row), True) for number, row in enumerate(found, 1)
    ]  # a lacking answer is told


def plain(value: Any) -> Any:
    """The value in JSON's types, without null fields."""
    match value:
        case dict():
            fields = cast(dict[Any, Any], value)
            return {str(name): plain(each) for name, each in fields.items() if each is not None}
        case list() | tuple():
            return [plain(each) for each in cast(list[Any], value)]
        case bytes():
            return f"data:application/octet-stream;base64,{base64.b64encode(value).decode()}"
        case None | str() | bool() | int() | float():
            return value
        case _:
            value = float(value) if isinstance(value, Decimal) else value
            return to_jsonable_python(value, timedelta_mode="float", fallback=str)
