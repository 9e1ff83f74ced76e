"""The run directories below a root, as a listing shows them, without loading a model.

A run is a directory `<runs>/<project>/<name>/` with a `model.json`, or one of a comparison,
`<runs>/compare/<scenario>/<name>/`. It is running while a process holds its lock.
"""

import contextlib
import fcntl
import math
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gavel.base.errors import GavelError
from gavel.trainer.runs.checkpoints import read_object
from gavel.trainer.runs.metrics import MetricsError, Row, whole_rows
from gavel.trainer.runs.run_directory import check_format_version, read_description

_PLACES = (
    *(f"{above}{run}/model.json" for above in ("", "runs/") for run in ("*/*", "compare/*/*")),
    "*/model.json",
)
"""Where runs stand below the directory of all runs, the one above it, and that of a project."""
_HELD_OUT = "held_out"
_FIGURES = (
    (_HELD_OUT, "success", "success"),
    (_HELD_OUT, "wins/base", "wins against the base"),
    ("train", "judge_score", "judge score"),
)
"""(split, metric, words) of what a run is known by, the best first."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run as the listing shows it."""

    name: str
    """`project/name`; of a comparison `compare/scenario/name`."""
    state: str
    """running, finished or interrupted; stopped where the number of steps wanted is not known; else unreadable."""
    step: int
    steps: int | None
    """Wanted in all; None = not known."""
    best: str
    """Its best figure with the step, such as `success 0.91 at 30`; of an unreadable run the reason."""
    judge: str
    age: float
    """Seconds since it last wrote a figure."""
    damage: str = ""
    """Which rows of its metrics cannot be read, and what to do; empty where all can."""


def read_runs(root: Path) -> Iterator[RunSummary]:
    """The runs below `root`, in no order. Raises `GavelError` for a `root` that is no directory."""
    if root.exists() and not root.is_dir():
        raise GavelError(f"{root} is no directory.", "Name the directory that holds the runs, or set GAVEL_RUNS.")
    for file in (found for place in _PLACES for found in root.glob(place)):
        name = file.parent.relative_to(root).as_posix()
        try:
            yield _summary(file.parent, name)
        except (OSError, ValueError, GavelError) as error:
            age = time.time() - file.parent.stat().st_mtime
            yield RunSummary(name, "unreadable", 0, None, str(error).splitlines()[0], "–", age)


def _summary(directory: Path, name: str) -> RunSummary:
    model, metrics = directory / "model.json", directory / "metrics.jsonl"
    check_format_version(read_description(model).get("format_version"), str(model))
    read = whole_rows(metrics)
    if read.damage and not read.rows:
        raise MetricsError(read.damage)
    step, steps = last_step(read.rows), read_wanted_steps(directory, read.rows)
    if is_running(directory):
        state = "running"
    elif steps is not None:
        state = "finished" if step >= steps else "interrupted"
    else:  # of rounds, the last one has not begun
        state = "interrupted" if "evolve" in _settings(directory) else "stopped"
    judges = read_object(directory / "experiment.json").get("judge")
    named = ", ".join(map(str, cast("list[Any]", judges))) if isinstance(judges, list) else ""
    written = metrics if metrics.exists() else model
    age = time.time() - written.stat().st_mtime
    judge = named.replace("gavel/", "") or "–"
    return RunSummary(name, state, step, steps, _best(read.rows), judge, age, read.damage)


def last_step(rows: Iterable[Mapping[str, Any]]) -> int:
    """The last finished step by the rows of a run's metrics; 0 before the first."""
    return max((row["step"] for row in rows if row["split"] in ("train", "sft", _HELD_OUT)), default=0)


def is_running(directory: Path) -> bool:
    """Whether a process holds the lock of the run."""
    try:
        with (directory / ".lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def read_wanted_steps(directory: Path, rows: Iterable[Mapping[str, Any]]) -> int | None:
    """The planned steps by run.toml of `gavel train`, experiment.json of `gavel sft` or summary.json of a finished
    demo.

    For `gavel evolve`: the end of its last round, known from its metrics `rows` once that round has begun.
    """
    settings, experiment = _settings(directory), read_object(directory / "experiment.json")
    for table, name in ((settings.get("loop"), "steps"), (experiment.get("imitation"), "steps")):
        if isinstance(table, dict) and isinstance(steps := cast("Row", table).get(name), int):
            return steps
    rounds = settings.get("evolve")
    if isinstance(rounds, dict) and isinstance(last := cast("Row", rounds).get("iterations"), int):
        return next((int(row["last_step"]) for row in rows if row.get("iteration") == last), None)
    steps = read_object(directory / "summary.json").get("steps")
    return steps if isinstance(steps, int) else None


def _settings(directory: Path) -> Row:
    """The run's run.toml; empty where there is none."""
    with contextlib.suppress(OSError, ValueError):
        return tomllib.loads((directory / "run.toml").read_text(encoding="utf-8"))
    return {}


def _best(rows: list[Row]) -> str:
    """The highest held-out success, the newest among equals; without one, wins against the base, or the highest mean
    score of a step."""
    for split, metric, label in _FIGURES:
        found = [(row[metric], row["step"]) for row in rows if row["split"] == split and metric in row]
        if known := [(v, step) for v, step in found if isinstance(v, int | float) and math.isfinite(v)]:
            return "{} {:.2f} at step {}".format(label, *max(known))
    return "–"
