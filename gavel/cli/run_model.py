"""What the commands that train share: the model of a run's settings, its directory, its backend, and closing words.

Imports torch; commands import it only when they run.
"""

import contextlib
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from gavel.base.text import counted
from gavel.cli.cassette_option import replay_account
from gavel.cli.kept_run import remote_backend
from gavel.cli.terminal import plain
from gavel.judge.judge import Judge
from gavel.reports.run_outcome import outcome_in_words
from gavel.scenarios.mixture import Mixture
from gavel.scenarios.scenario import Scenario
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.remote.client import RemoteBackend
from gavel.trainer.model import TrainableModel
from gavel.trainer.run_config import BackendConfig, EvolveRunConfig, RunConfig
from gavel.trainer.runs.fresh_run import ReplacedRun, replacing_run
from gavel.trainer.runs.run_directory import RunDirectoryError, run_path, runs_root


def trainable(config: RunConfig | EvolveRunConfig, scenario: Scenario | Mixture) -> TrainableModel:
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


def run_directory_of(model: TrainableModel) -> Path:
    return run_path(runs_root(), model.project, model.name)


async def opened_backend(
    backend: BackendConfig, config: RunConfig | EvolveRunConfig, path: str | None = None
) -> LocalBackend | RemoteBackend:
    """The backend that trains or samples, to be closed by the caller; `path`: where one on this machine keeps runs."""
    if backend.url is not None:
        return await remote_backend(backend.url)
    return LocalBackend(
        path,
        engine=backend.engine,
        slots=backend.slots,
        max_context=backend.max_context,
        max_reply=backend.max_reply,
        versions=(config.loop.max_staleness if isinstance(config, RunConfig) else 0) + 1 + backend.earlier_policies,
        shard_base=backend.shard_base,
        tracker=backend.tracker,
    )


def check_fresh_is_here(backend: BackendConfig, fresh: bool) -> None:
    """Raises `RunDirectoryError` for `--fresh` of a run on another machine."""
    if fresh and backend.url is not None:
        raise RunDirectoryError(
            f"--fresh deletes no run on another machine ({backend.url})", "Give the new run another --name."
        )


def say(console: Console, line: str) -> None:
    """Prints one line, which the terminal may wrap."""
    console.print(plain(line), soft_wrap=True)


def say_outcome(
    console: Console,
    rows: Sequence[dict[str, Any]],
    *,
    max_tokens: int | None = None,
    scenario: str = "SCENARIO",
    judges: Sequence[str] = (),
) -> None:
    """What came of a run, before tables and paths: see `outcome_in_words`."""
    for line in outcome_in_words(rows, max_tokens=max_tokens, scenario=scenario, judges=judges):
        say(console, line)


def close_replies(console: Console, judge: Judge) -> None:
    """Says how many replies were replayed, and closes the cassette."""
    if replayed := replay_account(judge):
        say(console, replayed)
    if judge.cassette:
        judge.cassette.close()


@contextlib.contextmanager
def starting_over(console: Console, model: TrainableModel) -> Generator[ReplacedRun]:
    """Moves an earlier run of this name aside until the new one has begun; names the files of others that stay."""
    with replacing_run(runs_root(), model.project, model.name) as replaced:
        if replaced.foreign:
            names = ", ".join(path.name for path in replaced.foreign)
            say(console, f"Left in {run_directory_of(model)}, because Gavel did not write it: {names}")
        yield replaced


def say_cost(console: Console, judge: Judge | None) -> None:
    """Prints what the judge came to, if it asked a server."""
    if judge is not None and judge.asks_servers:
        calls = judge.budget.calls
        say(console, f"Judge: {counted(calls, 'call')}, {judge.budget.cost}")
