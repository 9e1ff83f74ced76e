"""The groups of one call as a file that is uploaded: a trajectory store, known by its SHA-256."""

import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.runs.file_hash import file_sha256


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
        yield BatchFile(store.path, file_sha256(store.path), store.path.stat().st_size)
