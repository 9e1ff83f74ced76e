"""The models of `gavel evaluate --models`: API models, checkpoints of runs, and untrained bases.

openai/gpt-5-mini          any model of LiteLLM
desk/clerk, desk/clerk@12  the newest checkpoint of a run, or that of a step; @0 is what the run began with
some/adapter               a directory of a PEFT adapter, of the base model that it names
base:Qwen/Qwen3-0.6B       a base model, untrained
"""

import contextlib
import hashlib
import tempfile
import tomllib
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

from openai.types.chat.chat_completion import ChatCompletion

from gavel.base.errors import GavelError
from gavel.cli.run_model import opened_backend, run_directory_of, trainable
from gavel.llm.budget import Budget
from gavel.llm.chat_agent import ChatAgent
from gavel.llm.errors import BudgetError, LlmError, UnknownModelError
from gavel.llm.types import Message
from gavel.scenarios.chat_model import ChatModel
from gavel.scenarios.function_model import ChatRequest, FunctionModel
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import LoraSettings, PolicySettings
from gavel.trainer.data.token_sequences import COMPACT
from gavel.trainer.loop.model_samples import COST, Play, SampledModel
from gavel.trainer.model import TrainableModel
from gavel.trainer.run_config import RunConfig
from gavel.trainer.runs.run_directory import (
    NamedCheckpointError,
    RunDirectoryError,
    find_checkpoint,
    names_something,
    read_description,
    runs_root,
)

_BASE = "base:"
_RETRIES = 4
"""Of a request whose server is busy."""


def model_named(named: str, scenario: Scenario, config: RunConfig, budget: Budget) -> SampledModel:
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
        spec = config.model.model_copy(update={"base_model": base})
        model = TrainableModel(name="base", project="evaluate", base_model=base, policy=spec.policy)
        model = model.model_copy(update={"renderer": spec.renderer})
        return _local(named, {"base": base, "policy": spec.policy.model_dump(mode="json")}, model, scenario, config)
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
    return SampledModel(named, {"api": named}, lambda: _serving_api(named, scenario, config, budget))


def model_given(model: ChatModel, scenario: Scenario, config: RunConfig) -> SampledModel:
    """A model that a program holds, such as a registered `gavel.TrainableModel`."""
    name = model.get_inference_name()
    identity = {"given": name, "key": list(getattr(model, "key", ()))}

    @contextlib.asynccontextmanager
    async def serving() -> AsyncGenerator[Play]:
        yield _playing(model, scenario, config)

    return SampledModel(name, identity, serving)


async def own_model(scenario: Scenario, config: RunConfig, *, must_exist: bool) -> SampledModel:
    """The newest policy of the run that `config` describes; its base, where there is no run yet.

    With `must_exist`, raises `RunDirectoryError` when there is none.
    """
    model = trainable(config, scenario)
    directory = run_directory_of(model)
    if config.backend.url is not None:
        async with await opened_backend(config.backend, config, None) as backend:
            await model.register(backend)
            name = model.get_inference_name()
        identity = {"remote": config.backend.url, "model": name, "project": model.project}
        return SampledModel(name, identity, lambda: _serving_policy(model, scenario, config, None))
    if (directory / "model.json").is_file():
        return _checkpoint(str(directory), scenario, config, runs_root())
    if must_exist:
        runs = sorted(path.parent.name for path in directory.parent.glob("*/model.json"))
        raise RunDirectoryError(
            f"there is no run {model.name} of {scenario.name}; there are: {', '.join(runs) or 'none'}",
            "Name one of these, or leave --name out.",
        )
    start = model.from_checkpoint
    if start is not None and "://" not in start:
        start = str(find_checkpoint(start, runs_root()))
        model = model.model_copy(update={"from_checkpoint": start})
    identity = {"base": model.base_model, "policy": model.policy.model_dump(mode="json"), "start": _content(start)}
    return _local(f"{model.name}@0", identity, model, scenario, config)


def _checkpoint(named: str, scenario: Scenario, config: RunConfig, root: Path) -> SampledModel:
    """A run's checkpoint, or an adapter of another program."""
    head, at, tail = named.rpartition("@")
    text, step = (head, int(tail)) if at and tail.isdecimal() and names_something(head, root) else (named, None)
    run = next((place for place in (Path(text), root / text) if (place / "model.json").is_file()), None)
    adapter: Path | None
    try:
        adapter = None if run is not None and step == 0 else find_checkpoint(named, root)
    except NamedCheckpointError:
        if run is None or step is not None or any((run / "checkpoints").glob("[0-9]*")):
            raise
        adapter = None  # a run that has made no step yet
    if run is None and adapter is not None and adapter.parent.name == "checkpoints":
        run = adapter.parent.parent
    if run is not None and (run / "model.json").is_file():
        known = read_description(run / "model.json")
        began = known.get("from_checkpoint")
        start = str(adapter) if adapter is not None else None
        if adapter is None and isinstance(began, dict):
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
        number = 0 if adapter is None else int(adapter.name)
        name = f"{known['project']}/{known['name']}@{number}"
    else:
        from gavel.trainer.policy.adapters import adapter_base

        assert adapter is not None
        base = adapter_base(adapter) or config.model.base_model
        model = TrainableModel(
            name="adapter",
            project="evaluate",
            base_model=base,
            lora=config.model.lora,
            policy=config.model.policy,
            from_checkpoint=str(adapter),
            renderer=config.model.renderer,
        )
        name = named
    identity = {"base": model.base_model, "policy": model.policy.model_dump(mode="json")}
    return _local(name, identity | {"start": _content(model.from_checkpoint)}, model, scenario, config)


def _renderer(run: Path) -> str | None:
    """As the run's own settings name it."""
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
    """A model of this machine, served from a directory that is deleted afterwards: measuring leaves no run behind."""
    identity |= {"engine_context": config.backend.max_context}
    return SampledModel(name, identity, lambda: _serving_apart(model, scenario, config))


@contextlib.asynccontextmanager
async def _serving_apart(model: TrainableModel, scenario: Scenario, config: RunConfig) -> AsyncGenerator[Play]:
    with tempfile.TemporaryDirectory(prefix="gavel-evaluate-") as elsewhere:
        async with _serving_policy(model, scenario, config, elsewhere) as play:
            yield play


@contextlib.asynccontextmanager
async def _serving_policy(
    model: TrainableModel, scenario: Scenario, config: RunConfig, path: str | None
) -> AsyncGenerator[Play]:
    async with await opened_backend(config.backend, config, path) as backend:
        await model.register(backend)
        yield _playing(model, scenario, config)


@contextlib.asynccontextmanager
async def _serving_api(name: str, scenario: Scenario, config: RunConfig, budget: Budget) -> AsyncGenerator[Play]:
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

        group = await _playing(FunctionModel(name, turn), scenario, config)(task, seed)
        if refused:
            raise LlmError(
                refused[0].message, "Raise --max-cost; the same command goes on with the episodes that are missing."
            )
        group.metrics.pop(COST, None)
        if agent.cost_usd is not None:
            group.metrics[COST] = agent.cost_usd
        return group

    yield play


def _playing(model: ChatModel, scenario: Scenario, config: RunConfig) -> Callable[[Task, int], Any]:
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
