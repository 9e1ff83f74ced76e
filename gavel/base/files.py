"""Atomic files and folders: they appear complete or not at all.

They are written under a temporary name in the same folder, `.NAME.RANDOM.unfinished`, and renamed at the end.
"""

import contextlib
import fcntl
import glob
import hashlib
import os
import secrets
import shutil
from collections.abc import Generator
from pathlib import Path

UNFINISHED = ".unfinished"
"""Suffix of a file that is being written, or that a killed process left unfinished."""


def is_inside(root: Path, file: Path) -> bool:
    """Whether a file is below the directory, whatever links lead to it."""
    return Path(os.path.realpath(file)).is_relative_to(os.path.realpath(root))  # resolve() fails on a circle of links


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = False) -> Generator[Path]:
    """Gives the path of a new file beside `path`, and puts it in place of `path` when the block ends.

    The block may make it a folder, if none exists at `path`. A block that fails leaves `path` as it was and nothing
    beside it. `durable`: the content is synced before the rename, so that a power failure leaves the old file or the
    new one. Raises `OSError`.
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        yield unfinished
        if durable:
            sync_all(unfinished)
        unfinished.replace(path)
        if durable:
            sync(path.parent)
    finally:
        if unfinished.is_dir():
            shutil.rmtree(unfinished)
        unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path, *, durable: bool = False) -> Generator[Path]:
    """Gives an empty folder beside `path`, which becomes `path` when the block ends; nothing may be there then.

    Creates the parent folders. Remains of the same folder from killed processes are removed; if a living one is writing
    it, `BlockingIOError` is raised. `durable` and other errors as in `replacing`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{UNFINISHED}"):
        with locked(left):
            shutil.rmtree(left)
    with replacing(path, durable=durable) as unfinished:
        unfinished.mkdir()
        with locked(unfinished):
            yield unfinished


@contextlib.contextmanager
def locked(path: Path) -> Generator[None]:
    """Holds a lock on a file or folder that is there. Raises `BlockingIOError` where another process holds it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: str | bytes, *, durable: bool = False, mode: int = 0o666) -> None:
    """Writes a whole file in place of the one that is there, if any; its folder must exist.

    `mode`: permissions of the new file, less the umask of the process. Raises `OSError`.
    """
    with replacing(path, durable=durable) as unfinished:
        descriptor = os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)


def file_sha256(file: Path) -> str:
    """The SHA-256 of its content, as hexadecimal digits; reads the file in blocks. Raises `OSError`."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Waits until the content of a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(path: Path) -> None:
    """Waits until a file, or a folder with everything in it, is on the disk."""
    for each in [*path.rglob("*"), path]:
        sync(each)
