"""Implements `gavel compare` and `gavel.compare`: plan the cells, run them, rank attempts, and write the report.

    comparison = await gavel.compare("returns_desk", rewards=["judge", "hand"], seeds=3, steps=20)
    comparison.paired["judge - hand"].verdict

A cell is the run of one reward and seed: a `gavel train` process, a few at a time. It is finished when its last
evaluation is on disk, and is then not run again; one that was killed goes on after its last finished step.

A blind ranking asks a judge to rank held-out attempts without telling it whose they are. All runs of one seed attempted
the same tasks with the same seeds, so a group is their last attempts at one task, and, where the runs begin alike, the
attempt before training. What is judged is kept in blind/ of the comparison's directory, and not asked for again.
"""

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from gavel.base.errors import GavelError, first_error
from gavel.cli.demo import DESKS, ONE_SENTENCE
from gavel.cli.named import experiment_of, scenario_named, scenario_of
from gavel.cli.options import (
    STAND_IN,
    check_stand_in,
    default_judge,
    register_likelihood,
    with_cassette,
    with_default_judge,
)
from gavel.cli.run_file import Table, paths_seen_from, to_toml
from gavel.cli.terminal import WaitDisplay
from gavel.cli.training import open_backend, status_of, trainable
from gavel.judge.config import JudgeConfig, read_text_option
from gavel.judge.judge import Judge
from gavel.judge.panel.modes import ModeName
from gavel.reports.blind_ranking import blind_ranking
from gavel.reports.comparison import CellFigures, Comparison, compare_cells, read_cell, write_comparison
from gavel.reports.run_figures import read_run, stored_groups
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import RewardName
from gavel.trainer.loop.experiment import describe_scenario
from gavel.trainer.loop.group_maker import check_rewards
from gavel.trainer.loop.model_samples import joint_groups, judge_together, judged_before, judged_file
from gavel.trainer.loop.train_loop import train_scenario
from gavel.trainer.run_config import RunConfig
from gavel.trainer.runs.run_directory import differences, run_path, runs_root

_GRACE = 60.0
"""Seconds that an interrupted run has to finish its step."""
_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux's prctl."""
_TAIL = 6


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

    @property
    def file(self) -> Path:
        """The run.toml that it is started with."""
        return self.directory.parent / "cells" / f"{self.directory.name}.toml"

    def toml(self) -> str:
        """All settings, those that follow from others too: `gavel train` takes each as given."""
        config = paths_seen_from(self.config.resolved(), self.file.parent)
        return to_toml(config, config)

    def check_settings(self) -> None:
        """Raises `GavelError` for a finished run that had other settings: its figures are not comparable."""
        if self.finished() and (not self.file.is_file() or self.file.read_text(encoding="utf-8") != self.toml()):
            raise GavelError(
                f"the finished run {self.directory} had other settings than these.",
                f"Compare with those ({self.file}), delete it, or choose another place: GAVEL_RUNS=…",
            )

    def finished(self) -> bool:
        if not (self.directory / "model.json").is_file():
            return False
        steps = self.config.loop.steps
        splits = {row["split"] for row in read_run(self.directory).rows if row["step"] == steps}
        return {"train", "held_out"} <= splits


Train = Callable[[Cell, Path], Awaitable[None]]
"""Trains a cell to its end, below a root of runs."""


def cell_of(base: RunConfig, project: str, root: Path, arm: str, seed: int) -> Cell:
    """The cell of an arm, whose reward and judge `base` has already, for one seed.

    Its name has the number of steps, because the learning rate's schedule depends on it.
    """
    slug = re.sub(r"[^\w.+-]+", "-", arm).strip("-").lower()
    name = f"{slug}-{base.loop.steps}-steps-seed-{seed}"
    loop = base.loop.model_copy(update={"seed": seed})
    config = base.model_copy(update={"model": base.model.model_copy(update={"name": name}), "loop": loop})
    return Cell(arm, seed, config, run_path(root, project, name))


