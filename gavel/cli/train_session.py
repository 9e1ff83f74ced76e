"""What `gavel train` does: a scenario, a model and a judge, connected to a backend and a display.

Imports torch; the command in `train` imports it only when it runs.
"""

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gavel.cli.cassette_option import replay_account
from gavel.cli.display import RunDisplay
from gavel.cli.live_report import LiveReport
from gavel.cli.run_file import to_toml
from gavel.cli.run_model import opened_backend, run_directory_of, trainable
from gavel.cli.run_paths import paths_seen_from
from gavel.judge.judge import Judge
from gavel.llm.counted import counted
from gavel.scenarios.mixture import Mixture
from gavel.scenarios.scenario import Scenario
from gavel.trainer.loop.train_loop import EVALUATION, train_scenario
from gavel.trainer.model import TrainableModel
from gavel.trainer.run_config import RunConfig
from gavel.trainer.runs.fresh_run import ReplacedRun, replacing_run
from gavel.trainer.runs.run_directory import RunDirectoryError, runs_root

_COUNTS = ("step", "split", "time", "trajectories", "exceptions", "failed")


async def run_training(
    config: RunConfig, scenario: Scenario | Mixture, judge: Judge | None, *, given: RunConfig, fresh: bool = False
) -> None:
    """Trains until `config.loop.steps`, continuing an earlier run, and prints a table of before and after.

    `config` is `given` with all values filled in. `judge` is None when the reward gives it no weight. With `fresh` an
    earlier run of this name is deleted once this one has begun. The run directory gets the configuration as `run.toml`.
    """
    console = Console()
    loop, model, there = config.loop, trainable(config, scenario), config.backend.url
    if fresh and there is not None:
        raise RunDirectoryError(
            f"--fresh deletes no run on another machine ({there})", "Give the new run another --name."
        )
    leader = os.environ.get("RANK", "0") == "0"
    async with contextlib.AsyncExitStack() as stack:
        replaced = stack.enter_context(starting_over(console, model)) if fresh and leader else None
        backend = await stack.enter_async_context(await opened_backend(config.backend, config))
        await model.register(backend)
        start = await model.get_step()
        rewards = ", ".join(f"{name} {weight:g}" for name, weight in loop.reward.items())
        reward = f"judge {', '.join(judge.names)}" if judge and loop.reward == {"judge": 1.0} else f"reward {rewards}"
        state = f" · continuing after step {start}" if 0 < start < loop.steps else ""
        _say(console, f"Gavel · {scenario.name} · {model.base_model} · {reward}{state}")
        _say(console, f"Endpoint: {backend.endpoint(model).limits}")
        first = next((row.get("success") for row in backend.history(model, EVALUATION) if row["step"] == 0), None)
        run_file = run_directory_of(model) / "run.toml"

        def begun() -> None:
            if there is not None:
                return
            write_whole(run_file, to_toml(paths_seen_from(config, run_file.parent), given))
            if replaced is not None:
                replaced.delete()

        report = LiveReport(run_directory_of(model)) if there is None and leader else None
        on_point = (lambda: None) if report is None else report.write_if_due
        display = RunDisplay(console, loop.steps, start, first, on_start=begun, judge=judge, on_point=on_point)
        try:
            with display.shown():
                await train_scenario(model, scenario, judge, loop, config.train, display)
        finally:
            say_cost(console, judge)
        points = backend.history(model, EVALUATION)
        page = None if report is None else report.write()  # before the backend closes, which shows it at the tracker
    if start >= loop.steps:
        _say(console, f"The run was finished after step {start}; for more, raise --steps.")
    if points:
        console.print(before_after(points[0], points[-1]))
    if judge is not None:
        close_replies(console, judge)
    if page is not None:
        _say(console, f"Report: {page}")
    _say(
        console, f"Run: {run_directory_of(model)}" if there is None else f"Run: {model.project}/{model.name} at {there}"
    )


def close_replies(console: Console, judge: Judge) -> None:
    """Says how many replies were replayed, and closes the cassette."""
    if replayed := replay_account(judge):
        _say(console, replayed)
    if judge.cassette:
        judge.cassette.close()


@contextlib.contextmanager
def starting_over(console: Console, model: TrainableModel) -> Generator[ReplacedRun]:
    """Moves an earlier run of this name aside until the new one has begun; names the files of others that stay."""
    with replacing_run(runs_root(), model.project, model.name) as replaced:
        if replaced.foreign:
            names = ", ".join(path.name for path in replaced.foreign)
            _say(console, f"Left in {run_directory_of(model)}, because Gavel did not write it: {names}")
        yield replaced


def write_whole(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def say_cost(console: Console, judge: Judge | None) -> None:
    """Prints what the judge came to, if it asked a server."""
    if judge is not None and judge.asks_servers:
        calls = judge.budget.calls
        _say(console, f"Judge: {counted(calls, 'call')}, {judge.budget.cost}")


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def before_after(first: dict[str, float], last: dict[str, float]) -> Table:
    """The measures of two evaluations (rows of the metrics log) side by side."""
    table = Table(box=None)
    table.add_column(counted(round(last["trajectories"]), "held-out task"))
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for name, value in last.items():
        if name not in _COUNTS:
            before = f"{first[name]:.2f}" if name in first else "–"
            table.add_row(name.replace("_", " "), before, f"{value:.2f}")
    return table
