"""`gavel evaluate`: the newest policy of a run, or a base model, on held-out tasks."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gavel.cli.cassette_option import replies_directory, with_cassette
from gavel.cli.interrupts import run_to_end
from gavel.cli.lazy_commands import single_command
from gavel.cli.model_options import Flag, with_options
from gavel.cli.named_scenario import scenario_named
from gavel.cli.run_options import (
    ENGINE_FLAGS,
    JUDGE_FLAGS,
    MODEL_FLAGS,
    Assignments,
    Source,
    announce_stand_in,
    run_config,
)
from gavel.extras import need_extra
from gavel.trainer.run_config import RunConfig

_TASKS = 256
_OF_GROUPS = ("--mode", "--cache")
"""Options of a judge that concern groups of several attempts."""
_JUDGE_FLAGS = [replace(flag, path=f"judge.{flag.path}") for flag in JUDGE_FLAGS if flag.name not in _OF_GROUPS]
_FLAGS = [*MODEL_FLAGS, Flag("loop.final_tasks", "--tasks", _TASKS), *ENGINE_FLAGS, *_JUDGE_FLAGS]


def evaluate(source: Source, values: Mapping[str, Any], assignments: Assignments = None) -> None:
    """Measure a run's newest policy (or its base, before training) on held-out tasks.

    With --judge, a judge also scores each attempt by itself; without it, none is asked.
    """
    need_extra("train", "gavel evaluate")
    config = run_config(source, {**values, "tasks": values["tasks"] or _TASKS}, assignments, flags=_FLAGS)
    scenario = scenario_named(config.scenario)
    from gavel.cli.train_session import run_evaluation

    judge = None
    if values["judge"] is not None:
        alone = config.resolved().judge.model_copy(update={"alone": "scored"})
        judge = with_cassette(alone, replies_directory(None)).build(scenario.rubric)
        announce_stand_in(judge.names)
    run_to_end(
        run_evaluation(config.resolved(), scenario, must_exist=config.model.name is not None, judge=judge),
    )


app = single_command(with_options(evaluate, RunConfig, _FLAGS))
