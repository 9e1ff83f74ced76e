"""The directory of a run, `<runs>/<project>/<name>/`, used by one process at a time, and checkpoints by name.

    model.json   metrics.jsonl   trajectories/<split>/<step>.jsonl.zst   checkpoints/<step>/   cassettes.sqlite

Descriptions (model.json, experiment.json, the trainer state) carry the `format_version`. A reader accepts every version
up to FORMAT_VERSION: a change that older readers would misread raises it.

    sft/qwen3-4b        the newest checkpoint of this run; runs/sft/qwen3-4b is the same, by its directory
    sft/qwen3-4b@12     that of its step 12
    some/adapter        any directory of a PEFT adapter
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from gavel.base.errors import GavelError
from gavel.base.files import UNFINISHED, write_atomically
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.runs.checkpoints import MANIFEST, Checkpoints
from gavel.trainer.runs.metrics import MetricsLog
from gavel.trainer.runs.trackers import TrackerName, chosen_tracker

FORMAT_VERSION = 1


_LOCK = ".lock"
EXPERIMENT = "experiment.json"
TRAINER_STATE = "trainer_state"
"""The part of a checkpoint that exact resume needs."""
START = "start"
"""Holds the adapter that a run began with, if that is another run's."""
PULLED = ".pulled"
"""Holds what has arrived of a checkpoint that is being pulled from a store."""
_LONGEST_NAME = 255
_REORDERED = "the same in another order"
_HASH = re.compile("@[0-9a-f]{12}$")
RESTORE = "Restore the file, start over with --fresh, or give the new run another --name."
_OWN = frozenset(
    "model.json experiment.json run.toml summary.json memory.json metrics.jsonl report.html trajectories "
    f"checkpoints {START} {PULLED} reference exports adapters vllm.log vllm-logs job.json atropos trackio_id wandb "
    "wandb_id".split()
)
"""The entries of a run directory that Gavel writes, beside its lock."""
_KEPT = frozenset({"deployments", *(f"cassettes.sqlite{end}" for end in ("", "-wal", "-shm"))})
"""The judge's replies, which are paid for, and the records of deployments, which may still cost: they stay when a run
starts over."""


class RunDirectoryError(GavelError):
    """The run directory cannot be used.

    The remedy has the options of the command line, which prints it; the error's text, which a Python user sees, says
    the same in Python.
    """

    def __str__(self) -> str:
        in_python = self.remedy.replace("--fresh", "its directory deleted")
        in_python = re.sub(r"--([a-z][a-z-]*)(?: (?=\d))?", lambda option: f"{option[1].replace('-', '_')}=", in_python)
        return "\n".join(filter(None, (self.message, in_python)))


def check_format_version(found: object, what: str) -> None:
    """Raises `RunDirectoryError` for a version `found` in the file `what` that is later than `FORMAT_VERSION`, or is no
    number. None, no recorded version, is fine."""
    if found is None or (type(found) is int and 0 <= found <= FORMAT_VERSION):
        return
    remedy = "Upgrade Gavel (pip install --upgrade gavel-rl), or give the new run another --name."
    if type(found) is not int:
        remedy = RESTORE
    raise RunDirectoryError(f"{what} has format version {found!r}, and this Gavel reads up to {FORMAT_VERSION}", remedy)


def runs_root(path: str | Path | None = None) -> Path:
    """`path`, else GAVEL_RUNS, else `runs` here."""
    return Path(path or os.environ.get("GAVEL_RUNS") or "runs")


def run_path(root: Path, project: str, name: str) -> Path:
    """The directory of a run. Raises `RunDirectoryError` for a name that no directory can have."""
    for part in (project, name):
        if not part:
            raise RunDirectoryError("the name of the run is empty", "Give it a name (--name), or leave --name out.")
        if (size := len(os.fsencode(part))) > _LONGEST_NAME:
            raise RunDirectoryError(
                f"the name {part[:20]}… is too long: it has {size} bytes",
                f"Choose another --name, of at most {_LONGEST_NAME} bytes.",
            )
        if not _is_part(part):
            raise RunDirectoryError(
                f"{part!r} cannot be the name of a directory", "Give the model a project and a name without slashes."
            )
    return root / project / name