async def run_cells(
    cells: Sequence[Cell],
    root: Path,
    *,
    parallel: int,
    done: Callable[[Cell, bool], None] = lambda cell, ran: None,
    train: Train | None = None,
) -> None:
    """Runs what is not finished, at most `parallel` at a time: by `train`, else each in a process of one thread.

    `done(cell, ran)` is called for each. Raises `GavelError` with the end of its log when one fails; the others are
    then stopped after their step.
    """
    for cell in cells:
        cell.check_settings()
    limiter = asyncio.Semaphore(parallel)

    async def run(cell: Cell) -> None:
        async with limiter:
            ran = not cell.finished()
            if ran:
                cell.file.parent.mkdir(parents=True, exist_ok=True)
                cell.file.write_text(cell.toml(), encoding="utf-8")
                await (train or _train_in_process)(cell, root)
                if not cell.finished():
                    raise GavelError(
                        f"the run {cell.label} ended without a last evaluation on held-out tasks.",
                        "Rewards are compared by success on held-out tasks: give the scenario tasks of the split "
                        "held_out, and a success.",
                    )
            done(cell, ran)

    with first_error():
        async with asyncio.TaskGroup() as tasks:
            for cell in cells:
                tasks.create_task(run(cell))


async def _train_in_process(cell: Cell, root: Path) -> None:
    file, log = cell.file, cell.file.with_suffix(".log")
    environment = {**os.environ, "GAVEL_RUNS": str(root), "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gavel", "train", str(file)),
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C reaches it once, from here
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
        try:
            status = await process.wait()
        finally:
            await _stop_process(process)
    if status:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-_TAIL:]
        raise GavelError(
            f"the run {cell.label} ended with status {status}: " + " ".join(line.strip() for line in lines),
            f"Mend it, and run the same command again: it goes on. Its whole log: {log}",
        )


async def _stop_process(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    try:
        async with asyncio.timeout(_GRACE):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGTERM)


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
        parallel, train = 1, partial(_train_here, scenario)
    if steps is not None:
        base = base.model_copy(update={"loop": base.loop.model_copy(update={"steps": steps})})
    root = runs_root(runs) / "compare"
    cells = plan_cells(base, world, root, rewards, judges, seeds)
    if isinstance(blind_judge, str):
        blind_judge = judge_that_ranks(base.judge, blind_judge, world.rubric, folder_of(world, root))
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
    display: WaitDisplay | None = None,
) -> Comparison:
    """Runs what is missing and writes the report, which is also written after every cell. `blind` ranks at the end."""
    folder, display = folder_of(scenario, root), display or WaitDisplay()
    check_cells(cells, scenario, folder, blind)
    if blind is not None:
        await blind.probe(replayed=False)
    figures: dict[str, CellFigures] = {}

    def comparison() -> Comparison:
        known = [figures[cell.label] for cell in cells if cell.label in figures]
        found = compare_cells(known, scenario.name, folder, margin=margin, threshold=threshold)
        write_comparison(found)
        return found

    def finished(cell: Cell, ran: bool) -> None:
        figures[cell.label] = read_cell(cell.arm, cell.seed, cell.directory, scenario, last=cell.config.loop.steps)
        done(cell, ran)
        if ran:
            comparison()

    with show_steps(cells, display):
        await run_cells(cells, root, parallel=parallel, done=finished, train=train)
    whole = comparison()  # which a judge that fails does not take away
    return whole if blind is None else await rank_runs(whole, blind, display)


