"""The progress and the table of a comparison in the terminal."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import typer
from rich.console import Console

from gavel.base.text import counted
from gavel.cli.cassette_option import with_cassette
from gavel.cli.compare_blind import blind_judge
from gavel.cli.compare_cells import Cell
from gavel.cli.compare_progress import StepCount
from gavel.cli.compare_session import check_cells, cores, folder_of, plan_cells, rank_runs, run_comparison
from gavel.cli.dry_run import check_run, print_run_estimates, seen_lengths
from gavel.cli.figure_table import print_figures
from gavel.cli.named_scenario import scenario_named
from gavel.cli.terminal import plain
from gavel.cli.wait_display import WaitDisplay
from gavel.judge.judge import Judge
from gavel.reports.blind_ranking import BlindRanking
from gavel.reports.comparison import Comparison, alarms_text, cost_text, signed, statement, steps_text
from gavel.reports.demo_page import duration
from gavel.reports.statistics import with_interval
from gavel.scenarios.scenario import Scenario
from gavel.trainer.config import LoopConfig
from gavel.trainer.loop.watchdog import check_turn_limits
from gavel.trainer.run_config import RunConfig
from gavel.trainer.runs.run_directory import runs_root

Blind = tuple[str, str | None]
"""Model and rubric of the judge that ranks."""


async def train_and_print(
    config: RunConfig,
    rewards: Sequence[str],
    judges: Sequence[str],
    seeds: int,
    *,
    margin: float,
    threshold: float,
    parallel: int | None,
    blind: Blind | None = None,
) -> None:
    """Runs the cells with a line for each, then prints the table."""
    console = Console()
    scenario, root, cells, ranks = _planned(config, rewards, judges, seeds, blind)
    at_once = parallel or cores()
    finished = sum(cell.finished() for cell in cells)
    again = f" · {finished} finished before" if finished else ""
    console.print(
        plain(
            f"Gavel compare · {scenario.name} · trains {config.model.base_model} in {counted(len(cells), 'run')} of "
            f"{counted(config.loop.steps, 'step')}, {at_once} at once{again}{_judged_by(cells)}"
        ),
        soft_wrap=True,
    )
    steps, ended = StepCount(cells, at_once), [0]

    def done(cell: Cell, ran: bool) -> None:
        ended[0] += 1
        if ran:
            console.print(plain(f"{ended[0]}/{len(cells)}  {cell.label} done"), soft_wrap=True)

    display = WaitDisplay(console)
    with ExitStack() as training:
        training.enter_context(steps.shown(display))
        comparison = await run_comparison(
            cells,
            scenario,
            root,
            margin=margin,
            threshold=threshold,
            parallel=at_once,
            done=done,
            blind=ranks,
            follower=_After(training, display),
        )
    print_comparison(comparison)


def _judged_by(cells: Sequence[Cell]) -> str:
    """Which models judge, and how their cost is seen and bounded before."""
    runs = [cell.config for cell in cells if "judge" in cell.config.loop.reward]
    judges = [config.judge.build() for config in runs]
    names = dict.fromkeys(name for judge in judges for name in judge.names)
    if not names:
        return ""
    paid = any(judge.asks_servers for judge in judges)
    told = " (--dry-run tells what they take, --max-cost bounds each run)" if paid else ""
    return f" · {counted(len(runs), 'run')} judged by {', '.join(names)}{told}"


def _planned(
    config: RunConfig, rewards: Sequence[str], judges: Sequence[str], seeds: int, blind: Blind | None
) -> tuple[Scenario, Path, list[Cell], Judge | None]:
    """The scenario, where its runs are kept, the runs, and the judge that ranks."""
    scenario = scenario_named(config.scenario)
    root = runs_root() / "compare"
    cells = plan_cells(config, scenario, root, rewards, judges, seeds)
    ranks = None
    if blind is not None:
        ranks = blind_judge(config.judge, blind[0], blind[1] or scenario.rubric, folder_of(scenario, root))
    return scenario, root, cells, ranks


def print_comparison_estimate(
    config: RunConfig, rewards: Sequence[str], judges: Sequence[str], seeds: int, blind: Blind | None
) -> None:
    """Checks every run that is missing as `gavel train` does, then prints an estimate for each arm and the ranking."""
    scenario, root, cells, ranks = _planned(config, rewards, judges, seeds, blind)
    check_cells(cells, scenario, folder_of(scenario, root), ranks)
    arms: dict[str, tuple[Judge | None, RunConfig, list[Cell]]] = {}
    for cell in cells:
        if cell.finished():
            continue
        config = cell.config.resolved()
        judge = None
        if "judge" in config.loop.reward:
            judge = with_cassette(config.judge, cell.directory).build(scenario.rubric)
        check_turn_limits(scenario, config.loop.turn_limits)
        check_run(config, scenario, judge, root)
        arms.setdefault(cell.arm, (judge, config, []))[2].append(cell)
    estimates: list[tuple[str, Judge | None, LoopConfig, int]] = []
    for arm, (judge, config, missing) in arms.items():
        estimates.append((f"{arm}: {counted(len(missing), 'run')}", judge, config.loop, len(missing)))
    if ranks is not None:
        loop = cells[0].config.resolved().loop
        tasks = len(scenario.sample("held_out", loop.final_tasks, seed=loop.seed))
        members = 1 + len({cell.arm for cell in cells})  # and the attempt before training
        ranking = {"steps": 1, "tasks_per_step": tasks, "group_size": members, "refill": 0}
        estimates.append((f"blind ranking, {counted(seeds, 'seed')}", ranks, loop.model_copy(update=ranking), seeds))
    if not arms:
        typer.echo(f"All {counted(len(cells), 'run')} are finished.")
    print_run_estimates(estimates, seen_lengths(scenario, cells[0].config.resolved().backend.max_context))


async def rank_and_print(comparison: Comparison, judge: Judge) -> None:
    """Ranks the attempts of runs that exist, then prints the table."""
    print_comparison(await rank_runs(comparison, judge, WaitDisplay(Console())))


class _After:
    """Shows a wait when what was shown before has ended."""

    def __init__(self, before: ExitStack, display: WaitDisplay) -> None:
        self._before, self._display = before, display

    def waiting(
        self,
        what: str,
        total: int,
        unit: str,
        status: Callable[[], str] = lambda: "",
        left: Callable[[], float | None] | None = None,
    ) -> AbstractContextManager[Callable[[], None]]:
        self._before.close()
        return self._display.waiting(what, total, unit, status, left)


def print_comparison(comparison: Comparison) -> None:
    """The statements about judge and hand (all, where these are not compared), the table, and the report's path."""
    console = Console()
    chosen = {name: each for name, each in comparison.paired.items() if name == "judge - hand"} or comparison.paired
    for name, difference in chosen.items():
        console.print(plain(statement(name, difference)), soft_wrap=True)
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
        _print_measures(console, comparison)
    for arm in comparison.arms:
        if any(cell.alarms for cell in arm.cells):
            console.print(plain(f"Alarms, trained on {arm.name}: {alarms_text(arm)}"), soft_wrap=True)
    if comparison.blind is not None:
        _print_ranking(console, comparison.blind)
        judges = ", ".join(comparison.blind.judges)
        cost = f", {comparison.blind.cost}" if comparison.blind.cost else ""
        unscored = comparison.blind.unscored_text
        console.print(
            plain(
                f"Ranked blind by {judges} in {counted(comparison.blind.tasks, 'group')} of held-out attempts"
                f"{unscored and f', {unscored}'}{cost}; a tie is half a win."
            ),
            soft_wrap=True,
        )
    if comparison.caveat:
        console.print(plain(comparison.caveat, "yellow"), soft_wrap=True)
    report: Path = comparison.directory / "report.html"
    console.print(plain(f"Report: {report}"), soft_wrap=True)


def _print_ranking(console: Console, blind: BlindRanking) -> None:
    """How often the attempts of each row beat those of the others."""
    rows = [
        (
            name,
            blind.overall[name].text,
            *("–" if rate is None else rate.text for rate in (blind.beats(name, other) for other in blind.contenders)),
        )
        for name in blind.contenders
    ]
    print_figures(console, ("wins, ranked blind", "against all", *blind.contenders), rows)


def _print_measures(console: Console, comparison: Comparison) -> None:
    """What held-out attempts are like before training and after it, by reward."""
    named = {"before training": comparison.before, **{arm.name: arm.measures for arm in comparison.arms}}
    rows = [
        (label, *(with_interval(found[name]) if name in found else "–" for name in comparison.before))
        for label, found in named.items()
    ]
    print_figures(console, ("held-out attempts", *(name.replace("_", " ") for name in comparison.before)), rows)
