"""`gavel compare` and `gavel.compare`: rewards compared by training on each.

    comparison = await gavel.compare("returns_desk", rewards=["judge", "hand"], seeds=3, steps=20)
    comparison.paired["judge - hand"].verdict

A cell is the run of one reward and seed: a `gavel train` process, a few at a time. It is finished when its last
evaluation is on disk, and is then not run again; one that was killed goes on after its last finished step.
"""

import asyncio
import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console

from gavel.base.errors import GavelError, first_error
from gavel.base.extras import need_extra
from gavel.base.text import counted, duration
from gavel.cli.demo import DESKS, ONE_SENTENCE
from gavel.cli.interrupts import RESUME, run_interruptibly, run_to_end
from gavel.cli.named import names_in, scenario_named
from gavel.cli.options import (
    STAND_IN,
    Assignments,
    DryRun,
    Flag,
    announce_stand_in,
    check_model,
    check_stand_in,
    default_judge,
    run_config,
    run_flags,
    settings_command,
    with_cassette,
    with_default_judge,
)
from gavel.cli.run_file import Table, paths_seen_from, to_toml
from gavel.cli.terminal import print_table, say, show_progress
from gavel.cli.training import (
    check_begun,
    check_run,
    print_run_estimates,
    read_seen_lengths,
    run_gavel,
    trainable,
    with_tasks_there_are,
)
from gavel.judge.judge import Judge
from gavel.llm.providers import model_id
from gavel.reports.comparison import CellFigures, Comparison, compare_cells, read_cell, statement, write_comparison
from gavel.reports.page import write_file
from gavel.reports.run_figures import read_run
from gavel.scenarios.scenario import Scenario
from gavel.trainer.config import RewardName
from gavel.trainer.loop.group_maker import check_rewards
from gavel.trainer.loop.watchdog import check_turn_limits
from gavel.trainer.model_spec import describe_model
from gavel.trainer.run_config import RunConfig
from gavel.trainer.runs.run_directory import RunDirectoryError, check_description, run_path, runs_root

REWARDS = get_args(RewardName)
THRESHOLD = 0.8
_FLAGS = [
    Flag("loop.steps", "--steps", 30),
    *run_flags("--model", "--tasks", "--group-size", "--evaluation-tasks", "--final-tasks", "--evaluate-every"),
    *run_flags("--learning-rate", "engine", without="--seed"),
    *run_flags("judge", without="--judge"),
]
_TAIL = 6
"""Lines of a failed run's log that are shown."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a comparison."""

    arm: str
    seed: int
    config: RunConfig
    directory: Path

    @property
    def label(self) -> str:
        return f"{self.arm}, seed {self.seed}"

    def finished(self) -> bool:
        if not (self.directory / "model.json").is_file():
            return False
        steps = self.config.loop.steps
        splits = {row["split"] for row in read_run(self.directory).rows if row["step"] == steps}
        return {"train", "held_out"} <= splits

    def judge(self, scenario: Scenario) -> Judge | None:
        """The judge of its reward, if that has one."""
        config = self.config.resolved()
        named = with_cassette(config.judge, self.directory)
        return named.build(scenario.rubric) if "judge" in config.loop.reward else None

    async def train(self, root: Path) -> None:
        """Runs it in a process of one thread. Raises `GavelError` with the end of its log when that fails."""
        file = self.directory.parent / "cells" / f"{self.directory.name}.toml"
        config = paths_seen_from(self.config.resolved(), file.parent)
        write_file(file, to_toml(config, config))  # what follows from others is given, too
        log = file.with_suffix(".log")
        with log.open("wb") as output:
            environment = {"GAVEL_RUNS": str(root), "OMP_NUM_THREADS": "1"}
            async with run_gavel("train", str(file), stdout=output, stderr=output, **environment) as process:
                status = await process.wait()
        if status:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-_TAIL:]
            raise GavelError(
                f"the run {self.label} ended with status {status}: " + " ".join(line.strip() for line in lines),
                f"Mend it, and run the same command again: it goes on. Its whole log: {log}",
            )
        if not self.finished():
            raise GavelError(
                f"the run {self.label} ended without a last evaluation on held-out tasks.",
                "Rewards are compared by success on held-out tasks: give the scenario tasks of the split held_out, and "
                "a success.",
            )


