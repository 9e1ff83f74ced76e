"""Uploads and downloads: file parts by hash, adapters assembled from them, and the files of a run."""

import contextlib
import hashlib
import re
import shutil
import tempfile
import time
from collections.abc import Generator, Iterable
from pathlib import Path

from gavel.base.files import file_sha256, new_folder, write_atomically
from gavel.trainer.backends.remote.wire import (
    PART_BYTES,
    DamagedUploadError,
    SentAdapter,
    UploadError,
    UploadMissingError,
)
from gavel.trainer.backends.run_start import ORIGIN
from gavel.trainer.policy.adapters import FILES, kept_reference

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
_KEPT_SECONDS = 86_400.0
_PREFIX = "adapter-"


class Uploads:
    """A directory of parts, each under its SHA-256, and the adapters made of them beside it."""

    def __init__(self, directory: Path) -> None:
        """Removes what a killed server left."""
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        for left in directory.parent.glob(f"{_PREFIX}*"):
            shutil.rmtree(left, ignore_errors=True)

    def missing(self, parts: Iterable[str]) -> list[str]:
        """The parts that are to be sent. Those left for a day go. Raises `UploadError` for what is no hash."""
        for file in self._directory.iterdir():
            with contextlib.suppress(FileNotFoundError):  # its job took it meanwhile
                if file.stat().st_mtime < time.time() - _KEPT_SECONDS:
                    file.unlink()
        return [sha256 for sha256 in parts if not self._file(sha256).exists()]

    def add(self, sha256: str, part: bytes) -> None:
        """Raises `DamagedUploadError` for bytes of another hash, and `UploadError` for too many and for a full disk."""
        file = self._file(sha256)
        if len(part) > PART_BYTES:
            raise UploadError(f"{len(part)} bytes are more than a part has", f"Send {PART_BYTES} at most.")
        if hashlib.sha256(part).hexdigest() != sha256:
            raise DamagedUploadError("the bytes that came have another SHA-256 than announced", "Send the file again.")
        try:
            write_atomically(file, part)
        except OSError as error:
            raise UploadError(
                f"the server cannot keep the upload: {error.strerror or error}",
                f"Make room in {self._directory} there, and call again: it goes on where it was.",
            ) from error

    def write(self, parts: Iterable[str], file: Path) -> None:
        """Writes a file of these parts. Raises `UploadMissingError`."""
        with file.open("wb") as stream:
            for sha256 in parts:
                try:
                    stream.write(self._file(sha256).read_bytes())
                except FileNotFoundError as error:
                    why = "a file of the job is not here any more"
                    raise UploadMissingError(why, "Send the job again.") from error

    def remove(self, parts: Iterable[str]) -> None:
        for sha256 in parts:
            self._file(sha256).unlink(missing_ok=True)

    def _file(self, sha256: str) -> Path:
        if not _NAME.fullmatch(sha256):
            raise UploadError(f"{sha256[:80]!r} is no SHA-256", "Name a part by the 64 digits of its hash.")
        return self._directory / sha256

    @contextlib.contextmanager
    def start(self, sent: SentAdapter) -> Generator[Path]:
        """A directory with the adapter, for a run to begin with, while the block runs; the run has a copy then.

        Raises `UploadMissingError`.
        """
        with tempfile.TemporaryDirectory(dir=self._directory.parent, prefix=_PREFIX) as name:
            self._write_adapter(sent, Path(name))
            Path(name, ORIGIN).write_text(sent.model_dump_json(exclude={"parts"}), encoding="utf-8")
            yield Path(name)
        self._forget(sent)

    def keep_reference(self, sent: SentAdapter, run: Path) -> None:
        """Puts the adapter where `run` keeps the reference of this name, unless it has one. As of `start`."""
        kept = kept_reference(run, Path(sent.named))
        if kept.is_dir():
            return
        with new_folder(kept) as unfinished:
            self._write_adapter(sent, unfinished)
        self._forget(sent)

    def _write_adapter(self, sent: SentAdapter, directory: Path) -> None:
        if not sent.parts.keys() <= set(FILES):
            raise UploadError(f"an adapter has no file {', '.join(sent.parts)}", f"It has {' and '.join(FILES)}.")
        for name, parts in sent.parts.items():
            self.write(parts, directory / name)

    def _forget(self, sent: SentAdapter) -> None:
        for parts in sent.parts.values():
            self.remove(parts)
