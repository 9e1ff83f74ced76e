"""Files of groups, as clients send them: each under its SHA-256, begun, cut off and gone on with at will."""

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

from gavel.llm.errors import GavelError
from gavel.trainer.runs.file_hash import file_sha256

_NAME = re.compile(r"[0-9a-f]{64}")
_PARTIAL = ".partial"
_KEPT_SECONDS = 86_400.0


class UploadError(GavelError):
    """A file is not what was announced."""


class Uploads:
    """A directory of files."""

    def __init__(self, directory: Path, *, most_bytes: int) -> None:
        """`most_bytes`: of one file. Removes what was left for a day."""
        self._directory = directory
        self._most = most_bytes
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        directory.mkdir(parents=True, exist_ok=True)
        for file in directory.iterdir():
            if file.stat().st_mtime < time.time() - _KEPT_SECONDS:
                file.unlink(missing_ok=True)

    def path(self, sha256: str) -> Path | None:
        """The whole file; None when it is not there."""
        file = self._file(sha256)
        return file if file.exists() else None

    def offset(self, sha256: str) -> int:
        """Bytes that are there."""
        for file in (self._file(sha256), self._partial(sha256)):
            if file.exists():
                return file.stat().st_size
        return 0

    async def add(self, sha256: str, offset: int, length: int, parts: AsyncIterator[bytes]) -> int:
        """Adds bytes from `offset` on to a file of `length` bytes; gives those that are there now.

        What arrives before a cut line stays. Raises `UploadError` for a wrong offset, too large a file, and for bytes
        that have another hash, which are removed.
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
            if offset != there:
                raise UploadError(f"the bytes begin at {offset}, and {there} are there", "Ask for the offset again.")
            with partial.open("ab") as file:
                async for part in parts:
                    if there + len(part) > length:
                        raise UploadError(f"more than the announced {length} bytes came", "Send the file again.")
                    there += file.write(part)
            if there == length:
                await self._complete(sha256)
            return there

    def remove(self, sha256: str) -> None:
        self._file(sha256).unlink(missing_ok=True)
        self._locks.pop(sha256, None)

    async def _complete(self, sha256: str) -> None:
        partial = self._partial(sha256)
        if await asyncio.to_thread(file_sha256, partial) != sha256:
            partial.unlink()
            raise UploadError("the bytes that came have another SHA-256 than announced", "Send the file again.")
        partial.rename(self._file(sha256))

    def _file(self, sha256: str) -> Path:
        if not _NAME.fullmatch(sha256):
            raise UploadError(f"{sha256[:80]!r} is no SHA-256", "Name a file by the 64 digits of its hash.")
        return self._directory / sha256

    def _partial(self, sha256: str) -> Path:
        return self._file(sha256).with_suffix(_PARTIAL)
