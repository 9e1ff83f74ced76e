"""`gavel evolve`: explores, keeps the best attempts, and learns from them, in rounds."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from gavel.base.extras import need_extra
from gavel.cli.attempts import read_attempts
from gavel.cli.cassette_option import with_cassette
from gavel.cli.heartbeat import waiting_for
from gavel.cli.interrupts import RESUME, run_interruptibly, run_to_end
from gavel.cli.lazy_commands import single_command
from gavel.cli.model_choice import check_model
from gavel.cli.model_options import Flag, with_options
from gavel.cli.named_scenario import scenario_named
from gavel.cli.run_options import (
    ENGINE_FLAGS,
    JUDGE_FLAGS,
    LORA_FLAGS,
    MEMORY_FLAGS,
    MODEL_FLAGS,
    START_FLAG,
    Assignments,
    announce_stand_in,
    check_stand_in,
    run_config,
)
from gavel.cli.terminal import TRAINER
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.run_config import EvolveRunConfig
from gavel.trainer.sft.best_members import best_members

FLAGS = [
    *MODEL_FLAGS,
    START_FLAG,
    *LORA_FLAGS,
    *(replace(flag, path=f"judge.{flag.path}") for flag in JUDGE_FLAGS),
    Flag("base", "--base"),
    Flag("evolve.iterations", "--iterations"),
    Flag("evolve.tasks", "--tasks"),
    Flag("evolve.attempts", "--attempts"),
    Flag("evolve.reward", "--reward"),
    Flag("evolve.best", "--best"),
    Flag("evolve.above", "--above"),
    Flag("evolve.accumulate", "--accumulate"),
    Flag("evolve.turn_limits", "--turn-limits"),
    Flag("evolve.temperature", "--temperature"),
    Flag("evolve.evaluation_tasks", "--evaluation-tasks"),
    Flag("evolve.stall_seconds", "--stall-seconds"),
    Flag("train.learning_rate", "--learning-rate", "2e-4; 4e-3 for an embedded model"),
    Flag("train.epochs", "--epochs", "1; 3 for an embedded model"),
    Flag("train.batch_size", "--batch-size"),
    Flag("train.optimizer", "--optimizer"),
    *MEMORY_FLAGS,
    *(replace(flag, path=flag.path.replace("loop.", "evolve.")) for flag in ENGINE_FLAGS),
    Flag("backend.tracker", "--tracker"),
]


def evolve(
    source: Annotated[
        str,
        typer.Argument(metavar="SCENARIO", help="A shipped scenario, file.py, file.py:variable, or an evolve.toml."),
    ],
    values: Mapping[str, Any],
    assignments: Assignments = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over instead of continuing an earlier run.")] = False,
) -> None:
    """Train a model to imitate its own best attempts, in rounds.

    Every round rolls out train tasks, keeps the attempts that succeed (or that the judge ranks first: --reward judge=1)
    and learns from them and the --base data, beginning with the base model again. --iterations 1 is rejection sampling.
    The same command goes on after a stop, and with more --iterations.
    """
    need_extra("train", "gavel evolve")
    given = run_config(source, values, assignments, flags=FLAGS, kind=EvolveRunConfig)
    config = given.resolved()
    scenario = scenario_named(config.scenario)
    config = config.model_copy(update={"evolve": config.evolve.with_reward_for(scenario.success is not None)})
    check_model(config, given, scenario)
    base = _base(config)
    judge = None
    if config.evolve.ranked:
        from gavel.trainer.runs.run_directory import run_path, runs_root

        assert config.model.name is not None
        directory = run_path(runs_root(), scenario.name, config.model.name)
        judge = with_cassette(config.judge, directory).build(scenario.rubric)
        announce_stand_in(judge.names)
        check_stand_in(judge, scenario)
        run_interruptibly(judge.probe(replayed=False))
    with waiting_for(TRAINER):
        from gavel.cli.evolve_session import run_evolution

    run_to_end(run_evolution(config, scenario, judge, base, given=given, fresh=fresh), RESUME)


def _base(config: EvolveRunConfig) -> list[Trajectory]:
    """All of a file without scores; of one with scores, those that the filter chooses."""
    groups = read_attempts(config.base) if config.base else []
    members = [member for group in groups for member in group]
    if all(member.reward is None for member in members):
        return members
    return best_members(groups, config.evolve.kept, config.evolve.threshold).trajectories


app = single_command(with_options(evolve, EvolveRunConfig, FLAGS))
