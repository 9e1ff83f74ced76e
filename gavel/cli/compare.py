"""`gavel compare`: rewards compared by training on each, existing runs, or judges on stored trajectories.

Each of the three reads options of its own; one that it does not read is refused.
"""

import asyncio
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from gavel.base.errors import GavelError, first_error
from gavel.base.extras import need_extra
from gavel.base.text import counted, duration
from gavel.cli.compare_session import (
    REWARDS,
    THRESHOLD,
    Cell,
    check_cells,
    compare_runs,
    cores,
    demo_tables,
    folder_of,
    judge_that_ranks,
    plan_cells,
    rank_runs,
    run_comparison,
)
from gavel.cli.lazy_commands import single_command
from gavel.cli.named import find_run, names_in, read_attempts, scenario_named, scenario_of
from gavel.cli.options import (
    ENGINE_FLAGS,
    JUDGE_FLAGS,
    STAND_IN,
    Assignments,
    DryRun,
    Flag,
    announce_stand_in,
    check_model,
    check_stand_in,
    judge_config,
    recorded,
    register_likelihood,
    run_config,
    typed_options,
    with_cassette,
    with_options,
)
from gavel.cli.terminal import (
    RESUME,
    WaitDisplay,
    print_figures,
    print_table,
    run_to_end,
    say,
)
from gavel.cli.training import (
    check_run,
    close_replies,
    defer_missing_key,
    print_run_estimates,
    read_seen_lengths,
    with_tasks_there_are,
)
from gavel.judge.audit.agreement import agreement_of_pairs
from gavel.judge.estimate import estimate_groups
from gavel.judge.judge import Judge
from gavel.judge.offline.stand_in import check_readable
from gavel.llm.providers import model_id
from gavel.reports.comparison import Comparison, alarms_text, cost_text, signed, statement, steps_text
from gavel.reports.judge_trust import MIN_GROUPS
from gavel.reports.page import write_page
from gavel.reports.run_figures import stored_groups
from gavel.reports.statistics import with_interval
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.truth import truth_of
from gavel.trainer.loop.watchdog import check_turn_limits
from gavel.trainer.run_config import RunConfig
from gavel.trainer.runs.run_directory import runs_root

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
_OF_RUNS = {"--margin", "--threshold", "--out", "--blind-judge", "--blind-rubric"}
_OF_JUDGES = {"--judges", "--out", "--dry-run", *(flag.name for flag in _JUDGE_FLAGS)}


def compare(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="SCENARIO | RUN RUN… | FILE_OR_RUN", help="A scenario; runs; or, with --judges, trajectories."
        ),
    ],
    values: Mapping[str, Any],
    context: typer.Context,
    assignments: Assignments = None,
    rewards: Annotated[
        str,
        typer.Option(help="judge, hand, success, constant and sums: judge+hand."),
    ] = ",".join(REWARDS),
    judges: Annotated[str | None, typer.Option(help="Judge models, separated by commas: each is compared.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each reward.")] = 5,
    margin: Annotated[float, typer.Option(min=1e-6, max=1, help="Differences of success that do not matter.")] = 0.03,
    threshold: Annotated[float, typer.Option(min=0, max=1, help="Success that 'steps to' counts to.")] = THRESHOLD,
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

    register_likelihood()
    if blind_rubric is not None and blind_judge is None:
        raise GavelError("--blind-rubric is for a judge that ranks.", "Name it: --blind-judge openai/gpt-5-mini.")
    typed, named = typed_options(context), names_in(judges or "")
    runs = [find_run(each) for each in what]
    if len(what) > 1:
        if dry_run and blind_judge:
            raise GavelError("--dry-run does not estimate the ranking of existing runs.", "Bound it: --max-cost 1.")
        of_judge = {flag.name for flag in _JUDGE_FLAGS if flag.name != "--rubric"} if blind_judge else set[str]()
        _check_read(typed, _OF_RUNS | of_judge, "these runs are made already")
        return _runs(what, runs, values, out, blind_judge, blind_rubric, margin=margin, threshold=threshold)
    if runs[0] is not None or (what[0] and Path(what[0]).exists() and not what[0].endswith((".py", ".toml"))):
        if not named:
            raise GavelError(
                f"{what[0]} is one run or file: what it is to be compared with is not said.",
                "Name a second run, or judges: --judges openai/gpt-5-mini,stand-in.",
            )
        _check_read(typed, _OF_JUDGES, "judges are compared on what is stored, and nothing is trained")
        place = out or runs_root() / "compare" / "judges" / Path(what[0]).name
        return run_to_end(compare_judges(what[0], runs[0], named, values, place, dry_run=dry_run))
    _check_read(typed, {*typed} - {"--out"}, "the report stands beside the runs (GAVEL_RUNS says where)")
    need_extra("train", "gavel compare")
    config = run_config(what[0], values, assignments, flags=_FLAGS, base=demo_tables(what[0]))
    check_model(config, config, scenario_named(config.scenario))
    asked = names_in(rewards)
    if any("judge" in name for name in asked):
        announce_stand_in([model_id(name) for name in named or [str(config.judge.models)]])
    planned = config, asked, named, seeds, None if blind_judge is None else (blind_judge, blind_rubric)
    if dry_run:
        return print_comparison_estimate(*planned)
    run_to_end(train_and_print(*planned, parallel=parallel, margin=margin, threshold=threshold), RESUME)


