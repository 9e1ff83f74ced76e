"""Models on the same held-out tasks of a scenario, measured and compared by a judge; `gavel.evaluate`.

    table = await gavel.evaluate("returns_desk", models=["base:embedded/returns-desk", "openai/gpt-5-mini"])
    table["openai/gpt-5-mini"].success

Models are named as follows:

    openai/gpt-5-mini          any model of LiteLLM
    desk/clerk, desk/clerk@12  the newest checkpoint of a run, or that of a step; @0 is what the run began with
    some/adapter               a directory of a PEFT adapter, of the base model that it names
    base:Qwen/Qwen3-0.6B       a base model, untrained

Episodes and judgements are kept under runs/evaluations/<scenario>/; the same call, also with further models or tasks,
samples and judges only what is missing.
"""

import contextlib
import hashlib
import tempfile
import tomllib
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

from openai.types.chat.chat_completion import ChatCompletion

from gavel.base.errors import GavelError
from gavel.base.files import locked
from gavel.cli.compare_session import settings_of
from gavel.cli.named import scenario_named
from gavel.cli.options import check_base_fits, check_stand_in, register_likelihood, with_cassette, with_default_judge
from gavel.cli.terminal import WaitDisplay
from gavel.cli.training import open_backend, run_directory_of, status_of, trainable
from gavel.judge.config import JudgeConfig
from gavel.judge.judge import Judge
from gavel.judge.rubric import Rubric
from gavel.llm.budget import Budget
from gavel.llm.chat_agent import ChatAgent
from gavel.llm.errors import BudgetError, LlmError, UnknownModelError
from gavel.llm.types import Message
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
from gavel.scenarios.chat_model import ChatModel, ChatRequest, FunctionModel
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import LoraSettings, PolicySettings
from gavel.trainer.data.token_sequences import COMPACT
from gavel.trainer.loop.evaluation import measure
from gavel.trainer.loop.model_samples import (
    COST,
    SECONDS,
    Play,
    Sample,
    SampledModel,
    joint_groups,
    judge_together,
    judged_before,
    judged_file,
    sample_missing,
    stored_samples,
    wanted_samples,
)
from gavel.trainer.model import TrainableModel
from gavel.trainer.model_spec import describe_model
from gavel.trainer.run_config import RunConfig
from gavel.trainer.runs.run_directory import (
    NamedCheckpointError,
    NamedRunError,
    RunDirectoryError,
    find_checkpoint,
    names_something,
    read_description,
    run_path,
    runs_root,
    split_step,
)

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
    budget: Budget | None = None,
) -> ModelTable:
    """Lets models work on the same held-out tasks, and compares them by success and by the judge's scores.

    `models`: API models (openai/gpt-5-mini), checkpoints (desk/clerk, desk/clerk@12, a directory), untrained bases
    (base:NAME), and models that the program holds. `judge`: a model's name, a `gavel.Judge` (best with
    alone="scored"), or None for no judge. `samples` of each task: pass@k for k up to it. `max_cost`: US dollars of API
    models and a judge that is named; or `budget`, which others may share. `settings`: of sampling and engine, as a run
    has them.

    Episodes that are kept are not sampled again. Writes report.html, evaluation.csv and evaluation.json to
    runs/evaluations/<scenario>. Raises `GavelError`.
    """
    register_likelihood()
    world = scenario if isinstance(scenario, Scenario) else scenario_named(scenario)
    config = (settings or settings_of(scenario if isinstance(scenario, str) else scenario.name)).resolved()
    budget = budget or Budget(max_cost)
    if isinstance(judge, str):
        named = config.judge.model_copy(update={"models": judge})
        judge = scoring_judge(named, world, budget)
    elif judge is not None:
        if world.rubric is not None and judge.rubric == Rubric.of(None):
            judge = judge.with_rubric(world.rubric)
        check_stand_in(judge, world)
    chosen = [
        find_model(each, world, config, budget) if isinstance(each, str) else model_given(each, world, config)
        for each in ([models] if isinstance(models, str) else models)
    ]
    return await evaluate_models(world, chosen, config, judge, tasks, samples)


