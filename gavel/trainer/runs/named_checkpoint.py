"""The checkpoint that a user names, by a run or by a directory.

sft/qwen3-4b            the newest checkpoint of this run
sft/qwen3-4b@12         that of its step 12
runs/sft/qwen3-4b       the same run, by its directory; @12 may follow here, too
some/adapter            any directory of a PEFT adapter, such as runs/sft/qwen3-4b/checkpoints/000012
"""

import os
from pathlib import Path

from gavel.base.errors import GavelError
from gavel.trainer.runs.checkpoints import MANIFEST, Checkpoints
from gavel.trainer.runs.run_directory import runs_root

_ADAPTER = "adapter_config.json"
_HOW = (
    "Name a run as `gavel runs` lists it (sft/qwen3-4b, or sft/qwen3-4b@12 for its step 12), or the directory of an "
    "adapter."
)


class NamedCheckpointError(GavelError):
    """No whole checkpoint has this name."""


class NamedRunError(NamedCheckpointError):
    """No run has this name."""


def find_checkpoint(named: str, root: Path) -> Path:
    """The absolute directory of the adapter; `root` is where runs are kept. Raises `NamedCheckpointError`."""
    place, step = _place(named, root)
    if place is None:
        raise NamedRunError(f"there is no run and no directory {named!r}", _HOW)
    if (place / _ADAPTER).is_file():
        if step is not None:
            raise NamedCheckpointError(f"{str(place)!r} is one checkpoint, so it has no step {step}", "Leave @ out.")
        if (place / MANIFEST).is_file() and place.name.isdigit():
            return _whole(Checkpoints(place.parent), int(place.name))
        return place
    if (place / "config.json").is_file():
        raise NamedCheckpointError(
            f"{str(place)!r} is a whole model, not an adapter", f"Train it as the base model: --model {place}"
        )
    if not (place / "model.json").is_file():
        raise NamedRunError(f"{str(place)!r} is neither a run nor an adapter: it has no {_ADAPTER}", _HOW)
    checkpoints = Checkpoints(place / "checkpoints")
    if step is None:
        step = checkpoints.latest()
    if step is None:
        raise NamedCheckpointError(
            f"the run in {place} has no whole checkpoint", "Train it for a step at least, or name another run."
        )
    return _whole(checkpoints, step)


def names_something(named: str, root: Path) -> bool:
    """Whether there is a run or a directory of this name."""
    return _place(named, root)[0] is not None


def split_step(named: str, root: Path | None = None) -> tuple[Path, int | None]:
    """The directory of a run, and the step that is named with it, if one is. Raises `NamedRunError`."""
    for place, step in _places(named, runs_root(root)):
        if (place / "model.json").is_file():
            return place, step
    raise NamedRunError(f"there is no run {named!r}", "Name one as `gavel runs` lists it: desk/clerk@12.")


def names_checkpoint(named: str, directory: Path, root: Path) -> bool:
    """Whether `named` may be the name of this checkpoint, which need not be there any more."""
    head, at, tail = named.rpartition("@")
    text = head if at and tail.isdecimal() else named
    run = directory.parent.parent if directory.parent.name == "checkpoints" else directory
    of_step = f"{int(tail):06d}" == directory.name if text != named else True
    places = {os.path.abspath(text), os.path.abspath(root / text)}
    return os.path.abspath(directory) in places or (os.path.abspath(run) in places and of_step)


def _place(named: str, root: Path) -> tuple[Path | None, int | None]:
    return next(iter(_places(named, root)), (None, None))


def _places(named: str, root: Path) -> list[tuple[Path, int | None]]:
    """The directories that may be meant, the likeliest first."""
    head, at, tail = named.rpartition("@")
    names: list[tuple[str, int | None]] = [(named, None)]
    if at and head and tail.isdecimal():
        names.append((head, int(tail)))
    places = [(place, step) for name, step in names if name for place in (Path(name), root / name)]
    return [(Path(os.path.abspath(place)), step) for place, step in places if place.is_dir()]


def _whole(checkpoints: Checkpoints, step: int) -> Path:
    kept = checkpoints.steps()
    if step in kept and checkpoints.is_whole(step):
        return checkpoints.path(step)
    state = "is damaged" if step in kept else "is not kept"
    others = ", ".join(str(each) for each in kept if each != step)
    raise NamedCheckpointError(
        f"the checkpoint of step {step} in {checkpoints.directory} {state}", f"Kept beside it: {others or 'none'}."
    )
