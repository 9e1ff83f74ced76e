"""A lossless, append-only file of trajectory groups, with one record per group.

A record is one zstd frame with a checksum that holds one line of JSON (`group.py`); `zstd -d` gives JSONL.
Records are appended under a file lock, each with a single write, so a process killed at any point loses at most the
record that it was writing. Readers skip such an unfinished end, and the next append cuts it off.
"""

import fcntl
import json
import logging
import os
import re
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import zstandard

from gavel.base.errors import GavelError
from gavel.scenarios.group import (
    PendingGroupError,
    RecordVersionError,
    TrajectoryGroup,
    check_version,
    from_row,
    to_line,
)
from gavel.scenarios.trajectory import NotANumberError

logger = logging.getLogger(__name__)

MAGIC = zstandard.FRAME_HEADER
CHUNK = 64 * 1024
MAX_RECORD = 2**30
"""Max bytes of a record. A few bytes of zstandard can expand to gigabytes."""
_FED_AT_ONCE = 1024
"""Compressed bytes decoded at once, which expand to at most 32 MB."""
LOCK_POLL_SECONDS = 0.01


class StoreError(GavelError):
    """A store cannot be read or written."""


class TrajectoryStore:
    """The groups in one file, in the order in which they were appended.

    Several processes and threads may read and append concurrently. Every failure is a `StoreError`.
    """

    def __init__(self, path: str | os.PathLike[str], *, lock_seconds: float = 30.0) -> None:
        """`lock_seconds`: max wait of an append for others."""
        self.path = Path(path)
        self.lock_seconds = lock_seconds
        self._inode, self._whole = 0, 0
        """The file of the last append, and the length up to which it holds whole records."""

    def append(self, group: TrajectoryGroup) -> None:
        """Appends one group. Creates the file and its directories if needed."""
        self.extend([group])

    def extend(self, groups: Iterable[TrajectoryGroup]) -> None:
        """Appends groups; they are on disk when this returns.

        All are encoded before the first is written, so a group that cannot be encoded leaves the file unchanged. Raises
        `PendingGroupError` for a group that still has rollouts to run.
        """
        frames: list[bytes] = []
        for group in groups:
            if group.pending:
                raise PendingGroupError(
                    f"this group still has {group.pending} rollouts to run: `await group` before storing it"
                )
            line = f"{to_line(group)}\n".encode()
            frames.append(zstandard.ZstdCompressor(write_checksum=True).compress(line))
        with self._os_errors("write", "Check that its directory can be written and that the disk has space left."):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab+", buffering=0) as file:
                fd = file.fileno()
                self._lock(fd)  # closing the file releases it
                end = self._cut_torn_end(fd)
                for frame in frames:
                    write_whole(fd, frame, end)
                    end += len(frame)
                os.fsync(fd)
                self._inode, self._whole = os.fstat(fd).st_ino, end

    def read(self) -> Iterator[TrajectoryGroup]:
        """Iterates over the groups, with at most one record in memory.

        Raises `StoreError` if there is no such file, and at a damaged record or one that is no trajectory group.
        """
        for number, row in enumerate(self.rows()):
            with self._record_errors(number):
                group = from_row(row)
            yield group

    def rows(self) -> Iterator[dict[str, Any]]:
        """The records as decoded JSON, for reading a few values in a fraction of the time of `read`."""
        return (stored.row for stored in self.rows_from(0))

    def rows_from(self, offset: int) -> Iterator["StoredRow"]:
        """Decoded records from the one at this byte offset on, each with its position in the file.

        A reader resumes at a remembered `end`, and reads a single record at a remembered `begin`.
        """
        with (
            self._os_errors("read", "Check the path, and that you may read it."),
            open(self.path, "rb", buffering=0) as file,
        ):
            fd, end = file.fileno(), offset
            for number, (payload, after) in enumerate(self._read_frames(fd, offset)):
                with self._record_errors(number):
                    row = json.loads(payload)
                    if not isinstance(row, dict):
                        raise ValueError("it is no JSON object")
                    check_version(cast("dict[str, Any]", row))
                begin, end = end, after
                yield StoredRow(begin, end, cast("dict[str, Any]", row))
            if torn := os.fstat(fd).st_size - end:
                logger.warning("%s: skipped an unfinished record at its end (%d bytes)", self.path, torn)

    def __iter__(self) -> Iterator[TrajectoryGroup]:
        return self.read()

    def __len__(self) -> int:
        """Number of whole records; reads the whole file."""
        return sum(1 for _ in self.rows())

    def __bool__(self) -> bool:
        """True, without reading the file: otherwise `if store` would call `__len__`."""
        return True

    def _read_frames(self, fd: int, offset: int) -> Iterator[tuple[bytes, int]]:
        """Whole frames from `offset` to the end of the file, or to its unfinished end."""
        if not MAGIC.startswith(os.pread(fd, len(MAGIC), 0)):
            raise StoreError(
                f"{self.path} is no trajectory store", "Give the path of a .jsonl.zst file that Gavel wrote."
            )
        while (frame := _read_frame(fd, offset)) or _has_frame_after(fd, offset):
            frame = frame or _read_frame(fd, offset)  # a writer may have finished it: records are written in order
            if frame is None:
                raise StoreError(
                    f"{self.path} is damaged at byte {offset}, before its end",
                    f"Restore it, or keep what lies before: head -c {offset} '{self.path}' > repaired.jsonl.zst",
                )
            yield frame
            _, offset = frame

    @contextmanager
    def _record_errors(self, number: int) -> Generator[None, None, None]:
        try:
            yield
        except (RecordVersionError, NotANumberError) as error:
            raise StoreError(f"record {number} of {self.path} cannot be read: {error.message}", error.remedy) from error
        except (ValueError, TypeError) as error:
            raise StoreError(
                f"record {number} of {self.path} is no trajectory group: {error}",
                "Read it with the version of Gavel that wrote it, or look at it with: zstd -dc",
            ) from error

    def _cut_torn_end(self, fd: int) -> int:
        """Truncates the file to whole records; returns the offset of the next one."""
        stat = os.fstat(fd)
        known = self._whole if stat.st_ino == self._inode and self._whole <= stat.st_size else 0
        end = max((after for _, after in self._read_frames(fd, known)), default=known)
        if torn := stat.st_size - end:
            logger.warning("%s: cut off an unfinished record at its end (%d bytes)", self.path, torn)
            os.ftruncate(fd, end)
        return end

    def _lock(self, fd: int) -> None:
        deadline = time.monotonic() + self.lock_seconds
        while True:
            try:
                return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise StoreError(
                        f"{self.path} has been locked by another process for {self.lock_seconds:g} s",
                        f"See which one with: fuser -v '{self.path}'",
                    ) from error
            time.sleep(LOCK_POLL_SECONDS)

    @contextmanager
    def _os_errors(self, verb: str, remedy: str) -> Generator[None, None, None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"cannot {verb} {self.path}: {error.strerror or error}", remedy) from error


