"""`gavel compare`: rewards compared by training on each, existing runs, or judges on stored trajectories.

Each of the three reads options of its own; one that it does not read is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from gavel.base.errors import GavelError
from gavel.base.extras import need_extra
from gavel.cli.interrupts import run_interruptibly, run_to_end
from gavel.cli.lazy_commands import single_command
from gavel.cli.likelihood_model import register_likelihood
from gavel.cli.model_options import Flag, with_options
from gavel.cli.named_scenario import scenario_named
from gavel.cli.run_file import merged
from gavel.cli.run_options import (
    ENGINE_FLAGS,
    JUDGE_FLAGS,
    Assignments,
    DryRun,
    announce_stand_in,
    check_stand_in,
    judge_config,
    run_config,
)
from gavel.cli.settings import STAND_IN
from gavel.llm.providers import model_id
from gavel.trainer.run_config import RunConfig

_OF_CELLS = ("--judge", "--seed")
"""Set by the comparison itself."""
_JUDGE_FLAGS = [flag for flag in JUDGE_FLAGS if flag.name not in _OF_CELLS]
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
    *(Flag(f"judge.{f.path}", f.name, f.default, f.by_key) for f in _JUDGE_FLAGS),
]
_SEEDS, _MARGIN, _THRESHOLD = 5, 0.03, 0.8
_OF_RUNS = {"--margin", "--threshold", "--out", "--blind-judge", "--blind-rubric"}
_OF_JUDGES = {"--judges", "--out", "--dry-run", *(flag.name for flag in _JUDGE_FLAGS)}
_UNREAD = {"--out"}
"""Of a comparison that trains: its report stands beside its runs."""


@dataclass(frozen=True, slots=True)
class _Options:
    """What was typed: None where nothing was."""

    what: list[str]
    values: Mapping[str, Any]
    assignments: list[str] | None
    rewards: str | None
    judges: str | None
    seeds: int | None
    margin: float | None
    threshold: float | None
    parallel: int | None
    out: Path | None
    blind_judge: str | None
    blind_rubric: str | None
    dry_run: bool

    @property
    def named_judges(self) -> list[str]:
        return _names(self.judges or "")

    @property
    def bounds(self) -> dict[str, float]:
        """Margin and threshold."""
        margin = _MARGIN if self.margin is None else self.margin
        return {"margin": margin, "threshold": _THRESHOLD if self.threshold is None else self.threshold}

    def typed(self) -> list[str]:
        own = ("rewards", "judges", "seeds", "margin", "threshold", "parallel", "out", "blind_judge", "blind_rubric")
        found = [f"--{name.replace('_', '-')}" for name in own if getattr(self, name) is not None]
        found += ["--set"] if self.assignments else []
        found += ["--dry-run"] if self.dry_run else []
        return found + [flag.name for flag in _FLAGS if self.values.get(flag.key) not in (None, [])]

    def only(self, read: set[str], why: str) -> None:
        """Raises `GavelError` for an option that would have no effect."""
        if unread := [name for name in self.typed() if name not in read]:
            raise GavelError(f"{', '.join(unread)}: no effect here, because {why}.", "Leave it out.")


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
    seeds: Annotated[int | None, typer.Option(min=1, help=f"Runs of each reward. Default: {_SEEDS}.")] = None,
    margin: Annotated[
        float | None,
        typer.Option(min=1e-6, max=1, help=f"Differences of success that do not matter. Default: {_MARGIN}."),
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(min=0, max=1, help=f"Success that 'steps to' counts to. Default: {_THRESHOLD}.")
    ] = None,
    parallel: Annotated[
        int | None, typer.Option(min=1, help="Runs at once, of one thread each. Default: one for each core.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory of the report, for runs and stored trajectories.")] = None,
    blind_judge: Annotated[
        str | None,
        typer.Option(
            help="Judge model that ranks the held-out attempts of all runs in pairs, without being told whose they "
            "are; best one that none was trained on."
        ),
    ] = None,
    blind_rubric: Annotated[
        str | None, typer.Option(help="What it ranks by: a text, or @FILE. Default: the scenario's rubric.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Compare rewards by training on each: the judge's, a hand-written one, true success, a constant.

    The same tasks, seeds and settings for all; finished runs are not repeated, so the same command goes on. Also
    compares existing runs, and, with --judges, judges on stored trajectories without training.
    """
    from gavel.cli.named_run import find_run

    register_likelihood()
    options = _Options(
        what,
        values,
        assignments,
        rewards,
        judges,
        seeds,
        margin,
        threshold,
        parallel,
        out,
        blind_judge,
        blind_rubric,
        dry_run,
    )
    if blind_rubric is not None and blind_judge is None:
        raise GavelError("--blind-rubric is for a judge that ranks.", "Name it: --blind-judge openai/gpt-5-mini.")
    runs = [find_run(each) for each in what]
    if len(what) > 1:
        return _runs(options, runs)
    if runs[0] is not None or (what[0] and Path(what[0]).exists() and not what[0].endswith((".py", ".toml"))):
        return _stored(options, runs[0])
    _training(options)


