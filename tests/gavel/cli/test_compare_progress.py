"""A comparison's wait is counted by the steps of its runs, those of an earlier call left out."""

import asyncio
import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gavel.cli import compare_session
from gavel.cli.compare_session import Cell, StepCount, cell_of, settings_of

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
    monkeypatch.setattr(compare_session, "_SECONDS", 0.01)
    finished, begun = cell(tmp_path, 0, STEPS, evaluated=True), cell(tmp_path, 1, 3)
    new = cell_of(settings_of("returns_desk"), "returns_desk", tmp_path, "judge", 2)
    steps, heard = StepCount([finished, begun, new]), Heard()
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
    with StepCount([cell(tmp_path, 0, STEPS, evaluated=True)]).shown(heard):
        pass
    assert (heard.total, heard.parts) == (0, [])
