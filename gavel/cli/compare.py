"""`gavel compare`: rewards compared by training on each, or existing runs.

Each of the two reads options of its own; one that it does not read is refused.
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from gavel.base.errors import GavelError
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
from gavel.cli.named import find_run, names_in, scenario_named, scenario_of
from gavel.cli.options import (
    ENGINE_FLAGS,
    RUN_JUDGE_FLAGS,
    Assignments,
    DryRun,
    Flag,
    announce_stand_in,
    check_model,
    check_stand_in,
    judge_config,
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
    run_to_end,
    say,
)
from gavel.cli.training import (
    check_run,
    print_run_estimates,
    read_seen_lengths,
    with_tasks_there_are,
)
from gavel.judge.judge import Judge
from gavel.llm.providers import model_id
from gavel.reports.comparison import Comparison, alarms_text, cost_text, signed, statement, steps_text
from gavel.reports.statistics import with_interval
from gavel.scenarios.scenario import Scenario
from gavel.trainer.loop.watchdog import check_turn_limits
from gavel.trainer.run_config import RunConfig
from gavel.trainer.runs.run_directory import runs_root

_OF_CELLS = ("--judge", "--seed")
"""Set by the comparison itself."""
_JUDGE_FLAGS = [flag for flag in RUN_JUDGE_FLAGS if flag.name not in _OF_CELLS]
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
    *_JUDGE_FLAGS,
]
_OF_RUNS = {"--margin", "--threshold", "--out", "--blind-judge", "--blind-rubric"}


def compare(
    what: Annotated[
        list[str],
        typer.Argument(metavar="SCENARIO | RUN RUN…", help="A scenario, or runs."),
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
    out: Annotated[Path | None, typer.Option(help="Directory of the report, for existing runs.")] = None,
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
    compares existing runs.
    """

    register_likelihood()
    if blind_rubric is not None and blind_judge is None:
        raise GavelError("--blind-rubric is for a judge that ranks.", "Name it: --blind-judge openai/gpt-5-mini.")
    typed, named = typed_options(context), names_in(judges or "")
    if len(what) > 1:
        if dry_run and blind_judge:
            raise GavelError("--dry-run does not estimate the ranking of existing runs.", "Bound it: --max-cost 1.")
        of_judge = {flag.name for flag in _JUDGE_FLAGS if flag.name != "--rubric"} if blind_judge else set[str]()
        _check_read(typed, _OF_RUNS | of_judge, "these runs are made already")
        return _compare_runs(what, values, out, blind_judge, blind_rubric, margin=margin, threshold=threshold)
    if find_run(what[0]) is not None or (Path(what[0]).exists() and not what[0].endswith((".py", ".toml"))):
        raise GavelError(
            f"{what[0]} is one run or file: what it is to be compared with is not said.",
            f"Name a second run. Judges are compared by gavel score {what[0]} --judge A,B --out judged.jsonl and "
            "gavel judge report judged.jsonl.",
        )
    _check_read(typed, {*typed} - {"--out"}, "the report stands beside the runs (GAVEL_RUNS says where)")
    need_extra("train", "gavel compare")
    config = run_config(what[0], values, assignments, flags=_FLAGS, base=demo_tables(what[0]))
    scenario, root = scenario_named(config.scenario), runs_root() / "compare"
    check_model(config, config, scenario)
    asked = names_in(rewards)
    if any("judge" in name for name in asked):
        announce_stand_in([model_id(name) for name in named or [str(config.judge.models)]])
    cells, ranks = plan_cells(config, scenario, root, asked, named, seeds), None
    if blind_judge is not None:
        ranks = judge_that_ranks(config.judge, blind_judge, blind_rubric or scenario.rubric, folder_of(scenario, root))
    if dry_run:
        return print_comparison_estimate(cells, scenario, root, ranks)
    bounds = {"margin": margin, "threshold": threshold}
    run_to_end(train_and_print(cells, scenario, root, ranks, parallel=parallel or cores(), **bounds), RESUME)


