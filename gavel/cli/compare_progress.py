"""How far the runs of a comparison are: counted by steps, since a run takes minutes."""

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from gavel.cli.compare_cells import Cell
from gavel.cli.follower import Follower
from gavel.reports.run_figures import read_run

_SECONDS = 2.0
"""Between two looks at the runs."""


class StepCount:
    """The finished steps of runs that other processes train, as their directories have them."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._steps = {cell.label: _finished_steps(cell) for cell in cells}
        self._cells = [cell for cell in cells if not cell.finished()]
        self.left = sum(cell.config.loop.steps - self._steps[cell.label] for cell in self._cells)
        """Steps that are to be trained."""
        self.last = ""
        """The run that finished a step last, and the step."""

    def look(self) -> int:
        """Steps that were finished since the last look."""
        new = 0
        for cell in self._cells:
            steps, before = _finished_steps(cell), self._steps[cell.label]
            if steps > before:
                self._steps[cell.label], self.last = steps, f"{cell.label}: step {steps} of {cell.config.loop.steps}"
                new += steps - before
        self._cells = [cell for cell in self._cells if self._steps[cell.label] < cell.config.loop.steps]
        return new

    @contextmanager
    def shown(self, follower: Follower) -> Generator[None]:
        """Around the training in this event loop: `follower` is told of each step."""
        if not self.left:
            yield
            return
        with follower.waiting("training", self.left, "steps", lambda: self.last) as advance:
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


def _finished_steps(cell: Cell) -> int:
    if not (cell.directory / "model.json").is_file():
        return 0
    return max((int(row["step"]) for row in read_run(cell.directory).rows if row["split"] == "train"), default=0)
