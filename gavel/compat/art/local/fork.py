"""A run that begins with a checkpoint of another one, and counts its steps on from there."""

import shutil
from pathlib import Path

from gavel.trainer.runs.checkpoints import MANIFEST, Checkpoints
from gavel.trainer.runs.named_checkpoint import NamedCheckpointError
from gavel.trainer.runs.run_directory import RunDirectory, RunDirectoryError, read_description, run_path


def fork_checkpoint(root: Path, source: tuple[str, str], target: tuple[str, str], not_after: int | None) -> int:
    """Copies the newest whole checkpoint of the run `source` (project, name) of a step up to `not_after`; gives its
    step.

    Raises `NamedCheckpointError` when there is none, and `RunDirectoryError` when the run `target` has begun already.
    """
    found = run_path(root, *source)
    checkpoints = Checkpoints(found / "checkpoints")
    steps = [step for step in checkpoints.steps() if not_after is None or step <= not_after]
    step = next((step for step in reversed(steps) if checkpoints.is_whole(step)), None)
    if step is None:
        limit = "" if not_after is None else f" of a step up to {not_after}"
        raise NamedCheckpointError(f"{found} has no whole checkpoint{limit}", "Name a run that was trained.")
    description = read_description(found / "model.json")
    description.pop("from_checkpoint", None)  # the copy begins with this step, whatever that one began with
    directory = RunDirectory(root, *target)
    try:
        if directory.description():
            raise RunDirectoryError(
                f"the run in {directory.path} has begun already", "Give the model that is forked to another name."
            )
        directory.checkpoints.save(step, lambda copy: _copy(checkpoints.path(step), copy))
        directory.describe(description | {"project": target[0], "name": target[1]})
    finally:
        directory.close()
    return step


def _copy(checkpoint: Path, copy: Path) -> None:
    shutil.copytree(checkpoint, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))