def _check_read(typed: Sequence[str], read: set[str], why: str) -> None:
    """Raises `GavelError` for an option that would have no effect."""
    if unread := [name for name in typed if name not in read]:
        raise GavelError(f"{', '.join(unread)}: no effect here, because {why}.", "Leave it out.")


def _runs(
    what: Sequence[str],
    runs: Sequence[Path | None],
    values: Mapping[str, Any],
    out: Path | None,
    blind_judge: str | None,
    blind_rubric: str | None,
    **bounds: float,
) -> None:
    if missing := [each for each, run in zip(what, runs, strict=True) if run is None]:
        raise GavelError(f"{missing[0]} is no run.", "Name runs as `gavel runs` lists them, or one scenario.")
    need_extra("train", "gavel compare")
    found = [run.resolve() for run in runs if run is not None]
    if len({*found}) < len(what):
        raise GavelError("a run is compared with itself.", "Name two runs.")
    directories = dict(zip(_called(what, found), found, strict=True))
    called = "-".join("-".join(run.parts[-2:]) for run in found)
    place = out or runs_root() / "compare" / "runs" / called[:200]
    comparison = compare_runs(directories, place, **bounds)
    if blind_judge is None:
        return print_comparison(comparison)
    scenario = next(filter(None, map(scenario_of, directories.values())), None)
    rubric = blind_rubric or (scenario.rubric if scenario else None)
    settings = judge_config({**values, "judge": blind_judge})
    judge = judge_that_ranks(settings, blind_judge, rubric, place, values.get("mode") or "pairwise")
    if scenario:
        check_stand_in(judge, scenario)
    run_to_end(rank_and_print(comparison, judge))


def _called(typed: Sequence[str], runs: Sequence[Path]) -> list[str]:
    """The runs' names as typed, or, for paths, the shortest ends that tell them apart."""
    if all(len(Path(each).parts) <= 2 for each in typed):
        return list(typed)
    ends = (
        ["/".join(run.parts[-count:]) for run in runs] for count in range(1, max(len(run.parts) for run in runs) + 1)
    )
    return next(names for names in ends if len({*names}) == len(names))


async def train_and_print(
    config: RunConfig,
    rewards: Sequence[str],
    judges: Sequence[str],
    seeds: int,
    blind: tuple[str, str | None] | None,
    *,
    margin: float,
    threshold: float,
    parallel: int | None,
) -> None:
    """Runs the cells with a line for each, then prints the table."""
    console, at_once = Console(), parallel or cores()
    scenario, root, cells, ranks = _plan_cells(config, rewards, judges, seeds, blind)
    finished = sum(cell.finished() for cell in cells)
    again = f" · {finished} finished before" if finished else ""
    say(
        console,
        f"Gavel compare · {scenario.name} · trains {config.model.base_model} in {counted(len(cells), 'run')} of "
        f"{counted(config.loop.steps, 'step')}, {at_once} at once{again}{_judged_by(cells)}",
    )
    numbers = itertools.count(1)

    def done(cell: Cell, ran: bool) -> None:
        number = next(numbers)
        if ran:
            say(console, f"{number}/{len(cells)}  {cell.label} done")

    comparison = await run_comparison(
        cells,
        scenario,
        root,
        margin=margin,
        threshold=threshold,
        parallel=at_once,
        done=done,
        blind=ranks,
        display=WaitDisplay(console),
    )
    print_comparison(comparison)


def _judged_by(cells: Sequence[Cell]) -> str:
    """A line that names the judge models and how their cost is seen and bounded before."""
    runs = [cell.config for cell in cells if "judge" in cell.config.loop.reward]
    judges = [config.judge.build() for config in runs]
    names = dict.fromkeys(name for judge in judges for name in judge.names)
    if not names:
        return ""
    paid = any(judge.asks_servers for judge in judges)
    told = " (--dry-run tells what they take, --max-cost bounds each run)" if paid else ""
    return f" · {counted(len(runs), 'run')} judged by {', '.join(names)}{told}"


