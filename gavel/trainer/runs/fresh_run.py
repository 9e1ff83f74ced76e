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
from pathlib import Path

from gavel.trainer.runs.run_directory import RunDirectory, RunDirectoryError, run_path

_SERVER_LOGS = ("vllm.log", "vllm-logs")

logger = logging.getLogger(__name__)


class ReplacedRun:
    """An earlier run, moved aside; nothing when there was none."""

    def __init__(self, root: Path, project: str, name: str) -> None:
        """Raises `RunDirectoryError` when a process uses the run, or the files cannot be moved."""
        self._run = (root, project, name)
        self._aside = root / project / f"{name[:60]}.before-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        self.foreign: list[Path] = []
        """Files of others in the directory of the run, which stay there."""
        if not run_path(root, project, name).is_dir():
            return
        with contextlib.closing(RunDirectory(root, project, name)) as run:
            self.foreign, entries = run.foreign_entries(), run.entries()
            try:
                if entries:
                    self._aside.mkdir()
                for entry in entries:
                    entry.rename(self._aside / entry.name)
            except OSError as error:
                self._move_back(run)
                raise RunDirectoryError(
                    f"the run in {run.path} cannot be replaced: {error}",
                    "Make its directory writable, or choose another --name.",
                ) from error

    def delete(self) -> None:
        """Deletes the earlier run: the new one has begun."""
        shutil.rmtree(self._aside, ignore_errors=True)

    def put_back(self) -> None:
        """Restores the earlier run in place of the new one; does nothing after `delete`."""
        if not self._aside.is_dir():
            return
        try:
            with contextlib.closing(RunDirectory(*self._run)) as run:
                for entry in run.entries():
                    if entry.name in _SERVER_LOGS:  # they tell why the new run did not start
                        continue
                    if entry.is_dir() and not entry.is_symlink():
                        shutil.rmtree(entry)
                    else:
                        entry.unlink()
                self._move_back(run)
        except (OSError, RunDirectoryError) as error:
            logger.warning("the earlier run could not be put back and is kept in %s: %s", self._aside, error)

    def _move_back(self, run: RunDirectory) -> None:
        """model.json comes last: without it the directory is not taken for a whole run."""
        if self._aside.is_dir():
            for entry in sorted(self._aside.iterdir(), key=lambda entry: entry.name == "model.json"):
                if not (run.path / entry.name).exists():
                    entry.rename(run.path / entry.name)
            shutil.rmtree(self._aside)


@contextlib.contextmanager
def replacing_run(root: Path, project: str, name: str) -> Generator[ReplacedRun]:
    """Moves an earlier run aside; puts it back when the block raises before `delete`, else deletes it."""
    replaced = ReplacedRun(root, project, name)
    try:
        yield replaced
    except BaseException:
        replaced.put_back()
        raise
    replaced.delete()
