"""The runs of a comparison: one `gavel train` process for each reward and seed, a few at a time.

A cell is finished when its last evaluation is on disk, and is then not run again; one that was killed goes on after its
last finished step. A process ends with the one that started it.
"""

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gavel.base.errors import GavelError, first_error
from gavel.cli.run_file import to_toml
from gavel.cli.run_paths import paths_seen_from
from gavel.reports.run_figures import read_run
from gavel.trainer.run_config import RunConfig
from gavel.trainer.runs.run_directory import run_path

_GRACE = 60.0
"""Seconds that an interrupted run has to finish its step."""
_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux's prctl."""
_TAIL = 6


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a comparison."""

    arm: str
    seed: int
    config: RunConfig
    directory: Path

    @property
    def label(self) -> str:
        return f"{self.arm}, seed {self.seed}"

    @property
    def file(self) -> Path:
        """The run.toml that it is started with."""
        return self.directory.parent / "cells" / f"{self.directory.name}.toml"

    def toml(self) -> str:
        """All settings, those that follow from others too: `gavel train` takes each as given."""
        config = paths_seen_from(self.config.resolved(), self.file.parent)
        return to_toml(config, config)

    def check_settings(self) -> None:
        """Raises `GavelError` for a finished run that had other settings: its figures are not comparable."""
        if self.finished() and (not self.file.is_file() or self.file.read_text(encoding="utf-8") != self.toml()):
            raise GavelError(
                f"the finished run {self.directory} had other settings than these.",
                f"Compare with those ({self.file}), delete it, or choose another place: GAVEL_RUNS=…",
            )

    def check_evaluated(self) -> None:
        """Raises `GavelError` for a run that ended without what it is compared by."""
        if not self.finished():
            raise GavelError(
                f"the run {self.label} ended without a last evaluation on held-out tasks.",
                "Rewards are compared by success on held-out tasks: give the scenario tasks of the split held_out, and "
                "a success.",
            )

    def finished(self) -> bool:
        if not (self.directory / "model.json").is_file():
            return False
        steps = self.config.loop.steps
        splits = {row["split"] for row in read_run(self.directory).rows if row["step"] == steps}
        return {"train", "held_out"} <= splits


Train = Callable[[Cell, Path], Awaitable[None]]
"""Trains a cell to its end, below a root of runs."""


def slug(text: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", text).strip("-").lower()


def cell_of(base: RunConfig, project: str, root: Path, arm: str, seed: int) -> Cell:
    """The cell of an arm, whose reward and judge `base` has already, for one seed.

    Its name has the number of steps, because the learning rate's schedule depends on it.
    """
    name = f"{slug(arm)}-{base.loop.steps}-steps-seed-{seed}"
    loop = base.loop.model_copy(update={"seed": seed})
    config = base.model_copy(update={"model": base.model.model_copy(update={"name": name}), "loop": loop})
    return Cell(arm, seed, config, run_path(root, project, name))


async def run_cells(
    cells: Sequence[Cell],
    root: Path,
    *,
    parallel: int,
    done: Callable[[Cell, bool], None] = lambda cell, ran: None,
    train: Train | None = None,
) -> None:
    """Runs what is not finished, at most `parallel` at a time: by `train`, else each in a process of one thread.

    `done(cell, ran)` is called for each. Raises `GavelError` with the end of its log when one fails; the others are
    then stopped after their step.
    """
    for cell in cells:
        cell.check_settings()
    limiter = asyncio.Semaphore(parallel)

    async def run(cell: Cell) -> None:
        async with limiter:
            ran = not cell.finished()
            if ran:
                cell.file.parent.mkdir(parents=True, exist_ok=True)
                cell.file.write_text(cell.toml(), encoding="utf-8")
                await (train or _train)(cell, root)
                cell.check_evaluated()
            done(cell, ran)

    with first_error():
        async with asyncio.TaskGroup() as tasks:
            for cell in cells:
                tasks.create_task(run(cell))


async def _train(cell: Cell, root: Path) -> None:
    file, log = cell.file, cell.file.with_suffix(".log")
    environment = {**os.environ, "GAVEL_RUNS": str(root), "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gavel", "train", str(file)),
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C reaches it once, from here
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
        try:
            status = await process.wait()
        finally:
            await _stop(process)
    if status:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-_TAIL:]
        raise GavelError(
            f"the run {cell.label} ended with status {status}: " + " ".join(line.strip() for line in lines),
            f"Mend it, and run the same command again: it goes on. Its whole log: {log}",
        )


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    try:
        async with asyncio.timeout(_GRACE):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGTERM)
