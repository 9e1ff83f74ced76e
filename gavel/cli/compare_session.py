"""What `gavel compare` and `gavel.compare` do: plan the cells, run them, and write the report.

comparison = await gavel.compare("returns_desk", rewards=["judge", "hand"], seeds=3, steps=20)
comparison.paired["judge - hand"].verdict
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from gavel.cli.compare_cells import Cell, Train, cell_of, run_cells
from gavel.cli.demo_jobs import DESKS, ONE_SENTENCE
from gavel.cli.named_run import scenario_of
from gavel.cli.named_scenario import scenario_named
from gavel.cli.run_options import with_default_judge
from gavel.cli.settings import STAND_IN
from gavel.llm.errors import GavelError
from gavel.reports.compare_page import write_comparison
from gavel.reports.comparison import CellFigures, Comparison, compare_cells, read_cell
from gavel.scenarios.scenario import Scenario
from gavel.trainer.config import RewardName
from gavel.trainer.loop.weighted_reward import check_rewards
from gavel.trainer.run_config import RunConfig
from gavel.trainer.runs.run_directory import run_path, runs_root

REWARDS = ("judge", "hand", "success", "constant")
THRESHOLD = 0.8


async def compare(
    scenario: str | Scenario,
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

    `scenario`: a shipped one, file.py, file.py:variable, or a `gavel.Scenario`, whose runs go one after another in this
    process. `rewards`: judge, hand, success, constant, and sums of
    these such as judge+hand. `judges`: each is an arm of its own for every reward with the judge. `margin`: differences
    of success below it do not matter. `parallel`: runs at once, by default one for each core. `settings`: of every
    run; its reward, seed and name are those of the comparison.

    Finished runs are not repeated. Writes report.html, comparison.csv and comparison.json to runs/compare/<scenario>.
    Raises `GavelError` when a run fails.
    """
    world = scenario if isinstance(scenario, Scenario) else scenario_named(scenario)
    base = settings or settings_of(world.name if isinstance(scenario, Scenario) else scenario)
    train = None
    if isinstance(scenario, Scenario):
        if (parallel or 1) > 1 or base.backend.processes > 1:
            raise GavelError(
                "the runs of a Scenario that this program holds go one after another in this process.",
                "Leave parallel (and processes) out, or name the file: gavel.compare('desk.py').",
            )
        from gavel.cli.compare_here import training_here

        parallel, train = 1, training_here(scenario)
    if steps is not None:
        base = base.model_copy(update={"loop": base.loop.model_copy(update={"steps": steps})})
    root = runs_root(runs) / "compare"
    cells = plan_cells(base, world, root, rewards, judges, seeds)
    return await run_comparison(
        cells, world, root, margin=margin, threshold=threshold, parallel=parallel or cores(), train=train
    )


def settings_of(scenario: str) -> RunConfig:
    """What a comparison of the scenario uses where nothing else is set: the demo's settings where it has the job."""
    job = next((job for job in (*DESKS.values(), ONE_SENTENCE) if job.scenario == scenario), None)
    if job is None:
        return RunConfig.model_validate({"scenario": scenario, "loop": {"steps": 30}})
    base: dict[str, Any] = {
        "scenario": scenario,
        "model": {"base_model": job.base_model, "lora": job.lora.model_dump(exclude_unset=True)},
        "loop": {"final_tasks": 512} | job.loop.model_dump(exclude_unset=True) | {"steps": job.steps},
        "train": job.train.model_dump(exclude_unset=True),
    }
    if job.judge != STAND_IN:  # which is the default, after the judge that the environment names
        base["judge"] = {"models": job.judge}
    return RunConfig.model_validate(base)


def read_rewards(text: str) -> dict[RewardName, float]:
    """`judge+hand` as equal weights. Raises `GavelError` for a name that is none."""
    weights: dict[RewardName, float] = {}
    for name in text.split("+"):
        name = name.strip()
        if name not in get_args(RewardName):
            raise GavelError(
                f"there is no reward {name!r}.", f"Rewards: {', '.join(get_args(RewardName))}, and sums: judge+hand."
            )
        if name in weights:
            raise GavelError(f"the reward {text} names {name} twice.", "Name it once.")
        weights[name] = 1.0  # pyright: ignore[reportArgumentType]
    return weights


def plan_cells(
    base: RunConfig, scenario: Scenario, root: Path, rewards: Sequence[str], judges: Sequence[str], seeds: int
) -> list[Cell]:
    """Seed by seed, so that an unfinished comparison has whole pairs. Raises `GavelError`."""
    if seeds < 1 or not rewards:
        raise GavelError("there is nothing to compare.", "Give --seeds 1 or more, and --rewards judge,hand.")
    if scenario.success is None:
        raise GavelError(
            f"{scenario.name} has no success, by which rewards are compared.", "Pass success=… to its gavel.Scenario."
        )
    base = base.model_copy(update={"judge": with_default_judge(base.judge)})
    arms: dict[str, RunConfig] = {}
    for text in rewards:
        weights = read_rewards(text)
        check_rewards(scenario, weights)
        loop = base.loop.model_copy(update={"reward": weights})
        named = judges if "judge" in weights else ()
        for judge in named or [None]:
            label = f"{text} ({judge})" if judge is not None and len(named) > 1 else text
            if label in arms:
                raise GavelError(f"{label} is named twice.", "Name each reward and each judge once.")
            settings = base.judge if judge is None else base.judge.model_copy(update={"models": judge})
            arms[label] = base.model_copy(update={"loop": loop, "judge": settings})
    return [cell_of(arm, scenario.name, root, name, seed) for seed in range(seeds) for name, arm in arms.items()]


async def run_comparison(
    cells: Sequence[Cell],
    scenario: Scenario,
    root: Path,
    *,
    margin: float,
    threshold: float,
    parallel: int,
    done: Callable[[Cell, bool], None] = lambda cell, ran: None,
    train: Train | None = None,
) -> Comparison:
    """Runs what is missing and writes the report, which is also written after every cell."""
    folder = run_path(root, scenario.name, "x").parent
    figures: dict[str, CellFigures] = {}

    def comparison() -> Comparison:
        known = [figures[cell.label] for cell in cells if cell.label in figures]
        return compare_cells(known, scenario.name, folder, margin=margin, threshold=threshold)

    def finished(cell: Cell, ran: bool) -> None:
        figures[cell.label] = read_cell(cell.arm, cell.seed, cell.directory, scenario, last=cell.config.loop.steps)
        done(cell, ran)
        if ran:
            write_comparison(comparison())

    await run_cells(cells, root, parallel=parallel, done=finished, train=train)
    whole = comparison()
    write_comparison(whole)
    return whole


def compare_runs(directories: Mapping[str, Path], out: Path, *, margin: float, threshold: float) -> Comparison:
    """Existing runs by name, as one seed each: figures without a claim that one is better. Writes the report."""
    scenario = None
    cells: list[CellFigures] = []
    for name, directory in directories.items():
        scenario = scenario or scenario_of(directory)
        cells.append(read_cell(name, 0, directory, scenario))
    names = " and ".join(directories)
    comparison = compare_cells(cells, names, out, margin=margin, threshold=threshold)
    write_comparison(comparison)
    return comparison


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
