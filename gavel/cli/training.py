"""Shared by the commands that train: a run's model, directory and backend, its progress, estimate and last words.

Torch is imported when a backend is opened.
"""

import asyncio
import contextlib
import ctypes
import json
import logging
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from gavel.base.errors import GavelError
from gavel.base.extras import missing_parts
from gavel.base.files import write_atomically
from gavel.base.text import counted, duration
from gavel.cli.named import remote_backend
from gavel.cli.options import close_replies
from gavel.cli.run_file import Run, paths_seen_from, to_toml
from gavel.cli.terminal import TRAINER, Work, print_warning, say, show_line, waiting_for
from gavel.judge.errors import JudgeError
from gavel.judge.estimate import estimate_run
from gavel.judge.judge import Judge
from gavel.llm.errors import MissingKeyError
from gavel.reports.run_outcome import outcome_in_words
from gavel.reports.run_page import write_run_report
from gavel.scenarios.mixture import Mixture
from gavel.scenarios.scenario import Scenario
from gavel.trainer.config import LoopConfig
from gavel.trainer.embedded import EMBEDDED
from gavel.trainer.loop.evaluation import BASE, EVALUATING, WINS, Evaluation, most_comparisons
from gavel.trainer.loop.experiment import describe_run
from gavel.trainer.loop.judge_alarms import JudgeAlarm
from gavel.trainer.loop.train_loop import Observer, StepReport
from gavel.trainer.model import TrainableModel
from gavel.trainer.model_spec import describe_model
from gavel.trainer.run_config import BackendConfig, EvolveRunConfig, ImitationConfig, RunConfig
from gavel.trainer.runs.fresh_run import ReplacedRun, replacing_run
from gavel.trainer.runs.run_directory import (
    PULLED,
    RunDirectory,
    RunDirectoryError,
    check_description,
    run_path,
    runs_root,
)

if TYPE_CHECKING:
    from gavel.trainer.backends.local import LocalBackend
    from gavel.trainer.backends.remote.client import RemoteBackend


def trainable(config: RunConfig | EvolveRunConfig | ImitationConfig, project: str) -> TrainableModel:
    """The model of a run; the project of one that plays is the scenario's name."""
    settings: dict[str, Any] = {**dict(config.model), "name": config.model.name or config.model.base_model}
    return TrainableModel(**settings, project=project)


def run_directory_of(model: TrainableModel) -> Path:
    return run_path(runs_root(), model.project, model.name)


async def open_backend(
    config: RunConfig | EvolveRunConfig | ImitationConfig, path: str | None = None
) -> "LocalBackend | RemoteBackend":
    """The backend that trains or samples, to be closed by the caller; `path`: where one on this machine keeps runs."""
    if config.backend.url is not None:
        return await remote_backend(config.backend.url)
    staleness = config.loop.max_staleness if isinstance(config, RunConfig) else 0
    return local_backend(config.backend, path, versions=staleness + 1 + config.backend.earlier_policies)


def local_backend(settings: BackendConfig, path: str | Path | None = None, **more: Any) -> "LocalBackend":
    """The backend of this machine with these settings, and `more` arguments of `LocalBackend`."""
    with waiting_for(TRAINER):
        from gavel.trainer.backends.local import LocalBackend
    names = ("engine", "slots", "max_context", "max_reply", "shard_base", "tracker")
    return LocalBackend(path, **{name: getattr(settings, name) for name in names}, **more)


@dataclass(slots=True)
class OpenRun:
    """A run whose model is registered, with what is told of it when it has ended."""

    console: Console
    model: TrainableModel
    backend: "LocalBackend | RemoteBackend"
    judge: Judge | None
    there: str | None
    """Address of the backend; None = this machine."""
    start: int
    """Steps that an earlier process has made."""
    report: "LiveReport"
    replaced: ReplacedRun | None
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Rows of the metrics log, at the end."""
    page: Path | None = None
    """The report, at the end."""

    def begun(self, config: Run | None = None, given: Run | None = None) -> None:
        """Deletes what this run replaces, and writes the configuration that it has, made from `given`, as run.toml."""
        if config is not None and self.there is None:
            file = run_directory_of(self.model) / "run.toml"
            write_atomically(file, to_toml(paths_seen_from(config, file.parent), given))
        if self.replaced is not None:
            self.replaced.delete()

    def say_outcome(self, **about: Any) -> None:
        """Prints the run's outcome, before tables and paths: see `outcome_in_words`."""
        for line in outcome_in_words(self.rows, **about):
            say(self.console, line)

    def say_end(self) -> None:
        """Prints how much was replayed, and the paths of report and run."""
        if self.judge is not None:
            close_replies(self.console, self.judge)
        if self.page is not None:
            say(self.console, f"Report: {self.page}")
        named = f"{self.model.project}/{self.model.name} at {self.there}"
        say(self.console, f"Run: {run_directory_of(self.model) if self.there is None else named}")