def _plan_cells(
    config: RunConfig, rewards: Sequence[str], judges: Sequence[str], seeds: int, blind: tuple[str, str | None] | None
) -> tuple[Scenario, Path, list[Cell], Judge | None]:
    """The scenario, where its runs are kept, the runs, and the judge that ranks; `blind`: its model and rubric."""
    scenario = scenario_named(config.scenario)
    root = runs_root() / "compare"
    cells = plan_cells(config, scenario, root, rewards, judges, seeds)
    ranks = None
    if blind is not None:
        ranks = judge_that_ranks(config.judge, blind[0], blind[1] or scenario.rubric, folder_of(scenario, root))
    return scenario, root, cells, ranks


def print_comparison_estimate(
    config: RunConfig, rewards: Sequence[str], judges: Sequence[str], seeds: int, blind: tuple[str, str | None] | None
) -> None:
    """Checks every run that is missing as `gavel train` does, then prints an estimate for each arm and the ranking."""
    scenario, root, cells, ranks = _plan_cells(config, rewards, judges, seeds, blind)
    check_cells(cells, scenario, folder_of(scenario, root), ranks)
    arms: dict[str, tuple[Judge | None, int]] = {}
    resolved = cells[0].config.resolved()
    for cell in cells:
        if cell.finished():
            continue
        config = cell.config.resolved()
        judge = None
        if "judge" in config.loop.reward:
            judge = with_cassette(config.judge, cell.directory).build(scenario.rubric)
        check_turn_limits(scenario, config.loop.turn_limits)
        check_run(config, scenario, judge, root)
        first, runs = arms.get(cell.arm, (judge, 0))
        arms[cell.arm] = first, runs + 1
    loop, fewer = with_tasks_there_are(resolved.loop, scenario)
    estimates = [(f"{arm}: {counted(runs, 'run')}", judge, loop, runs) for arm, (judge, runs) in arms.items()]
    if ranks is not None:
        tasks = len(scenario.sample("held_out", loop.final_tasks, seed=loop.seed))
        members = 1 + len({cell.arm for cell in cells})  # and the attempt before training
        ranking = {"steps": 1, "tasks_per_step": tasks, "group_size": members, "refill": 0}
        estimates.append((f"blind ranking, {counted(seeds, 'seed')}", ranks, loop.model_copy(update=ranking), seeds))
    if not arms:
        typer.echo(f"All {counted(len(cells), 'run')} are finished.")
    lengths = read_seen_lengths(scenario, resolved.backend.max_context)
    print_run_estimates(estimates, lengths, fewer if arms else "")


async def rank_and_print(comparison: Comparison, judge: Judge) -> None:
    """Ranks the attempts of runs that exist, then prints the table."""
    await judge.probe(replayed=False)
    print_comparison(await rank_runs(comparison, judge, WaitDisplay(Console())))


def print_comparison(comparison: Comparison) -> None:
    """The statements about judge and hand (all, where these are not compared), the table, and the report's path."""
    console = Console()
    chosen = {name: each for name, each in comparison.paired.items() if name == "judge - hand"} or comparison.paired
    for name, difference in chosen.items():
        say(console, statement(name, difference))
    steps = f"steps to {comparison.threshold:.2f}"
    rows = [
        (
            arm.name,
            with_interval(arm.final),
            steps_text(arm),
            signed(arm.hacking_gap.value),
            cost_text(arm),
            duration(arm.seconds),
        )
        for arm in comparison.arms
    ]
    print_figures(console, ("", "held-out success", steps, "reward's gap to success", "cost, USD", "time"), rows)
    if comparison.before:
        named = {"before training": comparison.before, **{arm.name: arm.measures for arm in comparison.arms}}
        measures = [
            (label, *(with_interval(found[name]) if name in found else "–" for name in comparison.before))
            for label, found in named.items()
        ]
        print_figures(console, ("held-out attempts", *(name.replace("_", " ") for name in comparison.before)), measures)
    for arm in comparison.arms:
        if any(cell.alarms for cell in arm.cells):
            say(console, f"Alarms, trained on {arm.name}: {alarms_text(arm)}")
    if (blind := comparison.blind) is not None:
        rates = {name: [blind.beats(name, other) for other in blind.contenders] for name in blind.contenders}
        wins = [
            (name, blind.overall[name].text, *("–" if rate is None else rate.text for rate in of_name))
            for name, of_name in rates.items()
        ]
        print_figures(console, ("wins, ranked blind", "against all", *blind.contenders), wins)
        told = f"Ranked blind by {', '.join(blind.judges)} in {counted(blind.tasks, 'group')} of held-out attempts"
        say(console, f"{', '.join(filter(None, (told, blind.unscored_text, blind.cost)))}; a tie is half a win.")
    if comparison.caveat:
        say(console, comparison.caveat, "yellow")
    say(console, f"Report: {comparison.directory / 'report.html'}")


