"""What `gavel train` and `gavel evaluate` do: a scenario, a model and a judge, connected to a backend and a display.

Imports torch; the commands in `train` and `evaluate` import it only when they run.
"""

import contextlib
import os
import tempfile
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gavel.cli.cassette_option import replay_account
from gavel.cli.display import RunDisplay
from gavel.cli.heldout_scores import judge_alone, mean_score
from gavel.cli.live_report import LiveReport
from gavel.cli.run_file import to_toml
from gavel.cli.run_paths import paths_seen_from
from gavel.judge.judge import Judge
from gavel.llm.counted import counted
from gavel.scenarios.scenario import Scenario
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.remote.client import RemoteBackend
from gavel.trainer.backends.skypilot.backend import CLUSTER_SCHEME, SkyPilotBackend
from gavel.trainer.loop.evaluation import evaluate, interval
from gavel.trainer.loop.train_loop import EVALUATION, train_scenario
from gavel.trainer.model import TrainableModel
from gavel.trainer.run_config import BackendConfig, RunConfig
from gavel.trainer.runs.fresh_run import ReplacedRun, replacing_run
from gavel.trainer.runs.named_checkpoint import find_checkpoint
from gavel.trainer.runs.run_directory import RunDirectoryError, run_path, runs_root

_COUNTS = ("step", "split", "time", "trajectories", "exceptions", "failed")


def _trainable(config: RunConfig, scenario: Scenario) -> TrainableModel:
    """The model of a run; its project is the scenario."""
    model = config.model
    return TrainableModel(
        name=model.base_model if model.name is None else model.name,
        project=scenario.name,
        base_model=model.base_model,
        lora=model.lora,
        policy=model.policy,
        from_checkpoint=model.from_checkpoint,
        renderer=model.renderer,
    )


@contextlib.asynccontextmanager
async def _backend(config: RunConfig, path: str | None = None) -> AsyncGenerator[LocalBackend | RemoteBackend]:
    async with await _opened(config.backend, config, path) as backend:
        yield backend


async def _opened(backend: BackendConfig, config: RunConfig, path: str | None) -> LocalBackend | RemoteBackend:
    if backend.url is not None and backend.url.startswith(CLUSTER_SCHEME):
        return await SkyPilotBackend.attach(backend.url.removeprefix(CLUSTER_SCHEME))
    if backend.url is not None:
        return RemoteBackend(backend.url)
    return LocalBackend(
        path,
        engine=backend.engine,
        slots=backend.slots,
        max_context=backend.max_context,
        max_reply=backend.max_reply,
        versions=config.loop.max_staleness + 1 + backend.earlier_policies,
        shard_base=backend.shard_base,
        tracker=backend.tracker,
    )


async def run_training(
    config: RunConfig, scenario: Scenario, judge: Judge | None, *, given: RunConfig, fresh: bool = False
) -> None:
    """Trains until `config.loop.steps`, continuing an earlier run, and prints a table of before and after.

    `config` is `given` with all values filled in. `judge` is None when the reward gives it no weight. With `fresh` an
    earlier run of this name is deleted once this one has begun. The run directory gets the configuration as `run.toml`.
    """
    console = Console()
    loop, model, there = config.loop, _trainable(config, scenario), config.backend.url
    if fresh and there is not None:
        raise RunDirectoryError(
            f"--fresh deletes no run on another machine ({there})", "Give the new run another --name."
        )
    leader = os.environ.get("RANK", "0") == "0"
    async with contextlib.AsyncExitStack() as stack:
        replaced = stack.enter_context(starting_over(console, model)) if fresh and leader else None
        backend = await stack.enter_async_context(_backend(config))
        await model.register(backend)
        start = await model.get_step()
        rewards = ", ".join(f"{name} {weight:g}" for name, weight in loop.reward.items())
        reward = f"judge {', '.join(judge.names)}" if judge and loop.reward == {"judge": 1.0} else f"reward {rewards}"
        state = f" · continuing after step {start}" if 0 < start < loop.steps else ""
        _say(console, f"Gavel · {scenario.name} · {model.base_model} · {reward}{state}")
        _say(console, f"Endpoint: {backend.endpoint(model).limits}")
        first = next((row.get("success") for row in backend.history(model, EVALUATION) if row["step"] == 0), None)
        run_file = _directory(model) / "run.toml"

        def begun() -> None:
            if there is not None:
                return
            _write_whole(run_file, to_toml(paths_seen_from(config, run_file.parent), given))
            if replaced is not None:
                replaced.delete()

        report = LiveReport(_directory(model)) if there is None and leader else None
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
    _say(console, f"Run: {_directory(model)}" if there is None else f"Run: {model.project}/{model.name} at {there}")