def check_cells(cells: Sequence[Cell], scenario: Scenario, folder: Path, blind: Judge | None) -> None:
    """Raises `GavelError` where finished runs are of another experiment, or the stand-in does not read a rubric."""
    if blind is not None:
        check_stand_in(blind, scenario)
    asked = {scenario.name: describe_scenario(scenario)}
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
    """The directory of the comparison's report, beside its runs."""
    return run_path(root, scenario.name, "x").parent


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
    """The number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


async def _train_here(scenario: Scenario, cell: Cell, root: Path) -> None:
    """Trains a cell in this process."""
    config = cell.config.resolved()
    judge = None
    if "judge" in config.loop.reward:
        judge = with_cassette(config.judge, cell.directory).build(scenario.rubric)
        await judge.probe(replayed=False)
    model = trainable(config, scenario.name)
    try:
        async with await open_backend(config.backend, config, str(root)) as backend:
            await model.register(backend)
            await train_scenario(model, scenario, judge, config.loop, config.train)
    finally:
        if judge is not None and judge.cassette is not None:
            judge.cassette.close()


BEFORE = "before training"
Attempts = Mapping[str, Mapping[tuple[str, int], TrajectoryGroup]]
"""By contender, then by task and seed."""
FOLDER = "blind"


def judge_that_ranks(
    settings: JudgeConfig, model: str, rubric: str | None, folder: Path, mode: ModeName = "pairwise"
) -> Judge:
    """A judge with the settings of the one that trains, but for its model, rubric and mode.

    Its replies are kept in the comparison's directory `folder`. Raises `JudgeError`.
    """
    chosen = settings.model_copy(update={"models": model, "mode": mode, "rubric": None})
    return with_cassette(chosen, folder / FOLDER).build(read_text_option(rubric, "rubric"))


async def rank_runs(comparison: Comparison, judge: Judge, display: WaitDisplay) -> Comparison:
    """The comparison with the ranking of its runs' attempts, and of those before training where all began alike. Writes
    its report.

    Raises `GavelError` where nothing can be compared, and `JudgeError` for a judge that cannot be asked.
    """
    cells = [cell for arm in comparison.arms for cell in arm.cells]
    by_seed = attempts_by_seed(cells, same_start=comparison.planned)
    groups = {seed: _comparable(joint_groups(attempts)) for seed, attempts in by_seed.items()}
    if not any(groups.values()):
        raise GavelError(
            "no two runs have stored attempts at the same held-out tasks, so there is nothing to rank.",
            "Leave --blind-judge out, or compare runs that were evaluated on the same held-out tasks.",
        )
    file = judged_file(judge, comparison.directory / FOLDER)
    missing = sum(len(of_seed) - len(judged_before(of_seed, file)) for of_seed in groups.values())
    with display.waiting("blind ranking", missing, "tasks", status_of(judge)) as advance:
        judged = {seed: await judge_together(judge, of_seed, file, advance) for seed, of_seed in groups.items()}
    contenders = dict.fromkeys(name for attempts in by_seed.values() for name in attempts)
    ranking = blind_ranking(
        judged,
        list(contenders),
        judge.names,
        rubric=judge.rubric.words,
        cost=str(judge.budget.cost) if judge.asks_servers else "",
    )
    ranked = replace(comparison, blind=ranking)
    write_comparison(ranked)
    return ranked


def attempts_by_seed(cells: Sequence[CellFigures], *, same_start: bool) -> dict[int, Attempts]:
    """The last held-out attempts of each run; with `same_start` the first ones of a seed's first run too.

    A seed of one run has nothing to be compared with, and is left out.
    """
    found: dict[int, dict[str, Mapping[tuple[str, int], TrajectoryGroup]]] = {}
    for cell in cells:
        if not cell.success:
            continue
        of_seed = found.setdefault(cell.seed, {})
        if same_start and not of_seed and min(cell.success) < max(cell.success):
            of_seed[BEFORE] = _held_out(cell.directory, min(cell.success), cell.seed)
        of_seed[cell.arm] = _held_out(cell.directory, max(cell.success), cell.seed)
    return {seed: attempts for seed, attempts in found.items() if sum(map(bool, attempts.values())) > 1}


def _comparable(groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """The groups with attempts of at least two contenders."""
    return [group for group in groups if len({str(member.metadata.get("model")) for member in group}) > 1]


def _held_out(directory: Path, step: int, seed: int) -> dict[tuple[str, int], TrajectoryGroup]:
    """The attempts of an evaluation by task, each as a group of the agents that played it."""
    members: dict[str, list[Trajectory]] = {}
    for at, group in stored_groups(directory, "held_out"):
        for member in group if at == step else ():
            task = member.metadata.get("task")
            if isinstance(task, dict) and member.status != "failed":
                members.setdefault(str(task.get("id")), []).append(member)
    return {(task, seed): TrajectoryGroup(found) for task, found in members.items()}


_SECONDS = 2.0
"""Seconds between two checks of the runs."""


@contextmanager
def show_steps(cells: Sequence[Cell], display: WaitDisplay) -> Generator[None]:
    """Shows on `display` each step of the runs that other processes train, as their directories record it."""
    finished = {cell.label: _finished_steps(cell) for cell in cells}
    running = [cell for cell in cells if not cell.finished()]
    left = sum(cell.config.loop.steps - finished[cell.label] for cell in running)
    last = ""

    def look() -> None:
        nonlocal last
        for cell in running:
            steps, before = _finished_steps(cell), finished[cell.label]
            if steps > before:
                finished[cell.label], last = steps, f"{cell.label}: step {steps} of {cell.config.loop.steps}"
            for _ in range(before, steps):
                advance()

    async def follow() -> None:
        while True:
            look()
            await asyncio.sleep(_SECONDS)

    with display.waiting("training", left, "steps", lambda: last) as advance:
        following = asyncio.create_task(follow())
        try:
            yield
        finally:
            following.cancel()
            look()


def _finished_steps(cell: Cell) -> int:
    rows = read_run(cell.directory).rows if (cell.directory / "model.json").is_file() else []
    return max((int(row["step"]) for row in rows if row["split"] == "train"), default=0)