def scoring_judge(settings: JudgeConfig, scenario: Scenario, budget: Budget) -> Judge:
    """The judge of an evaluation, which scores single attempts, too. Raises `JudgeError`."""
    settings = with_default_judge(settings).model_copy(update={"alone": "scored"})
    judge = with_cassette(settings, folder_of(scenario)).build(scenario.rubric, budget=budget)
    check_stand_in(judge, scenario)
    return judge


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
    names = [each.name if isinstance(each, Scenario) else scenario_named(each).name for each in scenarios]
    if not names or len(set(names)) < len(names):
        raise GavelError(
            f"the scenarios to evaluate are {', '.join(names) or 'none'}.", "Name at least one, and each once."
        )
    options: dict[str, Any] = {"models": models, "judge": judge, "tasks": tasks, "samples": samples}
    options |= {"settings": settings, "budget": Budget(max_cost)}
    table = ScenarioTable([await evaluate(each, **options) for each in scenarios], folder_of_all(names))
    write_scenario_table(table)
    return table


def folder_of_all(scenarios: Sequence[str]) -> Path:
    """The directory of the common report of several scenarios."""
    name = "+".join(scenarios)
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return run_path(runs_root() / "evaluations", name, "x").parent


def folder_of(scenario: Scenario) -> Path:
    """The directory of the scenario's evaluations."""
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
    display: WaitDisplay | None = None,
) -> ModelTable:
    """Samples and judges what is missing, and writes the report. `fresh`: nothing that is kept is used."""
    names = _checked_names(models, tasks, samples)
    folder, display = folder_of(scenario), display or WaitDisplay()
    chosen = scenario.sample("held_out", tasks, seed=config.loop.seed)
    with _lock_folder(folder):
        if judge is not None:
            await judge.probe(replayed=False)
        episodes: dict[str, dict[Sample, TrajectoryGroup]] = {}
        failed: dict[str, int] = {}
        for model in models:
            file = model.file(folder, scenario, config.loop)
            if fresh:
                file.unlink(missing_ok=True)
            episodes[model.name], failed[model.name] = await _sample_episodes(
                model, file, scenario, chosen, samples, config, display
            )
        groups: list[TrajectoryGroup] = []
        if judge is not None:
            groups, file = joint_groups(episodes), judged_file(judge, folder)
            if fresh:
                file.unlink(missing_ok=True)
            missing = len(groups) - len(judged_before(groups, file))
            with display.waiting("judging", missing, "tasks", status_of(judge)) as advance:
                groups = await judge_together(judge, groups, file, advance)
    measured = {name: _measure_episodes(scenario, of_model) for name, of_model in episodes.items()}
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


def count_missing_work(
    scenario: Scenario,
    models: Sequence[SampledModel],
    config: RunConfig,
    judge: Judge | None,
    tasks: int,
    samples: int,
    *,
    fresh: bool = False,
) -> tuple[dict[str, int], int]:
    """The number of episodes of each model that `evaluate_models` would sample, and of groups it would judge; changes
    nothing."""
    names = _checked_names(models, tasks, samples)
    folder = folder_of(scenario)
    chosen = scenario.sample("held_out", tasks, seed=config.loop.seed)
    kept: dict[str, dict[Sample, TrajectoryGroup]] = {name: {} for name in names}
    if not fresh:
        for model in models:
            kept[model.name] = _kept(model.file(folder, scenario, config.loop), chosen, samples)
    wanted = len(wanted_samples(chosen, samples))
    judged = 0 if fresh or judge is None else len(judged_before(joint_groups(kept), judged_file(judge, folder)))
    missing = {name: wanted - len(found) for name, found in kept.items()}
    return missing, 0 if judge is None else len(chosen) - judged


def _kept(file: Path, tasks: Sequence[Task], samples: int) -> dict[Sample, TrajectoryGroup]:
    """The wanted episodes that the file holds, by task and number."""
    stored = stored_samples(file, tasks)
    wanted = [(task.id, number) for task, number in wanted_samples(tasks, samples)]
    return {sample: stored[sample] for sample in wanted if sample in stored}