async def run_evaluation(
    config: RunConfig, scenario: Scenario, *, must_exist: bool, judge: Judge | None = None
) -> None:
    """Prints the measures of the newest policy on held-out tasks; of the base, where there is no run yet.

    `judge`: scores the attempts, too, each by itself. With `must_exist`, raises `RunDirectoryError` when there is none.
    """
    console = Console()
    model = _trainable(config, scenario)
    exists = config.backend.url is not None or (_directory(model) / "model.json").is_file()
    if model.from_checkpoint is not None and "://" not in model.from_checkpoint and not exists:
        start = str(find_checkpoint(model.from_checkpoint, runs_root()))
        model = model.model_copy(update={"from_checkpoint": start})
    if must_exist and not exists:
        runs = sorted(path.parent.name for path in _directory(model).parent.glob("*/model.json"))
        raise RunDirectoryError(
            f"there is no run {model.name} of {scenario.name}; there are: {', '.join(runs) or 'none'}",
            "Name one of these, or leave --name out.",
        )
    with tempfile.TemporaryDirectory() as elsewhere:  # measuring a base leaves no run behind
        async with _backend(config, None if exists else elsewhere) as backend:
            await model.register(backend)
            _say(console, f"Gavel · {scenario.name} · {model.get_inference_name()}")
            if judge is not None:
                await judge.probe()
            evaluation = await evaluate(model, scenario, config.loop.final_tasks, config.loop)
    judgements = None if judge is None else await judge_alone(judge, evaluation.trajectories)
    table = Table(box=None)
    table.add_column(counted(evaluation.tasks, "held-out task"))
    table.add_column("mean", justify="right")
    for name, value in evaluation.measures.items():
        width = f" ± {interval(value, evaluation.tasks):.3f}" if name == "success" else ""
        table.add_row(name.replace("_", " "), f"{value:.3f}{width}")
    if judge is None or judgements is None:
        console.print(table)
        return
    score, missing = mean_score(judgements)
    table.add_row("judge's score", score)
    console.print(table)
    _say(console, f"Judge {', '.join(judge.names)}: each attempt by itself{f'; {missing}' if missing else ''}")
    say_cost(console, judge)
    close_replies(console, judge)


def close_replies(console: Console, judge: Judge) -> None:
    """Says how many replies were replayed, and closes the cassette."""
    if replayed := replay_account(judge):
        _say(console, replayed)
    if judge.cassette:
        judge.cassette.close()


def _directory(model: TrainableModel) -> Path:
    return run_path(runs_root(), model.project, model.name)


@contextlib.contextmanager
def starting_over(console: Console, model: TrainableModel) -> Generator[ReplacedRun]:
    """Moves an earlier run of this name aside until the new one has begun; names the files of others that stay."""
    with replacing_run(runs_root(), model.project, model.name) as replaced:
        if replaced.foreign:
            names = ", ".join(path.name for path in replaced.foreign)
            _say(console, f"Left in {_directory(model)}, because Gavel did not write it: {names}")
        yield replaced


def _write_whole(path: Path, text: str) -> None:
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
