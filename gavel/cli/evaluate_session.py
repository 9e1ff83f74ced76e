"""Models on the same held-out tasks of a scenario, measured and compared by a judge; `gavel.evaluate`.

    table = await gavel.evaluate("returns_desk", models=["base:embedded/returns-desk", "openai/gpt-5-mini"])
    table["openai/gpt-5-mini"].success

Episodes and judgements are kept under runs/evaluations/<scenario>/; the same call, also with further models or tasks,
samples and judges only what is missing.
"""

import contextlib
import fcntl
import hashlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gavel.base.errors import GavelError
from gavel.cli.cassette_option import with_cassette
from gavel.cli.compare_session import settings_of
from gavel.cli.evaluated_models import model_given, model_named
from gavel.cli.follower import Follower, Silent
from gavel.cli.likelihood_model import register_likelihood
from gavel.cli.named_scenario import scenario_named
from gavel.cli.run_options import check_stand_in, with_default_judge
from gavel.judge.judge import Judge
from gavel.judge.rubric import Rubric
from gavel.llm.budget import Budget
from gavel.reports.model_table import (
    Episode,
    ModelTable,
    ScenarioTable,
    cost_text,
    furthest_apart,
    model_row,
    pair_wins,
    write_model_table,
    write_scenario_table,
)
from gavel.scenarios.chat_model import ChatModel
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.trainer.loop.evaluation import measure
from gavel.trainer.loop.joint_judging import joint_groups, judge_together, judged_before, judged_file
from gavel.trainer.loop.model_samples import (
    COST,
    SECONDS,
    Sample,
    SampledModel,
    sample_missing,
    stored_samples,
    wanted_samples,
)
from gavel.trainer.run_config import RunConfig
from gavel.trainer.runs.run_directory import run_path, runs_root

TASKS = 256
_LONGEST_NAME = 120


async def evaluate(
    scenario: str | Scenario,
    *,
    models: Sequence[str | ChatModel],
    judge: str | Judge | None = None,
    tasks: int = TASKS,
    samples: int = 1,
    max_cost: float | None = None,
    settings: RunConfig | None = None,
) -> ModelTable:
    """Lets models work on the same held-out tasks, and compares them by success and by the judge's scores.

    `models`: API models (openai/gpt-5-mini), checkpoints (desk/clerk, desk/clerk@12, a directory), untrained bases
    (base:NAME), and models that the program holds. `judge`: a model's name, a `gavel.Judge` (best with
    alone="scored"), or None for no judge. `samples` of each task: pass@k for k up to it. `max_cost`: US dollars of API
    models and a judge that is named. `settings`: of sampling and engine, as a run has them.

    Episodes that are kept are not sampled again. Writes report.html, evaluation.csv and evaluation.json to
    runs/evaluations/<scenario>. Raises `GavelError`.
    """
    register_likelihood()
    world = scenario if isinstance(scenario, Scenario) else scenario_named(scenario)
    config = (settings or settings_of(scenario if isinstance(scenario, str) else scenario.name)).resolved()
    return await _evaluated(world, models, judge, tasks, samples, config, Budget(max_cost))


async def _evaluated(
    world: Scenario,
    models: Sequence[str | ChatModel],
    judge: str | Judge | None,
    tasks: int,
    samples: int,
    config: RunConfig,
    budget: Budget,
) -> ModelTable:
    if isinstance(judge, str):
        named = config.judge.model_copy(update={"models": judge, "alone": "scored"})
        judge = with_cassette(with_default_judge(named), folder_of(world)).build(world.rubric, budget=budget)
    elif judge is not None and world.rubric is not None and judge.rubric == Rubric.of(None):
        judge = judge.with_rubric(world.rubric)
    if judge is not None:
        check_stand_in(judge, world)
    chosen = [
        model_named(each, world, config, budget) if isinstance(each, str) else model_given(each, world, config)
        for each in models
    ]
    return await evaluate_models(world, chosen, config, judge, tasks, samples)


