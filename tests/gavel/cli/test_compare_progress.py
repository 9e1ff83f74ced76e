"""A comparison's wait is counted by the steps of its runs, those of an earlier call left out."""

import asyncio
import json
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gavel.cli import compare_progress
from gavel.cli.compare_cells import Cell, cell_of
from gavel.cli.compare_progress import StepCount
from gavel.cli.compare_session import settings_of

STEPS = settings_of("returns_desk").loop.steps


class Heard:
    """A follower that takes note of the total and of what the status was at each part."""

    def __init__(self) -> None:
        self.total = 0
        self.parts: list[str] = []
        self.two = asyncio.Event()

    @contextmanager
    def waiting(
        self,
        what: str,
        total: int,
        unit: str,
        status: Callable[[], str] = lambda: "",
        left: Callable[[], float | None] | None = None,
    ) -> Generator[Callable[[], None]]:
        self.total = total
        yield lambda: self._note(status())

    def _note(self, part: str) -> None:
        self.parts.append(part)
        if len(self.parts) == 2:
            self.two.set()


def cell(root: Path, seed: int, steps: int, *, evaluated: bool = False) -> Cell:
    made = cell_of(settings_of("returns_desk"), "returns_desk", root, "judge", seed)
    train(made, range(1, steps + 1))
    if evaluated:
        append(made, [{"step": STEPS, "split": "held_out"}])
    return made


def train(cell: Cell, steps: range) -> None:
    append(cell, [{"step": step, "split": split} for step in steps for split in ("train", "times")])


def append(cell: Cell, rows: list[dict[str, object]]) -> None:
    cell.directory.mkdir(parents=True, exist_ok=True)
    (cell.directory / "model.json").write_text("{}")
    with (cell.directory / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


async def test_each_step_is_told_once_and_those_from_before_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_progress, "_SECONDS", 0.01)
    finished, begun = cell(tmp_path, 0, STEPS, evaluated=True), cell(tmp_path, 1, 3)
    new = cell_of(settings_of("returns_desk"), "returns_desk", tmp_path, "judge", 2)
    steps, heard = StepCount([finished, begun, new], 2), Heard()
    with steps.shown(heard):
        train(begun, range(4, 6))
        await heard.two.wait()
        train(begun, range(6, STEPS + 1))
        train(new, range(1, STEPS + 1))
    assert heard.total == len(heard.parts) == 2 * STEPS - 3
    assert heard.parts[0] == f"judge, seed 1: step 5 of {STEPS}"
    assert heard.parts[-1] == f"judge, seed 2: step {STEPS} of {STEPS}"


async def test_nothing_is_shown_where_every_run_is_finished(tmp_path: Path) -> None:
    heard = Heard()
    with StepCount([cell(tmp_path, 0, STEPS, evaluated=True)], 2).shown(heard):
        pass
    assert (heard.total, heard.parts) == (0, [])


def begin(cell: Cell, at: float) -> None:
    """As `run_cells` starts its process."""
    cell.file.parent.mkdir(parents=True, exist_ok=True)
    cell.file.touch()
    os.utime(cell.file, (at, at))


def timed(cell: Cell, step: int, at: float, whole: float) -> None:
    append(cell, [{"step": step, "split": "train"}, {"step": step, "split": "times", "time": at, "whole": whole}])


def test_the_start_of_a_run_counts_only_for_runs_that_have_not_begun(tmp_path: Path) -> None:
    first, second, third = (cell(tmp_path, seed, 0) for seed in range(3))
    steps = StepCount([first, second, third], 2)
    assert steps.seconds_left() is None
    begin(first, 1000.0)
    append(first, [{"step": 0, "split": "times", "time": 1060.0, "whole": 20.0}])  # the evaluation before training
    steps.look()
    assert steps.seconds_left() is None
    timed(first, 1, 1070.0, 10.0)
    steps.look()
    assert steps.seconds_left() == pytest.approx(((3 * STEPS - 1) * 10 + 2 * 60) / 2)
    begin(second, 1000.0)
    timed(second, 1, 1050.0, 10.0)
    timed(second, 2, 1080.0, 30.0)
    steps.look()
    a_step, start_up = 50 / 3, 50
    assert steps.seconds_left() == pytest.approx(((3 * STEPS - 3) * a_step + start_up) / 2)


def test_the_last_run_alone_takes_its_own_time(tmp_path: Path) -> None:
    first, second = cell(tmp_path, 0, STEPS - 1), cell(tmp_path, 1, 0)
    steps = StepCount([first, second], 8)
    begin(second, 1000.0)
    timed(second, 1, 1012.0, 5.0)
    steps.look()
    assert steps.seconds_left() == pytest.approx((STEPS - 1) * 5)
    timed(first, STEPS, 1020.0, 5.0)
    for step in range(2, STEPS + 1):
        timed(second, step, 1012.0 + 5 * (step - 1), 5.0)
    steps.look()
    assert steps.seconds_left() == 0


def test_rows_without_seconds_give_no_estimate(tmp_path: Path) -> None:
    begun = cell(tmp_path, 0, 0)
    steps = StepCount([begun], 1)
    train(begun, range(1, 3))
    assert steps.look() == 2
    assert steps.seconds_left() is None