class StoredRow(NamedTuple):
    """A decoded record, and the byte range of the file that holds it."""

    begin: int
    end: int
    row: dict[str, Any]


def write_whole(fd: int, frame: bytes, end: int) -> None:
    """Appends in one write (the kernel splits what exceeds 2 GiB); a failed write leaves nothing behind."""
    try:
        written = 0
        while written < len(frame):
            written += os.write(fd, memoryview(frame)[written:])
    except OSError:
        os.ftruncate(fd, end)
        raise


def _read_frame(fd: int, offset: int) -> tuple[bytes, int] | None:
    """The content and the end of the whole, undamaged frame at `offset`, if there is one. Raises `StoreError` for one
    that expands beyond all records."""
    decoder = zstandard.ZstdDecompressor().decompressobj()
    parts: list[bytes] = []
    size, end = 0, offset
    try:
        while not decoder.eof:
            if not (chunk := os.pread(fd, _FED_AT_ONCE, end)):
                return None
            parts.append(decoder.decompress(chunk))
            size, end = size + len(parts[-1]), end + len(chunk)
            if size > MAX_RECORD:
                raise StoreError(
                    f"the record at byte {offset} expands to more than {MAX_RECORD:,} bytes",
                    "Gavel writes no such record: delete the file.",
                )
    except zstandard.ZstdError:
        return None
    return b"".join(parts), end - len(decoder.unused_data)


def _has_frame_after(fd: int, offset: int) -> bool:
    """Whether a whole frame begins anywhere after `offset`: then the data at `offset` is damaged, not unfinished."""
    start = offset + 1
    while chunk := os.pread(fd, CHUNK, start):
        if any(_read_frame(fd, start + found.start()) for found in re.finditer(re.escape(MAGIC), chunk)):
            return True
        if len(chunk) < CHUNK:
            return False
        start += CHUNK - len(MAGIC) + 1
    return False
