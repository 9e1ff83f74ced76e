"""The groups of one call as a file that is uploaded: a trajectory store, known by its SHA-256."""

import hashlib
import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory_store import TrajectoryStore


@dataclass(frozen=True, slots=True)
class BatchFile:
    path: Path
    sha256: str
    size: int
    """Bytes."""


@contextmanager
def batch_file(groups: Iterable[TrajectoryGroup]) -> Generator[BatchFile]:
    """Writes the groups into a temporary directory, which is removed in the end."""
    with tempfile.TemporaryDirectory(prefix="gavel-batch-") as directory:
        store = TrajectoryStore(Path(directory, "groups.jsonl.zst"))
        store.extend(groups)
        with store.path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        yield BatchFile(store.path, digest, store.path.stat().st_size)
