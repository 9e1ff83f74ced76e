"""The start of a run: an adapter that changes nothing, or a checkpoint of another run.

    model.json      "from_checkpoint": {"named": "sft/qwen3-4b", "directory": "/…/checkpoints/000012", …}
    start/000000    a copy of that adapter, which is the run's step 0

The other run is read when this one begins, and never again: it may go on, be moved or be deleted. One that is in a
store (s3://bucket/prefix/sft/qwen3-4b@12) is pulled for that moment.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gavel.trainer.model_spec import TrainableSpec
from gavel.trainer.policy.adapters import check_base, check_lora, start_from
from gavel.trainer.policy.loading import adapter_base
from gavel.trainer.policy.policy import Policy, source_of
from gavel.trainer.runs.checkpoints import Checkpoints
from gavel.trainer.runs.run_directory import (
    PULLED,
    START,
    RunDirectory,
    RunDirectoryError,
    find_checkpoint,
    names_checkpoint,
    read_origin,
)
from gavel.trainer.runs.stores import pull_named


class RunStart:
    """The adapter of step 0."""

    def __init__(self, model: TrainableSpec, directory: RunDirectory, *, fresh: bool = False) -> None:
        """Raises `NamedCheckpointError`, `BaseModelError`, or `RunDirectoryError` when the run began otherwise.

        `fresh`: as if the run had not begun.
        """
        asked, root = model.from_checkpoint, directory.path.parent.parent
        begun = {} if fresh else directory.description()
        self._copies, self._pulled = Checkpoints(directory.path / START), directory.path / PULLED
        self._kept, self._source = bool(begun), self._copies.path(0)
        self.record: dict[str, Any] | None = begun.get("from_checkpoint")
        """The start's entry in model.json; None if the run begins with an adapter that changes nothing."""
        if not begun and asked is not None:
            found = pull_named(asked, self._pulled) if "://" in asked else find_checkpoint(asked, root)
            origin = read_origin(found)
            base = origin.pop("base_model", None)
            trained = source_of(base) if isinstance(base, str) else adapter_base(found)
            check_base(source_of(model.base_model), trained, found)
            check_lora(found, model.lora)
            kept_in = asked if "://" in asked else str(found)
            self.record = {"named": asked, "directory": kept_in, **origin}
            self._source = found
        elif begun and asked is not None and not _same(asked, self.record, root):
            first = f"from {self.record['named']!r}" if self.record else "without another run's checkpoint"
            raise RunDirectoryError(
                f"the run in {directory.path} was begun {first}, not from {asked!r}",
                "Give the new run another --name, start over with --fresh, or leave --from-checkpoint out to go on.",
            )

    def load(self, policy: Policy) -> None:
        """Gives the policy the adapter of step 0. Raises `BaseModelError` when it does not fit."""
        if self.record is None:
            return
        if self._kept and not self._copies.is_whole(0):
            raise RunDirectoryError(
                f"{self._copies.path(0)}, the adapter that the run began with, is damaged or missing",
                "Start over with --fresh, or give the new run another --name.",
            )
        start_from(policy, self._source)

    def keep(self, write: Callable[[Path], None]) -> None:
        """Copies the adapter into the run; `write` as of `Checkpoints.save`."""
        if self.record is not None and not self._kept:
            self._copies.save(0, write)
            self._kept, self._source = True, self._copies.path(0)
            shutil.rmtree(self._pulled, ignore_errors=True)


def _same(asked: str, record: dict[str, Any] | None, root: Path) -> bool:
    return record is not None and (
        asked == record["named"] or names_checkpoint(asked, Path(str(record["directory"])), root)
    )
