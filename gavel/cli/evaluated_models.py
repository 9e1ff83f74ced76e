"""Models of an evaluation by their names.

openai/gpt-5-mini          any model of LiteLLM
desk/clerk, desk/clerk@12  the newest checkpoint of a run, or that of a step; @0 is what the run began with
some/adapter               a directory of a PEFT adapter, of the base model that it names
base:Qwen/Qwen3-0.6B       a base model, untrained
"""

import contextlib
import hashlib
import tempfile
import tomllib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from openai.types.chat.chat_completion import ChatCompletion

from gavel.base.errors import GavelError
from gavel.cli.options import check_model
from gavel.cli.training import open_backend, run_directory_of, trainable
from gavel.llm.budget import Budget
from gavel.llm.client import ChatAgent
from gavel.llm.errors import BudgetError, LlmError, UnknownModelError
from gavel.llm.types import Message
from gavel.scenarios.agent import sample_turn
from gavel.scenarios.chat_model import ChatModel, ChatRequest, FunctionModel
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import LoraSettings
from gavel.trainer.data.token_sequences import COMPACT
from gavel.trainer.loop.model_samples import COST, Play, SampledModel
from gavel.trainer.model import TrainableModel
from gavel.trainer.model_spec import describe_model
from gavel.trainer.run_config import ModelConfig, RunConfig
from gavel.trainer.runs.run_directory import (
    NamedCheckpointError,
    NamedRunError,
    find_checkpoint,
    names_something,
    read_description,
    runs_root,
    split_step,
)

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
        check_model(ModelConfig(base_model=base), scenario, _FIGURES_OF_ANOTHER_JOB)
        untrained = {"name": "base", "base_model": base, "lora": LoraSettings(), "from_checkpoint": None}
        return _local(named, {}, trainable(config, "evaluate").model_copy(update=untrained), scenario, config)
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
    play = _make_play(model, scenario, config)
    return SampledModel(name, identity, lambda: contextlib.nullcontext(play))


async def find_own_model(scenario: Scenario, config: RunConfig, given: RunConfig, budget: Budget) -> SampledModel:
    """The newest policy of the run that `config` describes; what it begins with, where there is no run yet.

    `given`: the configuration before defaults were filled in. Raises `GavelError` where it names a run that is not
    there, and `ModelChoiceError` where nobody named the base and it is a built-in model of another scenario.
    """
    model = trainable(config, scenario.name)
    if config.backend.url is not None:
        check_model(config.model, scenario, _FIGURES_OF_ANOTHER_JOB)
        async with await open_backend(config) as backend:
            await model.register(backend)
            name = model.get_inference_name()
        identity = {"remote": config.backend.url, "model": name, "project": model.project}
        return SampledModel(name, identity, lambda: _serve_policy(model, scenario, config))
    named = model.from_checkpoint or f"{_BASE}{model.base_model}"
    if (run_directory_of(model) / "model.json").is_file():
        named = str(run_directory_of(model))
    elif given.model.name is not None:
        named = f"{scenario.name}/{model.name}"
    elif "base_model" not in config.model.model_fields_set:
        check_model(config.model, scenario, _FIGURES_OF_ANOTHER_JOB)
    return find_model(named, scenario, config, budget)


def _checkpoint(named: str, scenario: Scenario, config: RunConfig, root: Path) -> SampledModel:
    """A run's checkpoint, or an adapter of another program."""
    run, step, adapter = None, None, None
    with contextlib.suppress(NamedRunError):
        run, step = split_step(named, root)
    if run is None or step != 0:
        try:
            adapter = find_checkpoint(named, root)
        except NamedCheckpointError:
            if run is None or step is not None or any((run / "checkpoints").glob("[0-9]*")):
                raise  # otherwise it is a run that has made no step yet
    if run is None and adapter is not None and adapter.parent.name == "checkpoints":
        run = adapter.parent.parent
    start = None if adapter is None else str(adapter)
    if run is not None and (run / "model.json").is_file():
        known = read_description(run / "model.json")
        if adapter is None and isinstance(known.get("from_checkpoint"), dict):
            start = str(run / "start" / f"{0:06d}")
        renderer = None  # that of the run's own settings
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            renderer = tomllib.loads((run / "run.toml").read_text(encoding="utf-8"))["model"]["renderer"]
        served = {field: known[field] for field in ("name", "base_model", "lora", "policy") if field in known}
        served |= {"from_checkpoint": start, "renderer": renderer or config.model.renderer}
        model = TrainableModel.model_validate({**served, "project": "evaluate"})
        named = f"{known['project']}/{known['name']}@{0 if adapter is None else int(adapter.name)}"
    else:
        from gavel.trainer.policy.loading import adapter_base

        assert adapter is not None
        base = adapter_base(adapter) or config.model.base_model
        adapted = {"name": "adapter", "base_model": base, "from_checkpoint": start}
        model = trainable(config, "evaluate").model_copy(update=adapted)
    return _local(named, {"start": _content(start)}, model, scenario, config)


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
        async with await open_backend(config, path) as backend:
            await model.register(backend)
            yield _make_play(model, scenario, config)


@contextlib.asynccontextmanager
async def _serve_api(name: str, scenario: Scenario, config: RunConfig, budget: Budget) -> AsyncGenerator[Play]:
    async def play(task: Task, seed: int) -> TrajectoryGroup:
        agent, refused = ChatAgent(name, budget), list[BudgetError]()
        group = await _make_play(api_model(agent, refused), scenario, config)(task, seed)
        if refused:
            raise LlmError(
                refused[0].message, "Raise --max-cost; the same command goes on with the episodes that are missing."
            )
        group.metrics.pop(COST, None)
        if agent.cost_usd is not None:
            group.metrics[COST] = agent.cost_usd
        return group

    yield play


def api_model(agent: ChatAgent, refused: list[BudgetError] | None = None) -> FunctionModel:
    """The model that an agent asks; `refused` collects what its budget did not allow."""

    async def turn(request: ChatRequest) -> ChatCompletion | Message:
        try:
            return await sample_turn(agent, request, retries=_RETRIES)
        except BudgetError as error:
            if refused is not None:
                refused.append(error)
            raise

    return FunctionModel(agent.model, turn)


def _make_play(model: ChatModel, scenario: Scenario, config: RunConfig) -> Play:
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