def _checked_names(models: Sequence[SampledModel], tasks: int, samples: int) -> list[str]:
    if not models or tasks < 1 or samples < 1:
        raise GavelError("there is nothing to evaluate.", "Name a model, and at least one task and sample.")
    names = [model.name for model in models]
    if doubled := next((name for name in names if names.count(name) > 1), None):
        raise GavelError(f"{doubled} is named twice.", "Name each model once.")
    return names


async def _sample_episodes(
    model: SampledModel,
    file: Path,
    scenario: Scenario,
    tasks: Sequence[Task],
    samples: int,
    config: RunConfig,
    display: WaitDisplay,
) -> tuple[dict[Sample, TrajectoryGroup], int]:
    """All episodes of a model by task and number, sampling those that are missing; and how many failed."""
    found = _kept(file, tasks, samples)
    missing = [(task, number) for task, number in wanted_samples(tasks, samples) if (task.id, number) not in found]
    if not missing:
        return found, 0
    spent, failures = 0.0, 0

    def status() -> str:
        parts = {f"{cost_text(spent)} USD": spent, f"{len(found)} kept before": found, f"{failures} failed": failures}
        return " · ".join(part for part, shown in parts.items() if shown)

    def done(group: TrajectoryGroup | None) -> None:
        nonlocal spent, failures
        spent += 0.0 if group is None else float(group.metrics.get(COST, 0.0))
        failures += group is None
        advance()

    with display.waiting(model.name, len(missing), "episodes", status) as advance:
        failed = await sample_missing(model, missing, file, config.loop, done)
    # Read back from the file, so that a later evaluation finds their judgements.
    return _kept(file, tasks, samples), failed


def _measure_episodes(scenario: Scenario, of_model: dict[Sample, TrajectoryGroup]) -> list[Episode]:
    found: list[Episode] = []
    for (task, number), group in of_model.items():
        for member in group:
            member.metrics |= measure(scenario, member)
        cost = group.metrics.get(COST)
        seconds = float(group.metrics.get(SECONDS, 0.0))
        found.append(Episode(task, number, group.trajectories, None if cost is None else float(cost), seconds))
    return found


def _lock_folder(folder: Path) -> contextlib.ExitStack:
    """Holds the directory's lock: two evaluations at once would sample the same episodes."""
    stack = contextlib.ExitStack()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(locked(folder))
    except BlockingIOError as error:
        raise GavelError(
            f"another evaluation is writing to {folder}.", "Wait for its end, or set GAVEL_RUNS for this one."
        ) from error
    except OSError as error:
        raise GavelError(
            f"{folder} cannot be written: {error.strerror or error}", "Set GAVEL_RUNS to a directory that can be."
        ) from error
    return stack


_BASE = "base:"
_FIGURES_OF_ANOTHER_JOB = "its figures say nothing of a model that can do the job"
_RETRIES = 4
"""Max retries of a request whose server is busy."""


def find_model(named: str, scenario: Scenario, config: RunConfig, budget: Budget) -> SampledModel:
    """The model of this name; a run of the scenario itself may be named without its project.

    `config`: how models of this machine are served. `budget`: of API models. Raises `GavelError` where there is none.
    """
    if config.backend.url is not None:
        raise GavelError(
            f"--models are sampled on this machine or by their APIs, not at {config.backend.url}.",
            "Leave --backend-url out, or --models.",
        )
    if named.startswith(_BASE):
        base = named.removeprefix(_BASE)
        if not base:
            raise GavelError(f"{named} names no base model.", "Write base:Qwen/Qwen3-0.6B.")
        check_base_fits(base, scenario, named=True, else_=_FIGURES_OF_ANOTHER_JOB)
        spec = config.model
        model = TrainableModel(
            name="base", project="evaluate", base_model=base, policy=spec.policy, renderer=spec.renderer
        )
        return _local(named, {}, model, scenario, config)
    root = runs_root()
    for name in (named, f"{scenario.name}/{named}"):
        if names_something(name, root):
            return _checkpoint(name, scenario, config, root)
    try:
        ChatAgent(named, budget, instead="--models ollama/qwen3, --models base:Qwen/Qwen3-0.6B")
    except UnknownModelError as error:
        raise GavelError(
            f"{named} is no run, no directory and no API model: {error.message}",
            "Name a run as `gavel runs` lists it (desk/clerk@12), base:MODEL, or one of LiteLLM (openai/gpt-5-mini).",
        ) from error
    return SampledModel(named, {"api": named}, lambda: _serve_api(named, scenario, config, budget))


