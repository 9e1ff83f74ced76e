"""A directory as a store: another disk, or a bucket that is mounted."""

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from gavel.base.files import UNFINISHED, replacing
from gavel.trainer.runs.file_hash import file_sha256
from gavel.trainer.runs.storage.store import StorageError


class FolderStore:
    """Needs no locks; renames within the directory, which a mount may make a copy of."""

    def __init__(self, directory: Path) -> None:
        self.address = str(directory)
        self._directory = directory

    def names(self, prefix: str) -> list[str]:
        with self._errors():
            files = (path for path in self._directory.rglob("*") if path.is_file() and path.suffix != UNFINISHED)
            found = (path.relative_to(self._directory).as_posix() for path in files)
            return sorted(name for name in found if name.startswith(prefix))

    def read(self, name: str) -> bytes | None:
        with self._errors():
            path = self._directory / name
            return path.read_bytes() if path.is_file() else None

    def has(self, name: str, sha256: str, size: int) -> bool:
        with self._errors():
            path = self._directory / name
            return path.is_file() and path.stat().st_size == size and file_sha256(path) == sha256

    def send(self, file: Path, name: str, sha256: str) -> None:
        with self._errors():
            path = self._directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as unfinished:
                shutil.copyfile(file, unfinished)

    def fetch(self, name: str, file: Path) -> None:
        with self._errors():
            shutil.copyfile(self._directory / name, file)

    def remove(self, name: str) -> None:
        with self._errors():
            (self._directory / name).unlink(missing_ok=True)

    def finish(self) -> None:
        """Each file is there as soon as it is sent."""

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"{self._directory} cannot be used as a store: {error.strerror or error}",
                "Check the path, that it may be written, and that there is space left.",
            ) from error