def compare_command(
    source: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="A shipped scenario, file.py[:variable], or run.toml.")
    ],
    values: Mapping[str, Any],
    assignments: Assignments = None,
    rewards: Annotated[str, typer.Option(help="judge, hand, success, constant, or judge+hand.")] = ",".join(REWARDS),
    judges: Annotated[str | None, typer.Option(help="Judge models, separated by commas: each is compared.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each reward.")] = 5,
    margin: Annotated[float, typer.Option(min=1e-6, max=1, help="Differences of success that do not matter.")] = 0.03,
    threshold: Annotated[float, typer.Option(min=0, max=1, help="Success that 'steps to' counts to.")] = THRESHOLD,
    parallel: Annotated[int | None, typer.Option(min=1, help="Runs at once. Default: one for each core.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Compare rewards by training on each: the judge's, a hand-written one, true success, a constant.

    The same tasks, seeds and settings for all; finished runs are not repeated, so the same command goes on.
    """
    need_extra("train", "gavel compare")
    config = run_config(source, values, assignments, flags=_FLAGS, base=demo_tables(source))
    scenario, root = scenario_named(config.scenario), runs_root() / "compare"
    check_model(config.model, scenario)
    asked, named = names_in(rewards), names_in(judges or "")
    if any("judge" in name for name in asked):
        announce_stand_in([model_id(name) for name in named or [str(config.judge.models)]])
    cells = plan_cells(config, scenario, root, asked, named, seeds)
    if dry_run:
        return print_estimate(cells, scenario, root)
    parallel = parallel or cores()
    console, config = Console(), cells[0].config
    finished = sum(cell.finished() for cell in cells)
    again = f" · {finished} finished before" if finished else ""
    of_cells = [judge for cell in cells if (judge := cell.judge(scenario)) is not None]
    names = dict.fromkeys(name for judge in of_cells for name in judge.names)
    paid = any(judge.asks_servers for judge in of_cells)
    bounded = " (--dry-run tells what they take, --max-cost bounds each run)" if paid else ""
    judged = f" · {counted(len(of_cells), 'run')} judged by {', '.join(names)}{bounded}" if names else ""
    say(
        console,
        f"Gavel compare · {scenario.name} · trains {config.model.base_model} in {counted(len(cells), 'run')} of "
        f"{counted(config.loop.steps, 'step')}, {parallel} at once{again}{judged}",
    )

    async def train_all() -> None:
        numbers = itertools.count(finished + 1)
        with show_progress(console, "training", len(cells) - finished, "runs") as advance:

            def trained(cell: Cell) -> None:
                say(console, f"{next(numbers)}/{len(cells)}  {cell.label} done")
                advance()

            bounds = {"margin": margin, "threshold": threshold, "parallel": parallel}
            comparison = await run_comparison(cells, scenario, root, trained=trained, **bounds)
        print_comparison(console, comparison)

    run_to_end(train_all(), RESUME)


def print_estimate(cells: Sequence[Cell], scenario: Scenario, root: Path) -> None:
    """Checks every run that is missing as `gavel train` does, then prints an estimate for each arm."""
    check_cells(cells, scenario, folder_of(scenario, root))
    arms: dict[str, list[Cell]] = {}
    for cell in cells:
        if not cell.finished():
            config = cell.config.resolved()
            check_turn_limits(scenario, config.loop.turn_limits)
            check_run(config, scenario, root)
            arms.setdefault(cell.arm, []).append(cell)
    if not arms:
        typer.echo(f"All {counted(len(cells), 'run')} are finished.")
    loop, fewer = with_tasks_there_are(cells[0].config.resolved().loop, scenario)
    estimates = [
        (f"{arm}: {counted(len(runs), 'run')}", runs[0].judge(scenario), loop, len(runs)) for arm, runs in arms.items()
    ]
    lengths = read_seen_lengths(scenario, cells[0].config.backend.max_context)
    run_interruptibly(print_run_estimates(estimates, scenario, lengths, fewer if arms else ""))


def print_comparison(console: Console, comparison: Comparison) -> None:
    """The statements about judge and hand (all, where these are not compared), the table, and the report's path."""
    chosen = {name: each for name, each in comparison.paired.items() if name == "judge - hand"} or comparison.paired
    for name, difference in chosen.items():
        say(console, statement(name, difference))
    steps = f"steps to {comparison.threshold:.2f}"
    rows: list[tuple[str, ...]] = []
    for arm in comparison.arms:
        gap = "–" if (value := arm.figures["hacking_gap"].value) is None else f"{value:+.2f}"
        final = arm.figures["final"].text()
        rows.append((arm.name, final, arm.steps_text, gap, arm.cost_text, duration(arm.seconds)))
    figures = ("held-out success", steps, "reward's gap to success", "cost, USD", "time")
    print_table(console, ("", *figures), rows, right=figures)
    for arm in comparison.arms:
        if any(cell.alarms for cell in arm.runs):
            say(console, f"Alarms, trained on {arm.name}: {arm.alarms_text}")
    for line in comparison.damage:
        say(console, line, "yellow")
    say(console, f"Report: {comparison.directory / 'report.html'}")


async def compare(
    scenario: str,
    *,
    rewards: Sequence[str] = REWARDS,
    judges: Sequence[str] = (),
    seeds: int = 5,
    steps: int | None = None,
    margin: float = 0.03,
    threshold: float = THRESHOLD,
    parallel: int | None = None,
    runs: str | Path | None = None,
    settings: RunConfig | None = None,
) -> Comparison:
    """Trains on each reward with the same tasks, seeds and settings, and compares success on held-out tasks.

    `scenario`: a shipped one, file.py or file.py:variable. `rewards`: judge, hand, success, constant, and sums of these
    such as judge+hand. `judges`: each is an arm of its own for every reward with the judge. `margin`: differences
    of success below it do not matter. `parallel`: runs at once, by default one for each core. `settings`: of every
    run; its reward, seed and name are those of the comparison.

    Finished runs are not repeated. Writes report.html, comparison.csv and comparison.json to runs/compare/<scenario>.
    Raises `GavelError` when a run fails.
    """
    world, base = scenario_named(scenario), settings or settings_of(scenario)
    if steps is not None:
        base = base.model_copy(update={"loop": base.loop.model_copy(update={"steps": steps})})
    root = runs_root(runs) / "compare"
    cells = plan_cells(base, world, root, rewards, judges, seeds)
    bounds = {"margin": margin, "threshold": threshold, "parallel": parallel or cores()}
    return await run_comparison(cells, world, root, **bounds)


def demo_tables(scenario: str) -> Table:
    """Settings of a comparison where nothing else is set: the demo's where it has the job."""
    job = next((job for job in (*DESKS.values(), ONE_SENTENCE) if job.scenario == scenario), None)
    if job is None:
        return {"loop": {"steps": 30}}
    own_judge = job.judge != STAND_IN and default_judge() == STAND_IN  # that of the environment is used before it
    return {**job.settings, "judge": {"models": job.judge} if own_judge else {}}


def settings_of(scenario: str) -> RunConfig:
    """The run that `demo_tables` describes."""
    return RunConfig.model_validate({"scenario": scenario, **demo_tables(scenario)})


def read_rewards(text: str) -> dict[RewardName, float]:
    """`judge+hand` as equal weights. Raises `GavelError` for a name that is none."""
    names = [name.strip() for name in text.split("+")]
    for name in names:
        if name not in REWARDS or names.count(name) > 1:
            raise GavelError(
                f"there is no reward {name!r}, or {text} names it twice.",
                f"Rewards: {', '.join(REWARDS)}, and sums: judge+hand.",
            )
    return dict.fromkeys(names, 1.0)  # pyright: ignore[reportReturnType]


def plan_cells(
    base: RunConfig, scenario: Scenario, root: Path, rewards: Sequence[str], judges: Sequence[str], seeds: int
) -> list[Cell]:
    """Seed by seed, so that an unfinished comparison has whole pairs. Raises `GavelError`.

    A cell's name has the number of steps, because the learning rate's schedule depends on it.
    """
    if seeds < 1 or not rewards:
        raise GavelError("there is nothing to compare.", "Give --seeds 1 or more, and --rewards judge,hand.")
    if scenario.success is None:
        raise GavelError(
            f"{scenario.name} has no success, by which rewards are compared.", "Pass success=… to its gavel.Scenario."
        )
    arms: dict[str, dict[str, Any]] = {}
    for text in rewards:
        weights = read_rewards(text)
        check_rewards(scenario, weights)
        named = judges if "judge" in weights else ()
        for judge in named or [None]:
            label = f"{text} ({judge})" if len(named) > 1 else text
            if label in arms:
                raise GavelError(f"{label} is named twice.", "Name each reward and each judge once.")
            models = {} if judge is None else {"models": judge}
            arms[label] = {"reward": weights, "judge": with_default_judge(base.judge).model_copy(update=models)}
    cells: list[Cell] = []
    for seed, (label, arm) in itertools.product(range(seeds), arms.items()):
        slug = re.sub(r"[^\w.+-]+", "-", label).strip("-").lower()
        name = f"{slug}-{base.loop.steps}-steps-seed-{seed}"
        loop = base.loop.model_copy(update={"seed": seed, "reward": arm["reward"]})
        model = base.model.model_copy(update={"name": name})
        config = base.model_copy(update={"model": model, "loop": loop, "judge": arm["judge"]})
        cells.append(Cell(label, seed, config, run_path(root, scenario.name, name)))
    return cells


async def run_comparison(
    cells: Sequence[Cell],
    scenario: Scenario,
    root: Path,
    *,
    margin: float,
    threshold: float,
    parallel: int,
    trained: Callable[[Cell], None] = lambda cell: None,
) -> Comparison:
    """Runs what is missing, at most `parallel` at a time, and writes the report, also after every cell.

    Raises the `GavelError` of the first that fails; the others are then stopped after their step.
    """
    folder, limiter = folder_of(scenario, root), asyncio.Semaphore(parallel)
    check_cells(cells, scenario, folder)
    figures: dict[str, CellFigures] = {}

    def comparison() -> Comparison:
        known = [figures[cell.label] for cell in cells if cell.label in figures]
        found = compare_cells(known, scenario.name, folder, margin=margin, threshold=threshold)
        write_comparison(found)
        return found

    async def run(cell: Cell) -> None:
        async with limiter:
            if ran := not cell.finished():
                await cell.train(root)
            figures[cell.label] = read_cell(cell.arm, cell.seed, cell.directory, scenario, last=cell.config.loop.steps)
            if ran:
                trained(cell)
                comparison()

    with first_error():
        async with asyncio.TaskGroup() as tasks:
            for cell in cells:
                tasks.create_task(run(cell))
    return comparison()


def check_cells(cells: Sequence[Cell], scenario: Scenario, folder: Path) -> None:
    """Raises `GavelError` where a run was begun as another experiment, or the stand-in does not read a rubric."""
    for cell in cells:
        config, judge = cell.config.resolved(), cell.judge(scenario)
        if judge is not None:
            check_stand_in(judge, scenario)
        if not (cell.directory / "model.json").is_file():
            continue
        try:
            check_begun(config, scenario, judge, cell.directory)
            check_description(cell.directory, describe_model(trainable(config, scenario.name)), "model.json")
        except RunDirectoryError as error:
            raise GavelError(
                error.message, f"Compare with those, delete {folder}, or choose another place: GAVEL_RUNS=…"
            ) from error


def folder_of(scenario: Scenario, root: Path) -> Path:
    """The directory of the comparison's report, beside its runs."""
    return run_path(root, scenario.name, "x").parent


def cores() -> int:
    """The number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


app = settings_command(compare_command, RunConfig, _FLAGS)
