"""Files of groups, as clients send them: each under its SHA-256, begun, cut off and gone on with at will."""

import asyncio
import contextlib
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Generator
from pathlib import Path

from gavel.base.errors import GavelError
from gavel.scenarios.trajectory_store import write_whole
from gavel.trainer.runs.file_hash import file_sha256

_SERVED = ("checkpoints", "exports", "trajectories")


def served_files(directory: Path) -> dict[str, str]:
    """The SHA-256 of each file in `directory`, by its path there."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(file.relative_to(directory)): file_sha256(file) for file in files}


def served_file(run: Path, name: str) -> Path | None:
    """The file `name` of a run directory; None when there is none that may be fetched."""
    file, root = (run / name).resolve(), run.resolve()
    if not file.is_relative_to(root) or file.relative_to(root).parts[:1] not in [(part,) for part in _SERVED]:
        return None
    return file if file.is_file() else None


_NAME = re.compile(r"[0-9a-f]{64}")
_PARTIAL = ".partial"
_KEPT_SECONDS = 86_400.0


_SILENCE_SECONDS = 60.0
"""Without a byte, after which a line is taken for broken."""


class UploadError(GavelError):
    """A file cannot be taken."""


class OffsetError(UploadError):
    """The bytes do not begin where the file ends so far."""


class DamagedUploadError(UploadError):
    """A file is not what was announced."""


class UploadMissingError(GavelError):
    """A job's file is not on the server."""


class Uploads:
    """A directory of files."""

    def __init__(self, directory: Path, *, most_bytes: int) -> None:
        """`most_bytes`: of one file. Files that were left for a day go when another one begins."""
        self._directory = directory
        self._most = most_bytes
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        directory.mkdir(parents=True, exist_ok=True)

    def path(self, sha256: str) -> Path | None:
        """The whole file; None when it is not there."""
        file = self._file(sha256)
        return file if file.exists() else None

    def found(self, sha256: str) -> Path:
        """The whole file. Raises `UploadMissingError`."""
        file = self.path(sha256)
        if file is None:
            raise UploadMissingError("a file of the job is not here any more", "Send the job again.")
        return file

    def offset(self, sha256: str) -> int:
        """Bytes that are there."""
        for file in (self._file(sha256), self._partial(sha256)):
            if file.exists():
                return file.stat().st_size
        return 0

    async def add(self, sha256: str, offset: int, length: int, parts: AsyncIterator[bytes]) -> int:
        """Adds bytes from `offset` on to a file of `length` bytes; gives those that are there now.

        What arrives before a cut line stays. Raises `OffsetError`, `DamagedUploadError` for bytes of another hash (they
        are removed), and `UploadError` for too large a file and a full disk.
        """
        if length > self._most:
            raise UploadError(
                f"{length} bytes are more than the server takes ({self._most})",
                "Train in several steps, or raise --max-upload-mb of the server.",
            )
        async with self._locks[sha256]:
            if self.path(sha256) is not None:
                return length
            partial = self._partial(sha256)
            there = self.offset(sha256)
            if not there:
                self._remove_old()
            if offset != there:
                raise OffsetError(f"the bytes begin at {offset}, and {there} are there", "Ask for the offset again.")
            there = await self._append(partial, there, length, parts)
            if there == length:
                await self._complete(sha256)
            return there

    def remove(self, sha256: str) -> None:
        self._file(sha256).unlink(missing_ok=True)
        self._locks.pop(sha256, None)

    def _remove_old(self) -> None:
        for file in self._directory.iterdir():
            with contextlib.suppress(FileNotFoundError):  # its job took it meanwhile
                if file.stat().st_mtime < time.time() - _KEPT_SECONDS:
                    file.unlink()

    async def _append(self, partial: Path, there: int, length: int, parts: AsyncIterator[bytes]) -> int:
        loop = asyncio.get_running_loop()
        with self._disk():
            file = partial.open("ab", buffering=0)
        with file:
            try:
                async with asyncio.timeout(_SILENCE_SECONDS) as silence:
                    async for part in parts:
                        if there + len(part) > length:
                            why = f"more than the announced {length} bytes came"
                            raise DamagedUploadError(why, "Send the file again.")
                        with self._disk():
                            write_whole(file.fileno(), part, there)
                        there += len(part)
                        silence.reschedule(loop.time() + _SILENCE_SECONDS)
            except TimeoutError as error:
                raise OffsetError("the line was silent", "Go on from the offset.") from error
        return there

    @contextlib.contextmanager
    def _disk(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise UploadError(
                f"the server cannot keep the upload: {error.strerror or error}",
                f"Make room in {self._directory} there, and call again: it goes on where it was.",
            ) from error

    async def _complete(self, sha256: str) -> None:
        partial = self._partial(sha256)
        if await asyncio.to_thread(file_sha256, partial) != sha256:
            partial.unlink()
            raise DamagedUploadError("the bytes that came have another SHA-256 than announced", "Send the file again.")
        partial.rename(self._file(sha256))

    def _file(self, sha256: str) -> Path:
        if not _NAME.fullmatch(sha256):
            raise UploadError(f"{sha256[:80]!r} is no SHA-256", "Name a file by the 64 digits of its hash.")
        return self._directory / sha256

    def _partial(self, sha256: str) -> Path:
        return self._file(sha256).with_suffix(_PARTIAL)
