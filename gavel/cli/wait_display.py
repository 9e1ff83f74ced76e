"""Counts and the time left of a long wait: a live line in a terminal, else the heartbeat's, and a line at the end."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from gavel.cli.heartbeat import waiting_for
from gavel.cli.terminal import LiveText, plain
from gavel.reports.demo_page import duration

Advance = Callable[[], None]


class WaitDisplay:
    """Shows one wait after another on `console`."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def waiting(
        self,
        what: str,
        total: int,
        unit: str,
        status: Callable[[], str] = lambda: "",
        left: Callable[[], float | None] | None = None,
    ) -> Generator[Advance, None, None]:
        """Around work in `total` parts, each of which calls what this gives.

        `status` and `left`, the seconds that the rest takes, are read whenever they are shown.
        """
        started = time.monotonic()
        done = 0

        def by_parts() -> float | None:
            return (time.monotonic() - started) / done * (total - done) if done else None

        def line() -> str:
            seconds = (left or by_parts)() if 0 < done < total else None
            rest = "" if seconds is None else f"about {duration(seconds)} left"
            return " · ".join(filter(None, (rest, status())))

        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.completed:.0f}/{task.total:.0f} " + unit),
            LiveText(line),
            console=self._console,
            transient=True,
        )
        task = bar.add_task(what, total=total)

        def advance() -> None:
            nonlocal done
            done += 1
            bar.update(task, advance=1)

        def heard() -> str:
            rest = line() or f"for {duration(time.monotonic() - started)}"
            return plain(f"{what}: {done}/{total} {unit} · {rest}").plain

        with bar if self._console.is_terminal else waiting_for(heard):
            yield advance
        took = duration(time.monotonic() - started)
        parts = (f"{what}: {done}/{total} {unit} in {took}", status())
        self._console.print(plain(" · ".join(filter(None, parts))), soft_wrap=True)