@contextlib.asynccontextmanager
async def open_run(
    console: Console,
    model: TrainableModel,
    config: RunConfig | EvolveRunConfig | ImitationConfig,
    judge: Judge | None = None,
    *,
    fresh: bool = False,
    backend: "contextlib.AbstractAsyncContextManager[LocalBackend | RemoteBackend] | None" = None,
) -> AsyncGenerator[OpenRun]:
    """Registers the model at the `backend` (default: that of `config`). Around the work; after it the judge's cost is
    told, and the report is written before the backend closes, which shows it at the tracker.

    `fresh`: moves an earlier run of this name aside until `begun`.
    """
    leads, there = os.environ.get("RANK", "0") == "0", config.backend.url
    check_fresh_is_here(config.backend, fresh)
    backend = backend or await open_backend(config)
    async with contextlib.AsyncExitStack() as stack:
        replaced = None
        if fresh and leads:
            replaced = stack.enter_context(replacing_run(runs_root(), model.project, model.name))
            if replaced.foreign:
                names = ", ".join(path.name for path in replaced.foreign)
                say(console, f"Left in {run_directory_of(model)}, because Gavel did not write it: {names}")
        with waiting_for(f"loading {model.base_model}"):
            opened = await stack.enter_async_context(backend)
            await model.register(opened)
        report = LiveReport(run_directory_of(model) if there is None and leads else None)
        run = OpenRun(console, model, opened, judge, there, await model.get_step(), report, replaced)
        try:
            yield run
        finally:
            if judge is not None and judge.asks_servers:
                say(console, f"Judge: {counted(judge.budget.calls, 'call')}, {judge.budget.cost}")
        run.rows = opened.history(model)
        run.page = report.write()


def check_fresh_is_here(backend: BackendConfig, fresh: bool) -> None:
    """Raises `RunDirectoryError` for `--fresh` of a run on another machine."""
    if fresh and backend.url is not None:
        raise RunDirectoryError(
            f"--fresh deletes no run on another machine ({backend.url})", "Give the new run another --name."
        )


@contextlib.asynccontextmanager
async def run_gavel(*arguments: str, **options: Any) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A process of the `gavel` command that ends with this block, or with this process.

    `options` in capitals are environment variables, others those of `subprocess`.
    """
    variables = {name: value for name, value in options.items() if name.isupper()}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gavel", *arguments),
        env={**os.environ, **variables},
        stdin=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches it once, from here
        preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        **{name: value for name, value in options.items() if name not in variables},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _GRACE)
        if process.returncode is None:
            process.kill()
            await process.wait()


_GRACE = 60.0
"""Seconds that an interrupted process has to finish its step."""
_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux's prctl."""


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGTERM)


_SHARE = 50

logger = logging.getLogger(__name__)


class LiveReport:
    """The report.html of one run directory; None = another process or machine writes it. A page that cannot be written
    is warned of, and the run goes on."""

    def __init__(self, directory: Path | None) -> None:
        self._directory, self._due = directory, 0.0

    def write_if_due(self) -> None:
        """Writes the page unless the time since the last one is short beside what that one took."""
        if time.monotonic() >= self._due:
            self.write()

    def write(self) -> Path | None:
        """Writes the page; None where that failed."""
        started, page = time.monotonic(), None
        try:
            page = write_run_report(self._directory) if self._directory is not None else None
        except GavelError as error:
            logger.warning("the report of %s was not written: %s", self._directory, error)
        self._due = time.monotonic() + _SHARE * (time.monotonic() - started)
        return page


_WIDTH = 80
"""Characters of a line where there is no terminal; figures that do not fit are left out, the least important first."""
_RECENT = 5
"""Steps whose mean time tells how long the others will take."""


