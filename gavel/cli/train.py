"""`gavel train`: a scenario or a run.toml, and options over it."""

import os
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gavel.cli.cassette_option import with_cassette
from gavel.cli.dry_run import print_run_estimate
from gavel.cli.interrupts import RESUME, run_interruptibly, run_to_end
from gavel.cli.lazy_commands import single_command
from gavel.cli.likelihood_model import register_likelihood
from gavel.cli.model_choice import check_model
from gavel.cli.model_options import with_options
from gavel.cli.named_scenario import scenarios_named
from gavel.cli.run_options import (
    RUN_FLAGS,
    Assignments,
    DryRun,
    Recipe,
    Source,
    announce_stand_in,
    check_stand_in,
    run_config,
)
from gavel.cli.terminal import TRAINER, loading
from gavel.extras import need_extra
from gavel.trainer.run_config import RunConfig

_ASSUMED_CONTEXT = 4096
"""Tokens that a dry run assumes where the model tells its own."""


def train(
    source: Source,
    values: Mapping[str, Any],
    assignments: Assignments = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over instead of continuing an earlier run.")] = False,
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
    from gavel.trainer.runs.run_directory import run_path, runs_root

    assert config.model.name is not None
    directory = run_path(runs_root(), scenario.name, config.model.name)
    config = config.model_copy(update={"judge": with_cassette(config.judge, directory)})
    register_likelihood()
    judge = config.judge.build(scenario.rubric) if "judge" in config.loop.reward else None
    if judge is not None:
        announce_stand_in(judge.names)
        check_stand_in(judge, scenario)
    if dry_run:
        asked = config.backend.max_context
        longest = asked or _ASSUMED_CONTEXT
        label = "At most, every rollout at --max-context" if asked else "With long rollouts; longer ones may fit"
        lengths = {label: longest, "At an eighth of that": max(longest // 8, 1)}
        return print_run_estimate(judge, config.loop, lengths)
    check_model(config, given, scenario)
    if judge is not None and "RANK" not in os.environ:  # which launched processes have
        run_interruptibly(judge.probe(replayed=False))  # before torch is loaded: a mistake is reported at once
    if config.backend.processes > 1:
        from gavel.trainer.distributed import launch, launched

        if not launched():
            raise typer.Exit(launch(config.backend.processes))
    with loading(TRAINER):
        from gavel.cli.train_session import run_training

    run_to_end(run_training(config, scenario, judge, given=given, fresh=fresh), RESUME)


app = single_command(with_options(train, RunConfig, RUN_FLAGS))
