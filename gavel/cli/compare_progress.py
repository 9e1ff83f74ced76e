"""How far the runs of a comparison are: counted by steps, since a run takes minutes.

The time left follows from what the runs record: the seconds of a step, evaluations between steps included, and those
from the start of a run's process to its first step, which only the runs that have not begun have still to come.
"""

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from gavel.cli.compare_cells import Cell
from gavel.cli.follower import Follower
from gavel.reports.run_figures import read_run

_SECONDS = 2.0
"""Between two looks at the runs."""


@dataclass(frozen=True, slots=True)
class _Pace:
    """Of the steps that a run made under this command."""

    steps: int
    seconds: float
    start_up: float
    """Seconds from the start of its process to its first step."""


class StepCount:
    """The finished steps of runs that other processes train, as their directories have them."""

    def __init__(self, cells: Sequence[Cell], at_once: int) -> None:
        """`at_once`: runs that train at the same time, at most."""
        self._before = {cell.label: _finished_steps(_rows(cell)) for cell in cells}
        self._steps = dict(self._before)
        self._cells = [cell for cell in cells if not cell.finished()]
        self._paces: dict[str, _Pace] = {}
        self._at_once = at_once
        self.left = sum(cell.config.loop.steps - self._steps[cell.label] for cell in self._cells)
        """Steps that are to be trained."""
        self.last = ""
        """The run that finished a step last, and the step."""

    def look(self) -> int:
        """Steps that were finished since the last look."""
        new = 0
        for cell in self._cells:
            rows = _rows(cell)
            steps, before = _finished_steps(rows), self._steps[cell.label]
            if steps > before:
                self._steps[cell.label], self.last = steps, f"{cell.label}: step {steps} of {cell.config.loop.steps}"
                new += steps - before
            if (pace := _pace(cell, rows, self._before[cell.label])) is not None:
                self._paces[cell.label] = pace
        self._cells = [cell for cell in self._cells if self._steps[cell.label] < cell.config.loop.steps]
        return new

    def seconds_left(self) -> float | None:
        """Of the steps to come, at the pace of those so far; None before the first."""
        if not self._paces:
            return None
        paces = self._paces.values()
        a_step = sum(pace.seconds for pace in paces) / sum(pace.steps for pace in paces)
        start_up = fmean(pace.start_up for pace in paces)
        of_runs = [
            (cell.config.loop.steps - self._steps[cell.label]) * a_step + (0 if cell.label in self._paces else start_up)
            for cell in self._cells
        ]
        if not of_runs:
            return 0.0
        return max(sum(of_runs) / min(self._at_once, len(of_runs)), *of_runs)

    @contextmanager
    def shown(self, follower: Follower) -> Generator[None]:
        """Around the training in this event loop: `follower` is told of each step."""
        if not self.left:
            yield
            return
        with follower.waiting("training", self.left, "steps", lambda: self.last, self.seconds_left) as advance:
            following = asyncio.create_task(self._follow(advance))
            try:
                yield
            finally:
                following.cancel()
                self._advance(advance)

    async def _follow(self, advance: Callable[[], None]) -> None:
        while True:
            self._advance(advance)
            await asyncio.sleep(_SECONDS)

    def _advance(self, advance: Callable[[], None]) -> None:
        for _ in range(self.look()):
            advance()


def _rows(cell: Cell) -> Sequence[Mapping[str, Any]]:
    return read_run(cell.directory).rows if (cell.directory / "model.json").is_file() else []


def _finished_steps(rows: Sequence[Mapping[str, Any]]) -> int:
    return max((int(row["step"]) for row in rows if row["split"] == "train"), default=0)


def _pace(cell: Cell, rows: Sequence[Mapping[str, Any]], before: int) -> _Pace | None:
    """Of the steps after `before`; None where there is none yet whose seconds are recorded."""
    timed = [row for row in rows if row["split"] == "times" and row["step"] > before]
    match timed:
        case [{"step": int(first), "time": float(ended), "whole": float(took)}, *_]:
            began = ended - took
        case _:
            return None
    match timed[-1]:
        case {"step": int(last), "time": float(ended)}:
            started = cell.file.stat().st_mtime if cell.file.is_file() else began
            return _Pace(last - first + 1, ended - began, max(began - started, 0.0))
        case _:
            return None