class RunDisplay(Work, Observer):
    """Follows a training loop on `console`: a live line in a terminal, else a line for each step."""

    def __init__(
        self,
        console: Console,
        steps: int,
        start: int = 0,
        first_success: float | None = None,
        on_start: Callable[[], None] = lambda: None,
        judge: Judge | None = None,
        report: LiveReport | None = None,
    ) -> None:
        """`on_start` is called when the loop begins its first piece of work."""
        super().__init__()
        self._console, self._steps, self._step = console, steps, start
        self._first = self._latest = first_success
        self._score: float | None = None
        self._wins: float | None = None
        self._seconds: dict[str, float] = {}
        self._of_steps: list[float] = []
        self._untold = False
        self._rollouts, self._failures = 0, list[str]()
        self._judge = judge if judge is not None and judge.asks_servers else None
        self._on_start, self._report = on_start, report

    @contextmanager
    def shown(self) -> Iterator[None]:
        def line() -> str:
            status = self._judge.status if self._judge is not None else ""
            figures = self._figures() if self._console.is_terminal else []
            return "   ".join(filter(None, (f"step {self._step}/{self._steps}: {self.words}", status, *figures)))

        try:
            with show_line(self._console, line):
                yield
        finally:
            self._tell()
            if self._failures:
                failed = f"{len(self._failures):,} of {counted(self._rollouts, 'rollout')} failed"
                say(self._console, f"{failed}; the first: {self._failures[0]}", "yellow")

    def doing(self, what: str, total: int = 0) -> None:
        self._on_start()
        self._on_start = lambda: None
        if what != EVALUATING:  # whose line has the step's figures too
            self._tell()
        super().doing(what)

    def stepped(self, report: StepReport) -> None:
        self._score = report.result.metrics.get("judge_score")
        for name, seconds in (("rollouts", report.rollout), ("judge", report.judge), ("learning", report.train)):
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        self._of_steps.append(report.whole)
        members = [member for group in report.groups for member in group]
        self._rollouts += len(members)
        self._failures += [str(member.status_reason) for member in members if member.status == "failed"]
        self._step, self._untold = report.result.step, True
        if not report.result.trained:
            say(self._console, f"step {self._step}: {report.result.reason}")

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        if self._report is not None:
            self._report.write_if_due()
        self._wins = evaluation.measures.get(f"{WINS}{BASE}", self._wins)
        self._latest = evaluation.success
        self._first = evaluation.success if self._first is None else self._first
        self._step, self._untold = step, True
        self._tell()

    def alarmed(self, step: int, alarm: JudgeAlarm) -> None:
        say(self._console, f"warning: step {step}: {alarm.sentence}. {alarm.advice}", "yellow")

    def _tell(self) -> None:
        """Prints the step's line where there is no live one, once."""
        if not self._untold or self._console.is_terminal:
            return
        self._untold = False
        line = f"step {self._step}/{self._steps}"
        for part in self._figures():
            if len(line) + 2 + len(part) <= _WIDTH:
                line += f"  {part}"
        say(self._console, line)

    def _figures(self) -> list[str]:
        """The figures, the most important first: a narrow terminal cuts off the end."""
        parts: list[str] = []
        if self._latest is not None and self._first is not None:
            parts.append(f"held-out success {self._first:.2f} → {self._latest:.2f}")
        if self._wins is not None:
            parts.append(f"wins over the base {self._wins:.0%}")
        if self._score is not None:
            parts.append(f"score {self._score:.2f}")
        if self._of_steps and self._step < self._steps:
            left = fmean(self._of_steps[-_RECENT:]) * (self._steps - self._step)
            parts.append(f"{duration(left)} left" if left < 120 else f"{left / 60:.0f} min left")
        if self._judge is not None and not self._console.is_terminal:  # whose live line has it
            parts.append(str(self._judge.budget.cost))
        if any(self._seconds.values()):
            parts.append(" · ".join(f"{seconds:.0f} s {name}" for name, seconds in self._seconds.items()))
        return parts


_ASSUMED_CONTEXT = 4096
"""Tokens that are assumed where nobody knows better."""


def with_tasks_there_are(loop: LoopConfig, scenario: "Scenario | Mixture") -> tuple[LoopConfig, str]:
    """The loop with the groups that a step really has, and a sentence that says so where they are fewer than asked for:
    a step plays no task of a scenario twice."""
    groups = len(Mixture.of(scenario).plan(loop.tasks_per_step, seed=loop.seed, step=0))
    if groups == loop.tasks_per_step:
        return loop, ""
    told = f"A step has {counted(groups, 'group')}, not {loop.tasks_per_step}: the scenario has no more train tasks."
    return loop.model_copy(update={"tasks_per_step": groups}), told