def _is_part(name: str) -> bool:
    """Whether a file can have the name."""
    return name not in ("", ".", "..") and not {"/", "\0"} & set(name) and len(os.fsencode(name)) <= _LONGEST_NAME


def check_description(run: Path, description: dict[str, Any], file_name: str = EXPERIMENT) -> None:
    """Raises `RunDirectoryError` when the run was begun with another description; none yet is accepted.

    Where the file was deleted, the copy in the newest checkpoint stands for it.
    """
    kept = run.glob(f"checkpoints/[0-9]*/{TRAINER_STATE}/{file_name}")
    file = run / file_name if (run / file_name).exists() else max(kept, default=None)
    if file is None:
        return
    begun = read_description(file)
    check_format_version(begun.get("format_version"), str(file))
    if changed := differences(begun, description):
        remedy = "Go on with the old settings, start over with --fresh, or give the new run another --name."
        if all(each.endswith(_REORDERED) for each in changed):
            remedy = "Sort them where they are made (a set has another order in each process): start over with --fresh."
        raise RunDirectoryError(f"the run in {run} was begun with other settings: {'; '.join(changed)}", remedy)


def differences(begun: Mapping[str, Any], asked: Mapping[str, Any], within: str = "") -> list[str]:
    """Every setting of `asked` that `begun` has otherwise: `seed 0, not 1`, `train_tasks: 2 new (a, b), 1 gone (c)`."""
    found: list[str] = []
    for key, new in asked.items():
        old: Any = begun.get(key)
        name = f"{within}{key}"
        match old, new:
            case _ if old == new:
                pass
            case _ if key == "order":  # of a list that is told by its hash
                found += [] if found else [f"{within}{_REORDERED}"]
            case dict(), dict():
                before, after = cast("dict[str, Any]", old), cast("dict[str, Any]", new)
                found += differences(before, {**dict.fromkeys(before), **after}, f"{name}: ")
            case list(), list():
                found.append(f"{name}: {_list_difference(cast('list[Any]', old), cast('list[Any]', new))}")
            case _ if max(len(repr(old)), len(repr(new))) > 60:
                found.append(f"{name} changed")
            case _:
                found.append(f"{name} {old!r}, not {new!r}")
    return found


def _list_difference(old: list[Any], new: list[Any]) -> str:
    """Elements that end with @ and a hash are named without it."""
    gone = {_HASH.sub("", str(each)) for each in old if each not in new}
    come = {_HASH.sub("", str(each)) for each in new if each not in old}
    parts = {"new": come - gone, "gone": gone - come, "changed": gone & come}
    told: list[str] = []
    for what, names in parts.items():
        first = [f"{name[:40]}…" if len(name) > 40 else name for name in sorted(names)[:3]]
        if names:
            told.append(f"{len(names)} {what} ({', '.join(first)}{', …' if len(names) > 3 else ''})")
    return ", ".join(told) or _REORDERED


def read_description(file: Path) -> dict[str, Any]:
    """The JSON object in `file`; raises `RunDirectoryError` when there is none."""
    try:
        description = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{file} cannot be read: {error}", RESTORE) from error
    if not isinstance(description, dict):
        raise RunDirectoryError(f"{file} is not a JSON object", RESTORE)
    return cast("dict[str, Any]", description)


def read_origin(checkpoint: Path) -> dict[str, Any]:
    """Its `run`, `step` and `base_model`; empty for an adapter of no run."""
    file = checkpoint.parent.parent / "model.json"
    if checkpoint.parent.name != "checkpoints" or not file.is_file():
        return {}
    run = read_description(file)
    found = {"run": f"{run.get('project')}/{run.get('name')}", "step": int(checkpoint.name)}
    return found | {"base_model": run.get("base_model")}


