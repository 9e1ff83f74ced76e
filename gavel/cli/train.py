"""`gavel train`: a scenario or a run.toml, and options over it; `gavel config` prints all of that as a run.toml.

Torch is imported by `run_training` alone, once scenario, judge and settings are known to be right.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from gavel.base.extras import need_extra
from gavel.base.text import counted
from gavel.cli.interrupts import RESUME, run_interruptibly, run_to_end
from gavel.cli.named import scenarios_named
from gavel.cli.options import (
    RUN_FLAGS,
    Assignments,
    DryRun,
    Fresh,
    Recipe,
    Source,
    check_model,
    prepare_judge,
    run_config,
    settings_command,
)
from gavel.cli.run_file import to_toml
from gavel.cli.terminal import print_table, say, waiting_for
from gavel.cli.training import (
    OpenRun,
    RunDisplay,
    check_begun,
    check_run,
    open_run,
    print_run_estimates,
    read_seen_lengths,
    run_directory_of,
    trainable,
    with_tasks_there_are,
)
from gavel.judge.judge import Judge
from gavel.reports.run_figures import Row
from gavel.scenarios.mixture import Mixture
from gavel.scenarios.scenario import Scenario
from gavel.trainer.loop.group_maker import check_rewards
from gavel.trainer.loop.train_loop import EVALUATION, train_scenario
from gavel.trainer.loop.watchdog import check_turn_limits
from gavel.trainer.model import TrainableModel
from gavel.trainer.run_config import RunConfig
from gavel.trainer.runs.metrics import whole_rows
from gavel.trainer.runs.run_directory import runs_root
from gavel.trainer.runs.run_listing import last_step, read_wanted_steps

if TYPE_CHECKING:
    from gavel.trainer.backends.local import LocalBackend
    from gavel.trainer.backends.remote.client import RemoteBackend

_FINISHED = "The run was finished after step {}; for more, raise --steps."
_COUNTS = ("step", "split", "time", "trajectories", "exceptions", "failed")


def train(
    source: Source,
    values: Mapping[str, Any],
    assignments: Assignments = None,
    fresh: Fresh = False,
    recipe: Recipe = None,
    dry_run: DryRun = False,
) -> None:
    """Train an agent on a scenario, with a judge's scores as the reward.

    An earlier run of the same name continues after its last finished step. Every setting can be given in a run.toml
    (`gavel config` prints one) and overridden here.
    """
    if not dry_run:
        need_extra("train", "gavel train")
    given = run_config(source, values, assignments, recipe=recipe)
    config = given.resolved()
    scenario = scenarios_named(config.scenario, config.weights)
    for each in Mixture.of(scenario):
        check_rewards(each, config.loop.reward)
        check_turn_limits(each, config.loop.turn_limits)
    directory = run_directory_of(trainable(config, scenario.name))
    judge = prepare_judge(config.judge, scenario, directory) if "judge" in config.loop.reward else None
    if not (fresh or config.backend.url):
        check_begun(config, scenario, judge, directory)
    check_model(config.model, scenario)
    if dry_run:
        check_run(config, scenario, runs_root(), fresh=fresh)
        lengths = read_seen_lengths(scenario, config.backend.max_context)
        loop, note = with_tasks_there_are(config.loop, scenario)
        begun = 0 if fresh or config.backend.url else last_step(whole_rows(directory / "metrics.jsonl").rows)
        if begun >= loop.steps:
            return typer.echo(_FINISHED.format(begun))
        if begun:
            loop = loop.model_copy(update={"steps": loop.steps - begun})
            note = " ".join(filter(None, (note, f"The run goes on after step {begun}: these are the steps left.")))
        return run_interruptibly(print_run_estimates([("", judge, loop, 1)], scenario, lengths, note))
    if judge is not None and "RANK" not in os.environ:  # which launched processes have
        with waiting_for(f"asking {', '.join(judge.names)} one question"):
            run_interruptibly(judge.probe(replayed=False))  # before torch is loaded: a mistake is reported at once
    if config.backend.processes > 1:
        from gavel.trainer.distributed import launch, launched

        if not launched():
            raise typer.Exit(launch(config.backend.processes))

    def announce(run: OpenRun) -> None:
        loop = config.loop
        rewards = ", ".join(f"{name} {weight:g}" for name, weight in loop.reward.items())
        reward = f"judge {', '.join(judge.names)}" if judge and loop.reward == {"judge": 1.0} else f"reward {rewards}"
        state = f" · continuing after step {run.start}" if 0 < run.start < loop.steps else ""
        say(run.console, f"Gavel · {scenario.name} · {run.model.base_model} · {reward}{state}")
        planned = read_wanted_steps(directory, ()) if state and run.there is None else None
        is_given = {"total_steps", "warmup_steps"} <= given.train.model_fields_set
        if planned not in (None, loop.steps) and not is_given:
            told = f"begun for {counted(planned, 'step')}, and its learning rate now falls until {loop.steps}"
            say(run.console, f"It was {told}: not the run that --steps {loop.steps} alone would have given (--fresh).")
        say(run.console, f"Endpoint: {run.backend.endpoint(run.model).limits}")
        if run.start >= loop.steps:
            say(run.console, _FINISHED.format(run.start))

    async def run_training() -> None:
        model = trainable(config, scenario.name)
        run = await train_and_tell(model, scenario, config, judge, announce, fresh=fresh, given=given)
        run.say_end()

    run_to_end(run_training(), RESUME)


async def train_and_tell(
    model: TrainableModel,
    scenario: Scenario | Mixture,
    config: RunConfig,
    judge: Judge | None,
    announce: Callable[[OpenRun], None],
    *,
    fresh: bool,
    given: RunConfig | None = None,
    backend: "AbstractAsyncContextManager[LocalBackend | RemoteBackend] | None" = None,
) -> OpenRun:
    """Trains the model, and prints the outcome with the figures before and after.

    `announce` is called before the work. `given`: the settings before defaults were filled in; with them the run keeps
    its configuration as run.toml.
    """
    loop = config.loop
    async with open_run(Console(), model, config, judge, fresh=fresh, backend=backend) as run:
        announce(run)
        points = run.backend.history(model, EVALUATION)
        first = next((row.get("success") for row in points if row["step"] == 0), None)
        begun = partial(run.begun, config if given else None, given)
        display = RunDisplay(run.console, loop.steps, run.start, first, begun, judge, run.report)
        with display.shown():
            await train_scenario(model, scenario, judge, loop, config.train, display)
    judges = judge.names if judge else ()
    run.say_outcome(max_tokens=loop.max_tokens, scenario=config.scenario, judges=judges, settable=given is not None)
    if points := [row for row in run.rows if row["split"] == EVALUATION]:
        first, last = map(measures_of, (points[0], points[-1]))
        rows = [
            (name.replace("_", " "), f"{first[name]:.2f}" if name in first else "–", f"{value:.2f}")
            for name, value in last.items()
        ]
        tasks = counted(round(points[-1]["trajectories"]), "held-out task")
        print_table(run.console, (tasks, "before", "after"), rows, right=("before", "after"))
    return run


def measures_of(row: Row) -> dict[str, float]:
    """Figures of an evaluation, but for counts and those of the judge."""
    return {name: value for name, value in row.items() if name not in _COUNTS and not name.startswith("judge/")}


def config(
    values: Mapping[str, Any],
    source: Source = "returns_desk",
    assignments: Assignments = None,
    recipe: Recipe = None,
) -> None:
    """Print the whole configuration of a run as TOML, with defaults and descriptions.

    The same arguments as for `gavel train`; what is printed is itself a run.toml.
    """
    given = run_config(source, values, assignments, recipe=recipe)
    about = "# Relative paths are those of the directory that this file is in."
    typer.echo(f"{about}\n\n{to_toml(given.resolved(), given)}".encode(), nl=False)  # UTF-8, whatever the terminal is


app, config_app = (settings_command(each, RunConfig, RUN_FLAGS) for each in (train, config))
