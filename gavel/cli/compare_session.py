"""What `gavel compare` and `gavel.compare` do: plan the cells, run them, and write the report.

comparison = await gavel.compare("returns_desk", rewards=["judge", "hand"], seeds=3, steps=20)
comparison.paired["judge - hand"].verdict
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from gavel.base.errors import GavelError
from gavel.cli.compare_blind import blind_judge as built_blind_judge
from gavel.cli.compare_blind import with_ranking
from gavel.cli.compare_cells import Cell, Train, cell_of, run_cells
from gavel.cli.demo_jobs import DESKS, ONE_SENTENCE
from gavel.cli.follower import Follower, Silent
from gavel.cli.likelihood_model import register_likelihood
from gavel.cli.named_run import experiment_of, scenario_of
from gavel.cli.named_scenario import scenario_named
from gavel.cli.run_options import check_stand_in, with_default_judge
from gavel.cli.settings import STAND_IN
from gavel.judge.judge import Judge
from gavel.reports.comparison import CellFigures, Comparison, compare_cells, read_cell, write_comparison
from gavel.scenarios.scenario import Scenario
from gavel.trainer.config import RewardName
from gavel.trainer.loop.experiment import described_scenario
from gavel.trainer.loop.group_maker import check_rewards
from gavel.trainer.run_config import RunConfig
from gavel.trainer.runs.run_directory import differences, run_path, runs_root

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
    blind_judge: str | Judge | None = None,
) -> Comparison:
    """Trains on each reward with the same tasks, seeds and settings, and compares success on held-out tasks.

    `scenario`: a shipped one, file.py, file.py:variable, or a `gavel.Scenario`, whose runs go one after another in this
    process. `rewards`: judge, hand, success, constant, and sums of
    these such as judge+hand. `judges`: each is an arm of its own for every reward with the judge. `margin`: differences
    of success below it do not matter. `parallel`: runs at once, by default one for each core. `settings`: of every
    run; its reward, seed and name are those of the comparison. `blind_judge`: ranks the held-out attempts of all runs
    and those before training, without being told whose they are; a model's name, whose rubric is then the scenario's,
    or a `gavel.Judge`.

    Finished runs are not repeated. Writes report.html, comparison.csv and comparison.json to runs/compare/<scenario>.
    Raises `GavelError` when a run fails.
    """
    register_likelihood()
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
    if isinstance(blind_judge, str):
        blind_judge = built_blind_judge(base.judge, blind_judge, world.rubric, folder_of(world, root))
    return await run_comparison(
        cells,
        world,
        root,
        margin=margin,
        threshold=threshold,
        parallel=parallel or cores(),
        train=train,
        blind=blind_judge,
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
    blind: Judge | None = None,
    follower: Follower | None = None,
) -> Comparison:
    """Runs what is missing and writes the report, which is also written after every cell. `blind` ranks at the end."""
    folder = folder_of(scenario, root)
    check_cells(cells, scenario, folder, blind)
    if blind is not None:
        await blind.probe(replayed=False)
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
    if blind is not None:
        write_comparison(whole)  # which a judge that fails does not take away
        whole = await with_ranking(whole, blind, follower or Silent())
    write_comparison(whole)
    return whole


def check_cells(cells: Sequence[Cell], scenario: Scenario, folder: Path, blind: Judge | None) -> None:
    """Raises `GavelError` where finished runs are of another experiment, or the stand-in does not read a rubric."""
    if blind is not None:
        check_stand_in(blind, scenario)
    asked = {scenario.name: described_scenario(scenario)}
    for cell in cells:
        cell.check_settings()
        begun = experiment_of(cell.directory).get("scenarios")
        if begun is not None and cell.finished() and (changed := differences(begun, asked)):
            raise GavelError(
                f"the finished run {cell.directory} had another scenario: {'; '.join(changed)}",
                f"Compare with that one, delete {folder}, or choose another place: GAVEL_RUNS=…",
            )
    judged = [cell for cell in cells if "judge" in cell.config.loop.reward and not cell.finished()]
    for config in {cell.arm: cell.config for cell in judged}.values():
        check_stand_in(config.judge.build(scenario.rubric), scenario)


def folder_of(scenario: Scenario, root: Path) -> Path:
    """Where the comparison's report is written, beside its runs."""
    return run_path(root, scenario.name, "x").parent


async def rank_runs(comparison: Comparison, blind: Judge, follower: Follower) -> Comparison:
    """A comparison of existing runs with a ranking of their held-out attempts. Writes the report."""
    await blind.probe(replayed=False)
    ranked = await with_ranking(comparison, blind, follower)
    write_comparison(ranked)
    return ranked


def compare_runs(directories: Mapping[str, Path], out: Path, *, margin: float, threshold: float) -> Comparison:
    """Existing runs by name, as one seed each: figures without a claim that one is better. Writes the report.

    Raises `GavelError` for runs of different scenarios, whose success is not the same thing.
    """
    settings = {name: experiment_of(directory) for name, directory in directories.items()}
    scenarios = {name: str(found["scenario"]) for name, found in settings.items() if "scenario" in found}
    if len({*scenarios.values()}) > 1:
        each = ", ".join(f"{name}: {scenario}" for name, scenario in scenarios.items())
        raise GavelError(f"these runs are of different scenarios ({each}).", "Name runs of the same one.")
    scenario = next(filter(None, map(scenario_of, directories.values())), None)
    cells = [read_cell(name, 0, directory, scenario) for name, directory in directories.items()]
    comparison = compare_cells(cells, " and ".join(directories), out, margin=margin, threshold=threshold)
    caveats = (comparison.caveat, _different_tasks(settings), _different_steps(cells))
    comparison = replace(comparison, planned=False, caveat=" ".join(filter(None, caveats)))
    write_comparison(comparison)
    return comparison


def _different_tasks(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """A sentence where the runs were not evaluated on the same held-out tasks, which the loop's seed chooses."""
    loops = {name: found["loop"] for name, found in settings.items() if isinstance(found.get("loop"), dict)}
    for name, what in (("seed", "seeds"), ("final_tasks", "numbers of held-out tasks"), ("max_tokens", "max_tokens")):
        values = {str(loop.get(name)) for loop in loops.values()}
        if len(values) > 1:
            return f"The runs had different {what} ({', '.join(sorted(values))}), so their figures differ for that too."
    return ""


def _different_steps(cells: Sequence[CellFigures]) -> str:
    """A sentence where the last evaluations are not of the same step: of a run that goes on, or ended early."""
    last = {cell.arm: max(cell.success) if cell.success else None for cell in cells}
    if len({*last.values()}) == 1:
        return ""
    each = ", ".join(f"{name}: {'none' if step is None else f'step {step}'}" for name, step in last.items())
    return f"The runs were last evaluated at different steps ({each}), so their figures differ for that too."


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