def _runs(options: _Options, runs: Sequence[Path | None]) -> None:
    from gavel.trainer.runs.run_directory import runs_root

    what = options.what
    if missing := [each for each, run in zip(what, runs, strict=True) if run is None]:
        raise GavelError(f"{missing[0]} is no run.", "Name runs as `gavel runs` lists them, or one scenario.")
    if options.dry_run and options.blind_judge:
        raise GavelError("--dry-run does not estimate the ranking of existing runs.", "Bound it: --max-cost 1.")
    of_judge = {flag.name for flag in _JUDGE_FLAGS if flag.name != "--rubric"}
    options.only(_OF_RUNS | (of_judge if options.blind_judge else set()), "these runs are made already")
    need_extra("train", "gavel compare")
    from gavel.cli.compare_session import compare_runs
    from gavel.cli.compare_table import print_comparison, rank_and_print

    found = [run.resolve() for run in runs if run is not None]
    if len({*found}) < len(what):
        raise GavelError("a run is compared with itself.", "Name two runs.")
    directories = dict(zip(_called(what, found), found, strict=True))
    called = "-".join("-".join(run.parts[-2:]) for run in found)
    place = options.out or runs_root() / "compare" / "runs" / called[:200]
    comparison = compare_runs(directories, place, **options.bounds)
    if options.blind_judge is None:
        return print_comparison(comparison)
    from gavel.cli.compare_blind import blind_judge
    from gavel.cli.named_run import scenario_of

    scenario = next(filter(None, map(scenario_of, directories.values())), None)
    rubric = options.blind_rubric or (scenario.rubric if scenario else None)
    settings = judge_config({**options.values, "judge": options.blind_judge})
    mode = options.values.get("mode") or "pairwise"
    judge = blind_judge(settings, options.blind_judge, rubric, place, mode)
    if scenario:
        check_stand_in(judge, scenario)
    run_to_end(rank_and_print(comparison, judge))


def _called(typed: Sequence[str], runs: Sequence[Path]) -> list[str]:
    """As they were typed, or, where a path was, by as much of its end as tells the runs apart."""
    if all(len(Path(each).parts) <= 2 for each in typed):
        return list(typed)
    ends = (
        ["/".join(run.parts[-count:]) for run in runs] for count in range(1, max(len(run.parts) for run in runs) + 1)
    )
    return next(names for names in ends if len({*names}) == len(names))


def _stored(options: _Options, run: Path | None) -> None:
    from gavel.cli.attempts import read_attempts
    from gavel.cli.compare_judges import compare_judges
    from gavel.cli.named_run import scenario_of
    from gavel.reports.run_figures import stored_groups
    from gavel.trainer.runs.run_directory import runs_root

    what = options.what[0]
    if not options.named_judges:
        raise GavelError(
            f"{what} is one run or file: what it is to be compared with is not said.",
            "Name a second run, or judges: --judges openai/gpt-5-mini,stand-in.",
        )
    options.only(_OF_JUDGES, "judges are compared on what is stored, and nothing is trained")
    place = options.out or runs_root() / "compare" / "judges" / Path(what).name
    scenario = scenario_of(run) if run else None
    groups = [group for _, group in stored_groups(run, "train")] if run else read_attempts(Path(what))
    rubric = scenario.rubric if scenario else None
    run_to_end(compare_judges(groups, options.named_judges, options.values, place, rubric, dry_run=options.dry_run))


def _training(options: _Options) -> None:
    what, named = options.what[0], options.named_judges
    options.only(set(options.typed()) - _UNREAD, "the report stands beside the runs (GAVEL_RUNS says where)")
    need_extra("train", "gavel compare")
    from gavel.cli.compare_session import REWARDS, settings_of
    from gavel.cli.compare_table import print_comparison_estimate, train_and_print

    flags_given = {name: value for name, value in options.values.items() if value not in (None, [])}
    config = over(settings_of(what), run_config(what, flags_given, options.assignments, flags=_FLAGS))
    scenario_named(config.scenario)  # whose mistakes come first
    asked = _names(options.rewards or ",".join(REWARDS))
    judges = named or [str(config.judge.models)]
    if any("judge" in name for name in asked):
        announce_stand_in([model_id(name) for name in judges])
    blind = None if options.blind_judge is None else (options.blind_judge, options.blind_rubric)
    planned = config, asked, named, options.seeds or _SEEDS
    if options.dry_run:
        return print_comparison_estimate(*planned, blind)
    training = train_and_print(*planned, parallel=options.parallel, blind=blind, **options.bounds)
    try:
        run_interruptibly(training)
    except KeyboardInterrupt:
        typer.echo("Stopped. Finished steps are saved; the same command goes on from there.", err=True)
        raise typer.Exit(130) from None


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def over(base: RunConfig, given: RunConfig) -> RunConfig:
    """`base` with what is set in `given`."""
    if base.judge.models is not None and given.judge.models == STAND_IN:  # where no judge is named
        given = given.model_copy(update={"judge": given.judge.model_copy(update={"models": base.judge.models})})
    return RunConfig.model_validate(merged(base.model_dump(exclude_unset=True), dict(_set_in(given, ()))))


def _set_in(settings: BaseModel, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each value that was set, by its path; a dict is one value."""
    for name in settings.model_fields_set:
        value = getattr(settings, name)
        if isinstance(value, BaseModel) and value.model_fields_set:
            yield from _set_in(value, (*path, name))
        else:
            yield (*path, name), value


app = single_command(with_options(compare, RunConfig, _FLAGS))
