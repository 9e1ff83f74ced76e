"""The run directories below a root, as a listing shows them, without loading a model.

A run is a directory `<runs>/<project>/<name>/` with a `model.json`, or one of a comparison,
`<runs>/compare/<scenario>/<name>/`. It is running while a process holds its lock.
"""

import contextlib
import fcntl
import json
import math
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gavel.base.errors import GavelError
from gavel.trainer.runs.metrics import MetricsError, whole_rows
from gavel.trainer.runs.run_directory import check_format_version, read_description

_PLACES = ("*/*/model.json", "compare/*/*/model.json")
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
    rows = read.rows
    if read.damage and not rows:
        raise MetricsError(read.damage)
    step = last_step(rows)
    steps = read_wanted_steps(directory, rows)
    if steps is None:  # of rounds, the last one has not begun
        state = "interrupted" if "evolve" in _settings(directory) else "stopped"
    else:
        state = "finished" if step >= steps else "interrupted"
    if is_running(directory):
        state = "running"
    judge = read_object(directory / "experiment.json").get("judge")
    names = cast("list[Any]", judge) if isinstance(judge, list) else []
    written = metrics if metrics.exists() else model
    return RunSummary(
        name=name,
        state=state,
        step=step,
        steps=steps,
        best=_best(rows),
        judge=", ".join(map(str, names)).replace("gavel/", "") or "–",
        age=time.time() - written.stat().st_mtime,
        damage=read.damage,
    )


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
    settings, rounds = _settings(directory), None
    with contextlib.suppress(KeyError, TypeError):
        return int(settings["loop"]["steps"])
    with contextlib.suppress(KeyError, TypeError):
        return int(read_object(directory / "experiment.json")["imitation"]["steps"])
    with contextlib.suppress(KeyError, TypeError):
        rounds = int(settings["evolve"]["iterations"])
    if rounds is not None:
        return next((int(row["last_step"]) for row in rows if row.get("iteration") == rounds), None)
    steps = read_object(directory / "summary.json").get("steps")
    return steps if isinstance(steps, int) else None


def _settings(directory: Path) -> dict[str, Any]:
    """The run's run.toml; empty where there is none."""
    with contextlib.suppress(OSError, ValueError):
        return tomllib.loads((directory / "run.toml").read_text(encoding="utf-8"))
    return {}


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where there is none."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        content: Any = json.loads(file.read_text(encoding="utf-8"))
        return cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    return {}


def _best(rows: list[dict[str, Any]]) -> str:
    """The highest held-out success, the newest among equals; without one, wins against the base, or the highest mean
    score of a step."""
    for split, metric, label in _FIGURES:
        of_split = [row for row in rows if row["split"] == split]
        numbers = [row for row in of_split if isinstance(row.get(metric), int | float)]
        values = [(row[metric], row["step"]) for row in numbers if math.isfinite(row[metric])]
        if values:
            value, step = max(values)
            return f"{label} {value:.2f} at step {step}"
    return "–"
