"""The progress of a training run: one live line in a terminal, else one plain line a step and the heartbeat's words."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import fmean

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from gavel.cli.heartbeat import waiting_for
from gavel.cli.terminal import LiveText, plain
from gavel.judge.judge import Judge
from gavel.reports.demo_page import duration
from gavel.trainer.loop.evaluation import Evaluation
from gavel.trainer.loop.judge_alarms import JudgeAlarm
from gavel.trainer.loop.judged_wins import BASE, WINS
from gavel.trainer.loop.train_loop import EVALUATING, Observer, StepReport

_WIDTH = 80
"""Characters of a line where there is no terminal; figures that do not fit are left out, the least important first."""
_RECENT = 5
"""Steps whose mean time tells how long the others will take."""


class RunDisplay(Observer):
    """Follows a training loop on `console`."""

    def __init__(
        self,
        console: Console,
        steps: int,
        start: int = 0,
        first_success: float | None = None,
        on_start: Callable[[], None] | None = None,
        judge: Judge | None = None,
        on_point: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_start` is called once, when the loop begins its first piece of work; `on_point` after each evaluation.
        `judge`: whose cost is shown."""
        self._console = console
        self._steps = steps
        self._step = start
        self._first = self._latest = first_success
        self._score: float | None = None
        self._wins: float | None = None
        self._seconds = {"rollouts": 0.0, "judge": 0.0, "learning": 0.0}
        self._doing = "starting"
        self._done: tuple[int, int] | None = None
        self._began = time.monotonic()
        self._of_steps: list[float] = []
        self._untold = False
        self._judge = judge
        self._on_start = on_start
        self._on_point = on_point
        self._progress = Progress(
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=24),
            *([LiveText(lambda: judge.status)] if judge is not None and judge.asks_servers else []),
            LiveText(lambda: "   ".join(self._figures(live=True))),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("", total=steps, completed=start)

    @contextmanager
    def shown(self) -> Iterator[None]:
        if not self._console.is_terminal:
            try:
                with waiting_for(lambda: f"step {self._step}/{self._steps}: {self._work()}"):
                    yield
            finally:
                self._tell()
            return
        with self._progress:
            yield

    def doing(self, what: str) -> None:
        if self._on_start is not None:
            self._on_start()
            self._on_start = None
        if what != EVALUATING:  # whose line has the step's figures too
            self._tell()
        self._doing, self._done, self._began = what, None, time.monotonic()
        self._refresh()

    def advanced(self, done: int, total: int) -> None:
        self._done = done, total
        self._refresh()

    def stepped(self, report: StepReport) -> None:
        self._step = report.result.step
        self._score = report.result.metrics.get("judge_score")
        self._seconds["rollouts"] += report.rollout
        self._seconds["judge"] += report.judge
        self._seconds["learning"] += report.train
        self._of_steps.append(report.whole)
        self._untold = True
        if not report.result.trained:
            line = f"step {self._step}: {report.result.reason}"
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)
        self._refresh()

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        self._on_point()
        self._wins = evaluation.measures.get(f"{WINS}{BASE}", self._wins)
        self._untold = True
        self._latest = evaluation.success
        if self._first is None:
            self._first = evaluation.success
        self._step = step
        self._tell()
        self._refresh()

    def alarmed(self, step: int, alarm: JudgeAlarm) -> None:
        line = f"warning: step {step}: {alarm.sentence}. {alarm.advice}"
        self._console.print(plain(line, "yellow"), soft_wrap=True)

    def _tell(self) -> None:
        """Prints the step's line where there is no live one, once."""
        if not self._untold or self._console.is_terminal:
            return
        self._untold = False
        line = f"step {self._step}/{self._steps}"
        for part in self._figures():
            if len(line) + 2 + len(part) <= _WIDTH:
                line += f"  {part}"
        self._console.print(plain(line), soft_wrap=True)

    def _refresh(self) -> None:
        self._progress.update(self._task, completed=self._step)

    def _figures(self, *, live: bool = False) -> list[str]:
        """What matters most first: a narrow terminal cuts the end off."""
        parts: list[str] = []
        if self._latest is not None and self._first is not None:
            parts.append(f"held-out success {self._first:.2f} → {self._latest:.2f}")
        if self._wins is not None:
            parts.append(f"wins over the base {self._wins:.0%}")
        if self._score is not None:
            parts.append(f"score {self._score:.2f}")
        if live:
            parts.append(self._work())
        if self._of_steps and self._step < self._steps:
            left = fmean(self._of_steps[-_RECENT:]) * (self._steps - self._step)
            parts.append(f"{duration(left)} left" if left < 120 else f"{left / 60:.0f} min left")
        if not live and self._judge is not None and self._judge.asks_servers:  # the live line has it by itself
            parts.append(str(self._judge.budget.cost))
        if any(self._seconds.values()):
            parts.append(" · ".join(f"{seconds:.0f} s {name}" for name, seconds in self._seconds.items()))
        return parts

    def _work(self) -> str:
        """`evaluation on held-out tasks 37/512, about 12 s left`, or `learning, for 12 s`"""
        elapsed = time.monotonic() - self._began
        if self._done is None:
            return f"{self._doing}, for {duration(elapsed)}"
        done, total = self._done
        left = f", about {duration(elapsed / done * (total - done))} left" if 0 < done < total else ""
        return f"{self._doing} {done}/{total}{left}"