async def evaluate_many(
    scenarios: Sequence[str | Scenario],
    *,
    models: Sequence[str | ChatModel],
    judge: str | Judge | None = None,
    tasks: int = TASKS,
    samples: int = 1,
    max_cost: float | None = None,
    settings: RunConfig | None = None,
) -> ScenarioTable:
    """`evaluate` on several scenarios, with one table of scenarios by models.

    `judge`: a `gavel.Judge` without a rubric scores each scenario by the scenario's own. `max_cost`: of all together.
    Writes report.html, evaluation.csv and evaluation.json to runs/evaluations/A+B, beside the reports of each scenario.
    Raises `GavelError` for two scenarios of one name, and what `evaluate` raises for the first that fails.
    """
    register_likelihood()
    worlds = [each if isinstance(each, Scenario) else scenario_named(each) for each in scenarios]
    names = [each.name for each in worlds]
    if not worlds or len(set(names)) < len(names):
        raise GavelError(
            f"the scenarios to evaluate are {', '.join(names) or 'none'}.", "Name at least one, and each once."
        )
    budget = Budget(max_cost)
    tables: list[ModelTable] = []
    for each, world in zip(scenarios, worlds, strict=True):
        config = (settings or settings_of(each if isinstance(each, str) else each.name)).resolved()
        tables.append(await _evaluated(world, models, judge, tasks, samples, config, budget))
    table = ScenarioTable(tables, folder_of_all(names))
    write_scenario_table(table)
    return table


def folder_of_all(scenarios: Sequence[str]) -> Path:
    """Where the common report of several scenarios is."""
    name = "+".join(scenarios)
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return run_path(runs_root() / "evaluations", name, "x").parent


def folder_of(scenario: Scenario) -> Path:
    """Where its evaluations are kept."""
    return run_path(runs_root() / "evaluations", scenario.name, "x").parent


async def evaluate_models(
    scenario: Scenario,
    models: Sequence[SampledModel],
    config: RunConfig,
    judge: Judge | None,
    tasks: int,
    samples: int,
    *,
    fresh: bool = False,
    out: Path | None = None,
    follower: Follower | None = None,
) -> ModelTable:
    """Samples and judges what is missing, and writes the report. `fresh`: nothing that is kept is used."""
    names = _checked_names(models, tasks, samples)
    folder, follow = folder_of(scenario), follower or Silent()
    chosen = scenario.sample("held_out", tasks, seed=config.loop.seed)
    with _alone_in(folder):
        if judge is not None:
            await judge.probe(replayed=False)
        episodes: dict[str, dict[Sample, TrajectoryGroup]] = {}
        failed: dict[str, int] = {}
        for model in models:
            file = model.file(folder, scenario, config.loop)
            if fresh:
                file.unlink(missing_ok=True)
            episodes[model.name], failed[model.name] = await _episodes(
                model, file, scenario, chosen, samples, config, follow
            )
        groups: list[TrajectoryGroup] = []
        if judge is not None:
            groups = await _judged(judge, joint_groups(episodes), folder, follow, fresh=fresh)
    measured = {name: _measured(scenario, of_model) for name, of_model in episodes.items()}
    table = ModelTable(
        scenario=scenario.name,
        rows=[model_row(name, measured[name], groups, failed[name]) for name in names],
        tasks=len(chosen),
        samples=samples,
        judges=judge.names if judge is not None else [],
        judge_cost=str(judge.budget.cost) if judge is not None and judge.asks_servers else "",
        pairs=pair_wins(groups, names),
        directory=out or folder,
        examples=furthest_apart(groups),
    )
    write_model_table(table)
    return table


@dataclass(frozen=True, slots=True)
class Missing:
    """What an evaluation has still to do."""

    episodes: dict[str, int]
    """To sample, by model."""
    groups: int
    """To judge."""