_REFERENCES = ("success", "reward/hand", "hand_reward", "independent_reward")


async def compare_judges(
    what: str,
    run: Path | None,
    judges: Sequence[str],
    values: Mapping[str, Any],
    out: Path,
    *,
    dry_run: bool,
) -> None:
    """Scores all groups of a run or file with every judge; prints and writes Kendall's tau within groups, unscored
    members and cost.

    `dry_run`: prints what each judge would take instead, and asks nothing.
    """
    if len(set(judges)) < len(judges):
        raise GavelError("a judge is named twice.", "Name each judge once.")
    groups = [group for _, group in stored_groups(run, "train")] if run else read_attempts(Path(what))
    if not groups:
        raise GavelError("there are no groups to judge.", "Name a run that has made a step, or a file of trajectories.")
    scenario = scenario_of(run) if run else None
    rubric = scenario.rubric if scenario else None
    if model_id(STAND_IN) in map(model_id, judges):
        rubric_read = judge_config({**values, "judge": STAND_IN}).build(rubric).rubric
        check_readable(rubric_read, [truth_of(group) for group in groups])
    configs = {name: with_cassette(judge_config({**values, "judge": name}), out) for name in judges}
    if dry_run:
        built = {name: config.build(rubric, cassette=recorded(config)) for name, config in configs.items()}
        with defer_missing_key(built.values()):
            for name, judge in built.items():
                estimate = await estimate_groups(judge, groups)
                typer.echo(f"{name}: {counted(len(groups), 'group')}: {estimate.words}. Nothing was asked.")
        return
    console = Console()
    known: dict[str, list[list[float | None]]] = {}
    costs: dict[str, str] = {}
    for name, config in configs.items():
        judge = config.build(rubric)
        await judge.probe(replayed=False)
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                made = [tasks.create_task(judge.score(group)) for group in groups]
        known[name] = [_scores(task.result()) for task in made]
        costs[name] = str(judge.budget.cost) if judge.asks_servers else "0.00 USD"
        close_replies(console, judge)
    for name in _REFERENCES:
        if any(name in member.metrics for group in groups for member in group):
            known[name] = [[member.metrics.get(name) for member in group] for group in groups]
    rows: list[dict[str, Any]] = []
    lines: list[tuple[str, ...]] = []
    references = [name for name in known if name not in judges]
    for name in judges:
        unscored = sum(scores.count(None) for scores in known[name])
        for reference in [*references, *(other for other in judges if other != name)]:
            pairs = list(map(_pairs, known[name], known[reference]))
            tau = agreement_of_pairs(pairs, reference).tau
            figures = {"tau": tau.value, "low": tau.low, "high": tau.high, "groups": tau.groups}
            rows.append({"judge": name, "reference": reference, **figures, "unscored": unscored, "cost": costs[name]})
            no_width = tau.low is None or tau.low == tau.high or tau.groups < MIN_GROUPS
            interval = "" if no_width else f" ({tau.low:+.2f} to {tau.high:+.2f})"
            told = "–" if tau.value is None else f"{tau.value:+.2f}{interval}"
            lines.append((name, reference, told, str(tau.groups), str(unscored), costs[name]))
    write_page(out / "judges.json", json.dumps(rows, indent=1) + "\n")
    print_table(console, ("judge", "against", "tau within groups", "groups", "unscored", "cost"), lines)
    if not rows:
        say(console, "Nothing is known of these trajectories to compare one judge with: name a second judge.")
    say(console, f"Figures: {out / 'judges.json'}")


def _scores(group: TrajectoryGroup) -> list[float | None]:
    return [member.judgement.score if member.judgement else None for member in group]


def _pairs(scores: Sequence[float | None], values: Sequence[float | None]) -> list[tuple[float, float]]:
    """The pairs of the members that have both values."""
    both = zip(scores, values, strict=True)
    return [(score, float(value)) for score, value in both if score is not None and value is not None]


app = single_command(with_options(compare, RunConfig, _FLAGS))