class RunDirectory:
    """Opens (or creates) the directory of one run and holds its lock until `close`."""

    def __init__(self, root: Path, project: str, name: str, tracker: TrackerName | None = None) -> None:
        """`tracker`: where its metrics are shown, too. Raises `TrackerError` for one that is not installed, and
        `RunDirectoryError` for an invalid name, a read-only place, or a directory that is in use."""
        tracker = chosen_tracker(tracker)
        self.path = run_path(root, project, name)
        self._created = [path for path in (self.path, *self.path.parents) if not path.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / _LOCK).open("w")
        except OSError as error:
            raise RunDirectoryError(
                f"the run directory {self.path} cannot be written: {error.strerror}",
                "Choose another with GAVEL_RUNS=…, or make this one writable.",
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _try_operations(self.path)
        except BlockingIOError as error:
            self._lock.close()
            raise RunDirectoryError(
                f"another process is using the run directory {self.path}",
                "Wait for it or stop it, or give this run another name.",
            ) from error
        except OSError as error:
            self._lock.close()
            self.discard_if_new()
            raise RunDirectoryError(
                f"{self.path} cannot hold a run, whose files are locked, appended to, replaced and renamed: "
                f"{error.strerror or error}",
                "If the disk is full, make room: the same command goes on. A mounted bucket often lacks some of this: "
                "keep runs on a disk (GAVEL_RUNS=…), and copy checkpoints to the bucket: gavel push.",
            ) from error
        self.checkpoints = Checkpoints(self.path / "checkpoints")
        self.metrics = MetricsLog(self.path / "metrics.jsonl", project=project, name=name, tracker=tracker)

    def check_held(self) -> None:
        """Raises `RunDirectoryError` when the directory was deleted or replaced: another process may then use it."""
        try:
            held = os.path.samestat(os.fstat(self._lock.fileno()), (self.path / _LOCK).stat())
        except FileNotFoundError:
            held = False
        if not held:
            raise RunDirectoryError(
                f"the run directory {self.path} was deleted or replaced while this process used it",
                "Nothing more is written there. Start the run again, under another --name if the new one is in use.",
            )

    def describe(self, description: dict[str, Any], file_name: str = "model.json") -> None:
        """Writes the description, with the format version, to a file of the run. Raises `RunDirectoryError`."""
        self.check_held()
        file = self.path / file_name
        write_atomically(file, json.dumps({"format_version": FORMAT_VERSION, **description}, indent=1))

    def description(self, file_name: str = "model.json") -> dict[str, Any]:
        """The contents written by `describe`; empty if there is no such file. Raises `RunDirectoryError`."""
        file = self.path / file_name
        return read_description(file) if file.exists() else {}

    def check(self, description: dict[str, Any], file_name: str = "model.json") -> None:
        """As `check_description`; also raises when the description is lost."""
        if file_name == "model.json" and not (self.path / file_name).exists() and self._is_begun():
            raise RunDirectoryError(
                f"{self.path} holds a run, but its model.json is missing, so it is not known what was trained",
                "Restore model.json, start over with --fresh, or give the new run another --name.",
            )
        check_description(self.path, description, file_name)

    def _is_begun(self) -> bool:
        """Whether something was trained here; a prompted model leaves metrics of step 0 alone."""
        kept = self.checkpoints.steps() or (self.path / EXPERIMENT).exists()
        return bool(kept) or any(row["step"] > 0 for row in self.metrics.rows())

    def trajectories(self, split: str, step: int) -> TrajectoryStore:
        """The trajectory store of a split. Raises `RunDirectoryError` for a split that no directory can be.

        A split may have parts, such as `val/hard`; it never leaves the run directory.
        """
        if not all(map(_is_part, split.split("/"))):
            raise RunDirectoryError(
                f"{split!r} cannot be the name of a split",
                "Choose a plain name, such as val, or one with parts, such as val/hard.",
            )
        return TrajectoryStore(self.path / "trajectories" / split / f"{step:06d}.jsonl.zst")

    def fresh_trajectories(self, split: str, step: int) -> TrajectoryStore:
        """The same, emptied of what a killed process left of an unfinished step."""
        store = self.trajectories(split, step)
        store.path.unlink(missing_ok=True)
        return store

    def entries(self) -> list[Path]:
        """The files and directories that Gavel has written, model.json first, without the lock."""
        own = (entry for entry in self.path.iterdir() if entry.name in _OWN or entry.suffix == UNFINISHED)
        return sorted(own, key=lambda entry: (entry.name != "model.json", entry.name))

    def foreign_entries(self) -> list[Path]:
        """Entries of the directory that Gavel did not write."""
        known = {*_OWN, *_KEPT, _LOCK}
        return sorted(entry for entry in self.path.iterdir() if entry.name not in known and entry.suffix != UNFINISHED)

    def discard_if_new(self) -> None:
        """Removes what opening created if the run was never described; call it after `close`."""
        if self.path in self._created and not (self.path / "model.json").exists():
            (self.path / _LOCK).unlink(missing_ok=True)
            for directory in self._created:
                with contextlib.suppress(OSError):  # another run uses it
                    directory.rmdir()

    def close(self) -> None:
        self.metrics.close()
        self._lock.close()


def _try_operations(directory: Path) -> None:
    """Does once what a run does: a mounted bucket often cannot, and would lose metrics or half a checkpoint."""
    tried = directory / ".mount_check"
    rows = tried / "unfinished" / "rows"
    try:
        shutil.rmtree(tried, ignore_errors=True)
        rows.parent.mkdir(parents=True)
        rows.write_text("1\n")
        with rows.open("a") as stream:
            stream.write("2\n")
        (tried / "later").write_text(rows.read_text() + "3\n")
        (tried / "later").replace(rows)
        rows.parent.rename(tried / "whole")
        if (tried / "whole" / "rows").read_text() != "1\n2\n3\n":
            raise OSError("what was written is not there")
    finally:
        shutil.rmtree(tried, ignore_errors=True)


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
    if not (places := _places(named, root)):
        raise NamedRunError(f"there is no run and no directory {named!r}", _HOW)
    place, step = places[0]
    checkpoints = Checkpoints(place / "checkpoints")
    if (place / _ADAPTER).is_file():
        if step is not None:
            raise NamedCheckpointError(f"{str(place)!r} is one checkpoint, so it has no step {step}", "Leave @ out.")
        if not (place / MANIFEST).is_file() or not place.name.isdigit():
            return place
        checkpoints, step = Checkpoints(place.parent), int(place.name)
    elif (place / "config.json").is_file():
        raise NamedCheckpointError(
            f"{str(place)!r} is a whole model, not an adapter", f"Train it as the base model: --model {place}"
        )
    elif not (place / "model.json").is_file():
        raise NamedRunError(f"{str(place)!r} is neither a run nor an adapter: it has no {_ADAPTER}", _HOW)
    if (step := checkpoints.latest() if step is None else step) is None:
        raise NamedCheckpointError(
            f"the run in {place} has no whole checkpoint", "Train it for a step at least, or name another run."
        )
    if checkpoints.is_whole(step):
        return checkpoints.path(step)
    kept = checkpoints.steps()
    others = ", ".join(str(each) for each in kept if each != step)
    raise NamedCheckpointError(
        f"the checkpoint of step {step} in {checkpoints.directory} {'is damaged' if step in kept else 'is not kept'}",
        f"Kept beside it: {others or 'none'}.",
    )


def names_something(named: str, root: Path) -> bool:
    """Whether there is a run or a directory of this name."""
    return bool(_places(named, root))


def split_step(named: str, root: Path | None = None) -> tuple[Path, int | None]:
    """The directory of a run, and the step that is named with it, if one is. Raises `NamedRunError`."""
    for place, step in _places(named, runs_root(root)):
        if (place / "model.json").is_file():
            return place, step
    raise NamedRunError(f"there is no run {named!r}", "Name one as `gavel runs` lists it: desk/clerk@12.")


def names_checkpoint(named: str, directory: Path, root: Path) -> bool:
    """Whether `named` may be the name of this checkpoint, which need not be there any more."""
    (text, step), *_ = reversed(run_names(named))
    run = directory.parent.parent if directory.parent.name == "checkpoints" else directory
    places = {os.path.abspath(text), os.path.abspath(root / text)}
    is_of_step = step is None or f"{step:06d}" == directory.name
    return os.path.abspath(directory) in places or (os.path.abspath(run) in places and is_of_step)


def run_names(named: str) -> list[tuple[str, int | None]]:
    """What the name may mean: itself, or a run and its step."""
    head, at, tail = named.rpartition("@")
    return [(named, None), *([(head, int(tail))] if at and head and tail.isdecimal() else [])]


def _places(named: str, root: Path) -> list[tuple[Path, int | None]]:
    """The directories that may be meant, the likeliest first."""
    places = [(place, step) for name, step in run_names(named) if name for place in (Path(name), root / name)]
    return [(Path(os.path.abspath(place)), step) for place, step in places if place.is_dir()]