def missing_work(
    scenario: Scenario,
    models: Sequence[SampledModel],
    config: RunConfig,
    judge: Judge | None,
    tasks: int,
    samples: int,
    *,
    fresh: bool = False,
) -> Missing:
    """What `evaluate_models` would sample and judge; raises what it would raise before that, and changes nothing."""
    _checked_names(models, tasks, samples)
    folder = folder_of(scenario)
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    chosen = scenario.sample("held_out", tasks, seed=config.loop.seed)
    try:
        with _alone_in(folder):
            asked = {(task.id, number) for task, number in wanted_samples(chosen, samples)}
            files = {} if fresh else {model.name: model.file(folder, scenario, config.loop) for model in models}
            stored = {name: stored_samples(file, chosen) for name, file in files.items()}
            kept = {name: {sample: found[sample] for sample in asked & found.keys()} for name, found in stored.items()}
            judged = {} if fresh or judge is None else judged_before(joint_groups(kept), judged_file(judge, folder))
    finally:
        with contextlib.suppress(OSError):  # of a place that cannot be written
            if created:
                (folder / ".lock").unlink(missing_ok=True)
            for path in created:
                path.rmdir()
    missing = {model.name: len(asked) - len(kept.get(model.name, {})) for model in models}
    return Missing(missing, 0 if judge is None else len(chosen) - len(judged))


def _checked_names(models: Sequence[SampledModel], tasks: int, samples: int) -> list[str]:
    if not models or tasks < 1 or samples < 1:
        raise GavelError("there is nothing to evaluate.", "Name a model, and at least one task and sample.")
    names = [model.name for model in models]
    if doubled := next((name for name in names if names.count(name) > 1), None):
        raise GavelError(f"{doubled} is named twice.", "Name each model once.")
    return names


async def _episodes(
    model: SampledModel,
    file: Path,
    scenario: Scenario,
    tasks: Sequence[Task],
    samples: int,
    config: RunConfig,
    follow: Follower,
) -> tuple[dict[Sample, TrajectoryGroup], int]:
    """All of a model, by task and number, and how many failed."""
    kept = stored_samples(file, tasks)
    asked = list(wanted_samples(tasks, samples))
    found = {(task.id, number): kept[task.id, number] for task, number in asked if (task.id, number) in kept}
    missing = [(task, number) for task, number in asked if (task.id, number) not in kept]
    if not missing:
        return found, 0
    spent, failures = [0.0], [0]

    def status() -> str:
        parts = [f"{cost_text(spent[0])} USD"] if spent[0] else []
        parts += [f"{len(found)} kept before"] if found else []
        return " · ".join([*parts, *([f"{failures[0]} failed"] if failures[0] else [])])

    with follow.waiting(model.name, len(missing), "episodes", status) as advance:

        def done(group: TrajectoryGroup | None) -> None:
            spent[0] += 0.0 if group is None else float(group.metrics.get(COST, 0.0))
            failures[0] += group is None
            advance()

        failed = await sample_missing(model, missing, file, config.loop, done)
    # As they are read later, so that a later evaluation finds their judgements.
    kept = stored_samples(file, tasks)
    return {(task.id, number): kept[task.id, number] for task, number in asked if (task.id, number) in kept}, failed


async def _judged(
    judge: Judge, groups: Sequence[TrajectoryGroup], folder: Path, follow: Follower, *, fresh: bool
) -> list[TrajectoryGroup]:
    file = judged_file(judge, folder)
    if fresh:
        file.unlink(missing_ok=True)
    missing = len(groups) - len(judged_before(groups, file))
    if not missing:
        return await judge_together(judge, groups, file, lambda: None)
    with follow.waiting("judging", missing, "tasks", lambda: judge.status if judge.asks_servers else "") as advance:
        return await judge_together(judge, groups, file, advance)


def _measured(scenario: Scenario, of_model: dict[Sample, TrajectoryGroup]) -> list[Episode]:
    found: list[Episode] = []
    for (task, number), group in of_model.items():
        for member in group:
            member.metrics |= measure(scenario, member)
        cost = group.metrics.get(COST)
        seconds = float(group.metrics.get(SECONDS, 0.0))
        found.append(Episode(task, number, group.trajectories, None if cost is None else float(cost), seconds))
    return found


@contextlib.contextmanager
def _alone_in(folder: Path) -> Generator[None]:
    """Holds the directory's lock: two evaluations at once would sample the same episodes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise GavelError(
            f"{folder} cannot be written: {error.strerror or error}", "Set GAVEL_RUNS to a directory that can be."
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise GavelError(
                f"another evaluation is writing to {folder}.", "Wait for its end, or set GAVEL_RUNS for this one."
            ) from error
        yield