def model_given(model: ChatModel, scenario: Scenario, config: RunConfig) -> SampledModel:
    """A model that a program holds, such as a registered `gavel.TrainableModel`."""
    name = model.get_inference_name()
    identity = {"given": name, "key": list(getattr(model, "key", ()))}

    @contextlib.asynccontextmanager
    async def serving() -> AsyncGenerator[Play]:
        yield _make_play(model, scenario, config)

    return SampledModel(name, identity, serving)


async def find_own_model(scenario: Scenario, config: RunConfig, given: RunConfig) -> SampledModel:
    """The newest policy of the run that `config` describes; its base, where there is no run yet.

    `given`: the configuration before defaults were filled in. Raises `RunDirectoryError` where it names a run that is
    not there, and `ModelChoiceError` where nobody named the base and it is a built-in model of another scenario.
    """
    model = trainable(config, scenario.name)
    directory = run_directory_of(model)
    base_named = "base_model" in given.model.model_fields_set
    if config.backend.url is not None:
        check_base_fits(model.base_model, scenario, named=base_named, else_=_FIGURES_OF_ANOTHER_JOB)
        async with await open_backend(config.backend, config) as backend:
            await model.register(backend)
            name = model.get_inference_name()
        identity = {"remote": config.backend.url, "model": name, "project": model.project}
        return SampledModel(name, identity, lambda: _serve_policy(model, scenario, config))
    if (directory / "model.json").is_file():
        return _checkpoint(str(directory), scenario, config, runs_root())
    if given.model.name is not None:
        runs = sorted(path.parent.name for path in directory.parent.glob("*/model.json"))
        raise RunDirectoryError(
            f"there is no run {model.name} of {scenario.name}; there are: {', '.join(runs) or 'none'}",
            "Name one of these, or leave --name out.",
        )
    check_base_fits(model.base_model, scenario, named=base_named, else_=_FIGURES_OF_ANOTHER_JOB)
    start = model.from_checkpoint
    if start is not None and "://" not in start:
        start = str(find_checkpoint(start, runs_root()))
        model = model.model_copy(update={"from_checkpoint": start})
    return _local(f"{model.name}@0", {"start": _content(start)}, model, scenario, config)


def _checkpoint(named: str, scenario: Scenario, config: RunConfig, root: Path) -> SampledModel:
    """A run's checkpoint, or an adapter of another program."""
    run, step = None, None
    with contextlib.suppress(NamedRunError):
        run, step = split_step(named, root)
    adapter: Path | None = None
    if run is None or step != 0:
        try:
            adapter = find_checkpoint(named, root)
        except NamedCheckpointError:
            if run is None or step is not None or any((run / "checkpoints").glob("[0-9]*")):
                raise  # otherwise it is a run that has made no step yet
    if run is None and adapter is not None and adapter.parent.name == "checkpoints":
        run = adapter.parent.parent
    if run is not None and (run / "model.json").is_file():
        known = read_description(run / "model.json")
        start = None if adapter is None else str(adapter)
        if adapter is None and isinstance(known.get("from_checkpoint"), dict):
            start = str(run / "start" / f"{0:06d}")
        model = TrainableModel(
            name=str(known["name"]),
            project="evaluate",
            base_model=str(known["base_model"]),
            lora=LoraSettings.model_validate(known.get("lora", {})),
            policy=PolicySettings.model_validate(known.get("policy", {})),
            from_checkpoint=start,
            renderer=_renderer(run) or config.model.renderer,
        )
        name = f"{known['project']}/{known['name']}@{0 if adapter is None else int(adapter.name)}"
    else:
        from gavel.trainer.policy.loading import adapter_base

        assert adapter is not None
        model = TrainableModel(
            name="adapter",
            project="evaluate",
            base_model=adapter_base(adapter) or config.model.base_model,
            lora=config.model.lora,
            policy=config.model.policy,
            from_checkpoint=str(adapter),
            renderer=config.model.renderer,
        )
        name = named
    return _local(name, {"start": _content(model.from_checkpoint)}, model, scenario, config)


