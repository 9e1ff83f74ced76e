"""Files that are there whole or not at all."""

import contextlib
import os
import secrets
from collections.abc import Generator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = False) -> Generator[Path]:
    """Gives the path of a new file beside `path`, and puts it in place of `path` when the block ends.

    A block that fails leaves `path` as it was and nothing beside it. `durable`: the content is on the disk before the
    name is, so that a power cut leaves the old file or the new one. Raises `OSError`.
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.unfinished")
    try:
        yield unfinished
        if durable:
            sync(unfinished)
        unfinished.replace(path)
        if durable:
            sync(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes, *, durable: bool = False, mode: int = 0o666) -> None:
    """Writes a whole file in place of the one that is there, if any; its folder must exist.

    `mode`: permissions of the new file, less the umask of the process. Raises `OSError`.
    """
    with replacing(path, durable=durable) as unfinished:
        descriptor = os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