def _check_read(typed: Sequence[str], read: set[str], why: str) -> None:
    """Raises `GavelError` for an option that would have no effect."""
    if unread := [name for name in typed if name not in read]:
        raise GavelError(f"{', '.join(unread)}: no effect here, because {why}.", "Leave it out.")


def _compare_runs(
    what: Sequence[str],
    values: Mapping[str, Any],
    out: Path | None,
    blind_judge: str | None,
    blind_rubric: str | None,
    **bounds: float,
) -> None:
    found: list[Path] = []
    for each in what:
        if (run := find_run(each)) is None:
            raise GavelError(f"{each} is no run.", "Name runs as `gavel runs` lists them, or one scenario.")
        found.append(run.resolve())
    need_extra("train", "gavel compare")
    if len({*found}) < len(what):
        raise GavelError("a run is compared with itself.", "Name two runs.")
    names = ["/".join(run.parts[-2:]) for run in found]
    place = out or runs_root() / "compare" / "runs" / "-".join(names).replace("/", "-")[:200]
    alike = len({*names}) < len(names)  # in different directories of runs
    directories = dict(zip(map(str, found) if alike else names, found, strict=True))
    comparison = compare_runs(directories, place, **bounds)
    if blind_judge is None:
        return print_comparison(comparison)
    scenario = next(filter(None, map(scenario_of, found)), None)
    rubric = blind_rubric or (scenario.rubric if scenario else None)
    settings = judge_config({**values, "judge": blind_judge})
    judge = judge_that_ranks(settings, blind_judge, rubric, place, values.get("mode") or "pairwise")
    if scenario:
        check_stand_in(judge, scenario)
    run_to_end(rank_and_print(comparison, judge))


async def train_and_print(
    cells: Sequence[Cell],
    scenario: Scenario,
    root: Path,
    blind: Judge | None,
    *,
    parallel: int,
    margin: float,
    threshold: float,
) -> None:
    """Runs the cells with a line for each, then prints the table."""
    console, config = Console(), cells[0].config
    finished = sum(cell.finished() for cell in cells)
    again = f" · {finished} finished before" if finished else ""
    say(
        console,
        f"Gavel compare · {scenario.name} · trains {config.model.base_model} in {counted(len(cells), 'run')} of "
        f"{counted(config.loop.steps, 'step')}, {parallel} at once{again}{_judged_by(cells)}",
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
        parallel=parallel,
        done=done,
        blind=blind,
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


def print_comparison_estimate(cells: Sequence[Cell], scenario: Scenario, root: Path, ranks: Judge | None) -> None:
    """Checks every run that is missing as `gavel train` does, then prints an estimate for each arm and the ranking."""
    check_cells(cells, scenario, folder_of(scenario, root), ranks)
    arms: dict[str, tuple[Judge | None, int]] = {}
    loop, fewer = with_tasks_there_are(cells[0].config.resolved().loop, scenario)
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
    estimates = [(f"{arm}: {counted(runs, 'run')}", judge, loop, runs) for arm, (judge, runs) in arms.items()]
    if ranks is not None:
        seeds = len({cell.seed for cell in cells})
        tasks = len(scenario.sample("held_out", loop.final_tasks, seed=loop.seed))
        members = 1 + len({cell.arm for cell in cells})  # and the attempt before training
        ranking = {"steps": 1, "tasks_per_step": tasks, "group_size": members, "refill": 0}
        estimates.append((f"blind ranking, {counted(seeds, 'seed')}", ranks, loop.model_copy(update=ranking), seeds))
    if not arms:
        typer.echo(f"All {counted(len(cells), 'run')} are finished.")
    lengths = read_seen_lengths(scenario, cells[0].config.backend.max_context)
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


app = single_command(with_options(compare, RunConfig, _FLAGS))