def _renderer(run: Path) -> str | None:
    """The renderer named by the run's own settings."""
    try:
        table: Any = tomllib.loads((run / "run.toml").read_text(encoding="utf-8"))
        return table["model"]["renderer"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _content(adapter: str | None) -> str | None:
    """A hash of an adapter's weights; of one in a store, its address."""
    if adapter is None or "://" in adapter:
        return adapter
    digest = hashlib.sha256()
    for file in sorted(Path(adapter).glob("adapter_*")):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def _local(
    name: str, identity: dict[str, Any], model: TrainableModel, scenario: Scenario, config: RunConfig
) -> SampledModel:
    """A model of this machine."""
    policy = model.policy.model_dump(mode="json")
    identity = {"base": model.base_model, "policy": policy, "engine_context": config.backend.max_context} | identity
    if files := describe_model(model).get("base_files"):
        identity["base_files"] = files
    return SampledModel(name, identity, lambda: _serve_policy(model, scenario, config, elsewhere=True))


@contextlib.asynccontextmanager
async def _serve_policy(
    model: TrainableModel, scenario: Scenario, config: RunConfig, *, elsewhere: bool = False
) -> AsyncGenerator[Play]:
    """`elsewhere`: from a directory that is deleted afterwards, so that measuring leaves no run behind."""
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(tempfile.TemporaryDirectory(prefix="gavel-evaluate-")) if elsewhere else None
        async with await open_backend(config.backend, config, path) as backend:
            await model.register(backend)
            yield _make_play(model, scenario, config)


@contextlib.asynccontextmanager
async def _serve_api(name: str, scenario: Scenario, config: RunConfig, budget: Budget) -> AsyncGenerator[Play]:
    async def play(task: Task, seed: int) -> TrajectoryGroup:
        agent = ChatAgent(name, budget)
        refused: list[BudgetError] = []

        async def turn(request: ChatRequest) -> ChatCompletion | Message:
            try:
                return await agent.turn(
                    request.messages,
                    request.tools,
                    temperature=request.temperature,
                    max_completion_tokens=request.max_tokens,
                    seed=None if request.seed is None else request.seed % 2**31,
                    max_retries=_RETRIES,
                )
            except BudgetError as error:
                refused.append(error)
                raise

        group = await _make_play(FunctionModel(name, turn), scenario, config)(task, seed)
        if refused:
            raise LlmError(
                refused[0].message, "Raise --max-cost; the same command goes on with the episodes that are missing."
            )
        group.metrics.pop(COST, None)
        if agent.cost_usd is not None:
            group.metrics[COST] = agent.cost_usd
        return group

    yield play


def _make_play(model: ChatModel, scenario: Scenario, config: RunConfig) -> Callable[[Task, int], Any]:
    async def play(task: Task, seed: int) -> TrajectoryGroup:
        others: list[Trajectory] = []
        first = await rollout(
            model,
            scenario,
            task,
            temperature=config.loop.temperature,
            max_tokens=config.loop.max_tokens,
            seed=seed,
            fields=COMPACT if isinstance(model, TrainableModel) else None,  # others may refuse it
            others=others,
        )
        return TrajectoryGroup([first, *others], metrics={COST: 0.0} if isinstance(model, TrainableModel) else {})

    return play
