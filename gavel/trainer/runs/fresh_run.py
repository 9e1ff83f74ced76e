"""A run that starts over: the earlier run is deleted only when the new one has begun.

    with replacing_run(runs_root(), "demo", "clerk") as replaced:
        ...                    the new run starts; when this raises, the earlier run is put back
        replaced.delete()      the new run has begun

The earlier run waits in `<name>.before-<time>` beside its directory. Files that Gavel did not write stay in place.
"""

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from gavel.trainer.runs.run_directory import RunDirectory, RunDirectoryError, run_path

_SERVER_LOGS = ("vllm.log", "vllm-logs")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplacedRun:
    """An earlier run, moved aside; nothing when there was none."""

    aside: Path
    foreign: list[Path]
    """Files of others in the directory of the run, which stay there."""

    def delete(self) -> None:
        """Deletes the earlier run: the new one has begun."""
        shutil.rmtree(self.aside, ignore_errors=True)


@contextlib.contextmanager
def replacing_run(root: Path, project: str, name: str) -> Generator[ReplacedRun]:
    """Moves an earlier run aside; puts it back when the block raises before `delete`, else deletes it.

    Raises `RunDirectoryError` when a process uses the run, or the files cannot be moved.
    """
    aside = root / project / f"{name[:60]}.before-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    replaced, entries = ReplacedRun(aside, []), list[Path]()
    if run_path(root, project, name).is_dir():
        with contextlib.closing(RunDirectory(root, project, name)) as run:
            replaced.foreign.extend(run.foreign_entries())
            entries = run.entries()
            try:
                if entries:
                    aside.mkdir()
                for entry in entries:
                    entry.rename(aside / entry.name)
            except OSError as error:
                _move_back(aside, entries)
                raise RunDirectoryError(
                    f"the run in {run.path} cannot be replaced: {error}",
                    "Make its directory writable, or choose another --name.",
                ) from error
    try:
        yield replaced
    except BaseException:
        try:
            if aside.is_dir():
                with contextlib.closing(RunDirectory(root, project, name)) as run:
                    for entry in run.entries():
                        if entry.name in _SERVER_LOGS:  # they tell why the new run did not start
                            continue
                        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
                    _move_back(aside, entries)
        except (OSError, RunDirectoryError) as error:
            logger.warning("the earlier run could not be put back and is kept in %s: %s", aside, error)
        raise
    replaced.delete()


def _move_back(aside: Path, entries: list[Path]) -> None:
    """model.json, the first, comes back last: without it the directory is not taken for a whole run."""
    for entry in reversed(entries):
        if (aside / entry.name).exists() and not entry.exists():
            (aside / entry.name).rename(entry)
    shutil.rmtree(aside, ignore_errors=True)
