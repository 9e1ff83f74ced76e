"""`gavel compare`: rewards compared by training on each, existing runs, or judges on stored trajectories."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gavel.cli.interrupts import run_interruptibly, run_to_end
from gavel.cli.lazy_commands import single_command
from gavel.cli.model_options import Flag, with_options
from gavel.cli.run_options import (
    ENGINE_FLAGS,
    JUDGE_FLAGS,
    Assignments,
    announce_stand_in,
    run_config,
)
from gavel.cli.settings import STAND_IN
from gavel.extras import need_extra
from gavel.llm.errors import GavelError
from gavel.llm.local_models import model_id
from gavel.trainer.run_config import RunConfig

_OF_CELLS = ("--judge", "--seed")
"""Set by the comparison itself."""
_FLAGS = [
    Flag("model.base_model", "--model"),
    Flag("loop.steps", "--steps", 30),
    Flag("loop.tasks_per_step", "--tasks"),
    Flag("loop.group_size", "--group-size"),
    Flag("loop.evaluation_tasks", "--evaluation-tasks"),
    Flag("loop.final_tasks", "--final-tasks"),
    Flag("loop.evaluate_every", "--evaluate-every"),
    Flag("train.learning_rate", "--learning-rate", "1e-5; 2e-3 for an embedded model"),
    *(flag for flag in ENGINE_FLAGS if flag.name not in _OF_CELLS),
    *(Flag(f"judge.{f.path}", f.name, f.default, f.by_key) for f in JUDGE_FLAGS if f.name not in _OF_CELLS),
]


def compare(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="SCENARIO | RUN RUN… | FILE_OR_RUN", help="A scenario; runs; or, with --judges, trajectories."
        ),
    ],
    values: Mapping[str, Any],
    assignments: Assignments = None,
    rewards: Annotated[
        str | None,
        typer.Option(help="judge, hand, success, constant and sums: judge+hand. Default: judge,hand,success,constant."),
    ] = None,
    judges: Annotated[str | None, typer.Option(help="Judge models, separated by commas: each is compared.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each reward.")] = 5,
    margin: Annotated[float, typer.Option(min=1e-6, max=1, help="Differences of success that do not matter.")] = 0.03,
    threshold: Annotated[float, typer.Option(min=0, max=1, help="Success that 'steps to' counts to.")] = 0.8,
    parallel: Annotated[
        int | None, typer.Option(min=1, help="Runs at once, of one thread each. Default: one for each core.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory of the report, for runs and stored trajectories.")] = None,
) -> None:
    """Compare rewards by training on each: the judge's, a hand-written one, true success, a constant.

    The same tasks, seeds and settings for all; finished runs are not repeated, so the same command goes on. Also
    compares existing runs, and, with --judges, judges on stored trajectories without training.
    """
    from gavel.cli.named_run import find_run
    from gavel.trainer.runs.run_directory import runs_root

    named = [name.strip() for name in (judges or "").split(",") if name.strip()]
    runs = [find_run(each) for each in what]
    folder = out or runs_root() / "compare"
    if len(what) > 1:
        if missing := [each for each, run in zip(what, runs, strict=True) if run is None]:
            raise GavelError(f"{missing[0]} is no run.", "Name runs as `gavel runs` lists them, or one scenario.")
        need_extra("train", "gavel compare")
        from gavel.cli.compare_session import compare_runs
        from gavel.cli.compare_table import print_comparison

        directories = {name: run for name, run in zip(what, runs, strict=True) if run is not None}
        if len({run.resolve() for run in directories.values()}) < len(what):
            raise GavelError("a run is compared with itself.", "Name two runs.")
        place = out or folder / "runs" / "-".join(run.name for run in directories.values())[:120]
        return print_comparison(compare_runs(directories, place, margin=margin, threshold=threshold))
    if runs[0] is not None or (Path(what[0]).is_file() and not what[0].endswith((".py", ".toml"))):
        from gavel.cli.attempts import read_attempts
        from gavel.cli.compare_judges import compare_judges
        from gavel.cli.named_run import scenario_of
        from gavel.reports.run_figures import stored_groups

        if not named:
            raise GavelError(
                f"{what[0]} is one run or file: what it is to be compared with is not said.",
                "Name a second run, or judges: --judges openai/gpt-5-mini,stand-in.",
            )
        place = out or folder / "judges" / Path(what[0]).name
        run, scenario = runs[0], scenario_of(runs[0]) if runs[0] else None
        groups = [group for _, group in stored_groups(run, "train")] if run else read_attempts(Path(what[0]))
        rubric = scenario.rubric if scenario else None
        return run_to_end(compare_judges(groups, named, values, place, rubric))
    need_extra("train", "gavel compare")
    from gavel.cli.compare_session import REWARDS, settings_of
    from gavel.cli.compare_table import train_and_print

    flags_given = {name: value for name, value in values.items() if value not in (None, [])}
    config = run_config(what[0], flags_given, assignments, flags=_FLAGS)
    config = _over(settings_of(what[0]), config)
    asked = [name.strip() for name in (rewards or ",".join(REWARDS)).split(",") if name.strip()]
    if any("judge" in name for name in asked):
        announce_stand_in([model_id(name) for name in named or [str(config.judge.models)]])
    try:
        run_interruptibly(train_and_print(config, asked, named, seeds, margin, threshold, parallel))
    except KeyboardInterrupt:
        typer.echo("Stopped. Finished steps are saved; the same command goes on from there.", err=True)
        raise typer.Exit(130) from None


def _over(base: RunConfig, given: RunConfig) -> RunConfig:
    """`base` with what is set in `given`."""
    tables = base.model_dump(exclude_unset=True)
    if base.judge.models is not None and given.judge.models == STAND_IN:  # where no judge is named
        given = given.model_copy(update={"judge": given.judge.model_copy(update={"models": base.judge.models})})
    for name, value in given.model_dump(exclude_unset=True).items():
        tables[name] = {**tables.get(name, {}), **value} if isinstance(value, dict) else value
    return RunConfig.model_validate(tables)


app = single_command(with_options(compare, RunConfig, _FLAGS))
