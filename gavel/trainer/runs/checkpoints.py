"""Atomic checkpoints: a checkpoint is complete or does not exist.

`<step>/` holds a PEFT adapter with its tokenizer and model card, and `trainer_state/`. It is written under a temporary
name, hashed into a manifest, flushed to disk and then renamed, so a kill at any point leaves the earlier ones as they
were; deleting renames first. What is written may be proven before the renaming (`prepare`, then `complete` or
`discard`). A checkpoint that does not match its hashes is skipped with a warning. `steps_to_keep` says which stay: the
newest, and the best by a metric.
"""

import contextlib
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from gavel.base.errors import GavelError
from gavel.base.files import file_sha256, new_folder, sync, sync_all, write_atomically


def steps_to_keep(saved: Sequence[int], values: Mapping[int, object], *, keep_last: int, keep_best: int) -> set[int]:
    """The last of the saved steps (given in ascending order) and those with the highest values, the newer among equals.

    A step without a number among `values` is not among the best.
    """
    scored = sorted((value, step) for step in saved if isinstance(value := values.get(step), int | float))
    best = [step for _, step in scored[max(0, len(scored) - keep_best) :]]
    return {*best, *saved[max(0, len(saved) - keep_last) :]}


def chosen_step(
    saved: Sequence[int], rows: Iterable[Mapping[str, Any]], step: int | Literal["latest", "best"], best_by: str
) -> int | None:
    """The saved step that is meant, None where there is none. best: by `split/metric` in rows of metrics.jsonl."""
    if step == "latest":
        return saved[-1] if saved else None
    if step != "best":
        return step
    split, _, metric = best_by.partition("/")
    values = {row["step"]: row[metric] for row in rows if row.get("split") == split and metric in row}
    return next(iter(steps_to_keep(saved, values, keep_last=0, keep_best=1)), None)


CARD = "README.md"
"""The model card, which no hash covers: evaluations of a checkpoint follow its saving."""
MANIFEST = "manifest.json"
_UNFINISHED = ".unfinished-"
_DELETED = ".deleted-"

logger = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one run, by training step."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, step: int) -> Path:
        return self.directory / f"{step:06d}"

    def steps(self) -> list[int]:
        """Saved steps in ascending order, without unfinished ones."""
        if not self.directory.is_dir():
            return []
        return sorted(int(entry.name) for entry in self.directory.iterdir() if entry.name.isdigit())

    def latest(self, before: int | None = None) -> int | None:
        """The newest step (before another) with an undamaged checkpoint; None when there is none."""
        for step in reversed([each for each in self.steps() if before is None or each < before]):
            if (problem := self._problem(step)) is None:
                return step
            logger.warning("checkpoint %s is damaged (%s); going back to the one before", self.path(step), problem)
        return None

    def is_whole(self, step: int) -> bool:
        """Whether the checkpoint of `step` is there, as it was written."""
        return self._problem(step) is None

    def save(self, step: int, write: Callable[[Path], None]) -> Path:
        """Calls `write` with an empty directory, which then becomes the checkpoint of `step`."""
        self.prepare(step, write)
        return self.complete(step)

    def prepare(self, step: int, write: Callable[[Path], None]) -> None:
        """Calls `write` with an empty directory, whose files are then on disk, and not yet the checkpoint of `step`."""
        unfinished = self._unfinished(step)
        self.discard(step)
        unfinished.mkdir(parents=True)
        write(unfinished)
        files = sorted(path for path in unfinished.rglob("*") if path.is_file() and path.name != CARD)
        hashes = {str(file.relative_to(unfinished)): file_sha256(file) for file in files}
        (unfinished / MANIFEST).write_text(json.dumps(hashes, indent=1))
        sync_all(unfinished)

    def complete(self, step: int) -> Path:
        """Makes the prepared files the checkpoint of `step`."""
        final = self.path(step)
        if final.exists():
            self.delete(step)  # it is damaged, or the run would have resumed from it
        self._unfinished(step).rename(final)
        sync(self.directory)
        return final

    def discard(self, step: int) -> None:
        """Removes what was prepared."""
        shutil.rmtree(self._unfinished(step), ignore_errors=True)

    def delete(self, step: int) -> None:
        """Renames the checkpoint away at once, then removes its files and those of deletions that were interrupted."""
        self.path(step).rename(self.directory / f"{_DELETED}{step:06d}-{secrets.token_hex(4)}")
        for doomed in self.directory.glob(f"{_DELETED}*"):
            shutil.rmtree(doomed)

    def write_card(self, step: int, text: str) -> None:
        """Replaces the model card of a checkpoint, unless an earlier version hashed it or there is no checkpoint."""
        if (hashes := read_object(self.path(step) / MANIFEST)) and CARD not in hashes:
            write_atomically(self.path(step) / CARD, text)

    def _unfinished(self, step: int) -> Path:
        return self.directory / f"{_UNFINISHED}{step:06d}"

    def _problem(self, step: int) -> str | None:
        directory = self.path(step)
        if not (hashes := read_object(directory / MANIFEST)):
            return "its manifest cannot be read, or names no files"
        for name, expected in hashes.items():
            if not (file := directory / name).is_file():
                return f"{name} is missing"
            if file_sha256(file) != expected:
                return f"{name} was altered"
        return None


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where there is none."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


EXPORT_MARK = "gavel_export.json"


class ExportError(GavelError):
    """A model cannot be exported."""


def read_export_mark(directory: Path) -> dict[str, Any] | None:
    """The export's record in a directory; None if it is not an export."""
    return read_object(directory / EXPORT_MARK) or None


@contextlib.contextmanager
def new_export(final: Path) -> Generator[Path]:
    """A new folder that becomes `final`. Raises `ExportError`, also when another process is writing it."""
    try:
        with new_folder(final, durable=True) as unfinished:
            yield unfinished
            if os.path.lexists(final):
                raise ExportError(f"{final} has appeared meanwhile", "Name another directory with --out.")
    except BlockingIOError as error:
        raise ExportError(f"another process is writing {final}", "Wait for it, or name another --out.") from error
    except OSError as error:
        remedy = "Make room, and export again, or name another directory with --out."
        raise ExportError(f"{final} cannot be written: {error}", remedy) from error


def occupied_error(directory: Path) -> ExportError:
    """Something else is there."""
    return ExportError(f"{directory} is there already, and is not this export", "Name another directory with --out.")
