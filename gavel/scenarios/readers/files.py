"""A path -> rows, whatever holds them: text, compressed text, a table, a log archive, or a directory of these.

What a file is, is told by its first bytes, not by its name.
"""

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path

import zstandard

from gavel.scenarios.readers.archive import inspect_samples, unpacked_zstd
from gavel.scenarios.readers.row import Row, RowError
from gavel.scenarios.readers.tables import arrow_rows, parquet_rows
from gavel.scenarios.readers.text import decode, rows

GZIP, ZSTD, ZIP, PARQUET, ARROW_FILE, ARROW_STREAM = (
    b"\x1f\x8b",
    zstandard.FRAME_HEADER,
    b"PK\x03\x04",
    b"PAR1",
    b"ARROW1",
    b"\xff\xff\xff\xff",
)
_SUFFIXES = (".parquet", ".arrow", ".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".eval", ".gz", ".zst")
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
"""Files that describe the rows and hold none."""


def rows_by_file(path: Path, said: Sequence[str] = ()) -> dict[Path, list[Row]]:
    """All rows of a file, or of each data file of a directory; `said`: see `text.rows`. Raises `RowError`."""
    try:
        return {file: _rows(file, said) for file in (_files(path) if path.is_dir() else [path])}
    except OSError as error:
        raise RowError(f"{path} cannot be read: {error.strerror or error}", "Check the path.") from error


def expanded(path: Path) -> list[Path]:
    """The path itself; of the directory of a run, the stores of its training attempts, in the order of its steps.

    Raises `RowError` for a run that has none.
    """
    if not (path / "model.json").is_file() or (path / "config.json").is_file():  # that of a model
        return [path]
    if found := sorted((path / "trajectories" / "train").glob(f"*{_STORE}")):
        return found
    splits = sorted(each.name for each in (path / "trajectories").glob("*") if any(each.glob(f"*{_STORE}")))
    raise RowError(
        f"the run {path} has no training attempts{' yet' if not splits else ''}.",
        f"Name the attempts of another split: {path / 'trajectories' / splits[0]}."
        if splits
        else "Let it make a step.",
    )


def is_store(path: Path) -> bool:
    """Whether a file is a store of trajectory groups, or by its name ought to be one."""
    try:
        with path.open("rb") as file:
            head = file.read(64)
            if not head.startswith(ZSTD):
                return path.suffix == ".zst" and head.lstrip()[:1] not in b"{["
            file.seek(0)
            with zstandard.ZstdDecompressor().stream_reader(file) as stream:
                return stream.read(20).startswith((b'{"format_version":', b'{"trajectories":'))
    except (OSError, zstandard.ZstdError):
        return False


def _files(directory: Path) -> list[Path]:
    """The data files of a directory, in the order of their names; those of one kind only."""
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
    if data.startswith((PARQUET, ARROW_FILE, ARROW_STREAM)) and b"\n" not in data[:1]:
        return parquet_rows(path) if data.startswith(PARQUET) else arrow_rows(path)
    if data.startswith(ZIP):
        return inspect_samples(path)
    return rows(decode(_unpacked(data, str(path)), str(path)), str(path), said)


def _unpacked(data: bytes, where: str) -> bytes:
    try:
        while data.startswith((GZIP, ZSTD)):
            data = gzip.decompress(data) if data.startswith(GZIP) else unpacked_zstd(data)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise RowError(f"{where} cannot be unpacked: {error}", "It is damaged or not whole; write it again.") from error
    return data