async def print_run_estimates(
    estimates: Sequence[tuple[str, Judge | None, LoopConfig, int]],
    scenario: "Scenario | Mixture | None",
    member_tokens: dict[str, int],
    note: str = "",
) -> None:
    """Prints calls, tokens and dollars: for each name, those of its judge in so many runs of its loop. Asks nothing.

    `scenario`: whose held-out attempts are compared with the base's; None if none are. `member_tokens`: lengths to
    assume, by label. `note`: stands below. Raises `JudgeError` before anything is printed;
    for a key that is not set, which the estimate does not need, after it.
    """
    judges, missing_key = [judge for _, judge, _, _ in estimates if judge is not None], None
    for judge in judges:
        try:
            judge.check()
        except JudgeError as error:
            if not isinstance(error.__cause__, MissingKeyError):
                raise
            missing_key = missing_key or error
    for name, judge, loop, runs in estimates:
        if name:
            typer.echo(name)
        if judge is None:
            typer.echo("The reward gives the judge no weight: it is not asked.")
            continue
        groups = runs * loop.steps * loop.tasks_per_step
        steps = f"{counted(loop.steps, 'step')} of " if loop.steps > 1 else ""
        typer.echo(f"{steps}{counted(loop.tasks_per_step, 'group')} of {loop.group_size}. Nothing was asked.")
        for label, tokens in member_tokens.items():
            estimate = await estimate_run(judge, groups, loop.group_size, tokens)
            typer.echo(f"{label} ({counted(tokens, 'token')} each): {estimate.words}")
        if scenario is not None and (comparisons := runs * most_comparisons(Mixture.of(scenario), loop)):
            estimate = await estimate_run(judge, comparisons, 2, max(member_tokens.values()))
            typer.echo(f"At most, to compare held-out attempts with the base's, on top: {estimate.words}")
        if loop.refill:
            further = runs * loop.steps * math.floor(loop.refill * loop.tasks_per_step)
            typer.echo(f"At most {counted(further, 'further group')} in place of those without a signal come on top.")
    if note:
        typer.echo(note)
    if judges:
        free = "groups of identical rollouts, and replies on a cassette, cost nothing"
        typer.echo(f"Repeated calls come on top; {free}.")
    if missing_key is not None:
        raise missing_key


def check_run(config: RunConfig, scenario: "Scenario | Mixture", root: Path, *, fresh: bool = False) -> None:
    """Raises `GavelError` where the run would not begin: base model, starting checkpoint, directory below `root`.

    Asks the hub for a model that is not here. Leaves nothing behind.
    """
    check_fresh_is_here(config.backend, fresh)
    if config.backend.url is not None:
        return
    directory = RunDirectory(root, scenario.name, config.model.name or config.model.base_model, config.backend.tracker)
    try:
        if missing_parts("train"):
            typer.echo("Base model and starting checkpoint were not looked for: that needs the extra train.", err=True)
            return
        model = trainable(config, scenario.name)
        if model.base_model not in EMBEDDED:  # which are a part of Gavel; for others torch is loaded
            from gavel.trainer.policy.policy import check_exists, load_config, source_of

            (load_config if Path(source_of(model.base_model)).is_dir() else check_exists)(model.base_model)
        if not fresh:
            directory.check(describe_model(model))
        if model.from_checkpoint is not None:
            from gavel.trainer.backends.run_start import RunStart

            RunStart(model, directory, fresh=fresh)
    finally:
        shutil.rmtree(directory.path / PULLED, ignore_errors=True)
        directory.close()
        directory.discard_if_new()


def check_begun(config: RunConfig, scenario: "Scenario | Mixture", judge: Judge | None, directory: Path) -> None:
    """Raises `RunDirectoryError` where the run in `directory` was begun as another experiment, or on another base."""
    check_description(directory, {"base_model": config.model.base_model}, "model.json")
    check_description(directory, describe_run(Mixture.of(scenario), judge, config.loop, config.train))


def read_seen_lengths(scenario: "Scenario | Mixture", max_context: int | None) -> dict[str, int]:
    """Lengths of a rollout to assume, by label; of several scenarios, those of the longest."""
    try:
        seen = [json.loads(lengths_file(each).read_text(encoding="utf-8")) for each in Mixture.of(scenario)]
        longest = max(seen, key=lambda each: each["tokens"])
        if max_context is not None and longest["tokens"] > max_context:
            took = f"an episode of `gavel check` took {longest['tokens']:,} tokens"
            print_warning(f"{took}, more than --max-context {max_context:,}: such episodes are cut.")
        return {f"As long as the episodes of `gavel check`, played by {longest['players']}": int(longest["tokens"])}
    except (OSError, ValueError, KeyError, TypeError):  # it was not run here, or another program wrote the file
        longest = max_context or _ASSUMED_CONTEXT
        label = "At most, every rollout at --max-context" if max_context else "With long rollouts; longer ones may fit"
        return {label: longest, "At an eighth of that (`gavel check` tells how long they are)": max(longest // 8, 1)}


def lengths_file(scenario: "Scenario | Mixture") -> Path:
    """The file that keeps how long the longest episode of `gavel check` was, and who played it."""
    return run_path(runs_root(), scenario.name, "x").parent / "check.json"
