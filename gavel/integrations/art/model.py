"""ART's `Model` and `TrainableModel`: names, a user-defined config, and calls to a model of Gavel.

model = art.TrainableModel(name="agent-1", project="mail", base_model="Qwen/Qwen3-4B", config=AgentConfig())
await model.register(LocalBackend())
result = await model.train(groups, config=art.TrainConfig(learning_rate=1e-5))
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, cast

from openai import AsyncOpenAI
from pydantic import BaseModel, ConfigDict, PrivateAttr

import gavel.trainer.model as core
from gavel.base.files import write_atomically
from gavel.integrations.art.dev import InternalModelConfig
from gavel.integrations.art.errors import absent, ignored
from gavel.integrations.art.types import LocalTrainResult, TrainConfig, TrainSFTConfig
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory, as_metrics
from gavel.trainer.backends.protocol import NotRegisteredError
from gavel.trainer.config import LoraSettings, PolicySettings

Config = TypeVar("Config")
State = TypeVar("State")
CostCalculator = Callable[[int | None, int | None, str], dict[str, float]]
"""Computes a reply's costs, as metrics, from its prompt and completion tokens and its purpose."""


Groups = Iterable[TrajectoryGroup | Trajectory | list[Trajectory]]


class Backend(Protocol):
    """The backend of a model: `LocalBackend`."""

    async def register(self, model: "Model[Any]") -> None: ...

    async def train(
        self, model: "TrainableModel[Any]", trajectory_groups: Groups, **settings: Any
    ) -> LocalTrainResult: ...

    async def train_sft(
        self, model: "TrainableModel[Any]", trajectories: Iterable[Trajectory], config: TrainSFTConfig
    ) -> LocalTrainResult: ...

    async def log(
        self, model: "Model[Any]", groups: list[TrajectoryGroup] | None, split: str, metrics: Mapping[str, float]
    ) -> None: ...


class Model(BaseModel, Generic[Config]):
    """A model behind an OpenAI-compatible API, not trained."""

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="ignore")

    name: str
    project: str
    entity: str | None = None
    id: str | None = None
    run_id: str | None = None
    config: Config | None = None
    trainable: bool = False
    inference_api_key: str | None = None
    inference_base_url: str | None = None
    inference_model_name: str | None = None
    base_path: str = ".art"
    """Directory of the runs; `register` sets it to the backend's path."""
    report_metrics: list[str] | None = None

    _backend: Backend | None = PrivateAttr(default=None)
    _core: core.Model | None = PrivateAttr(default=None)

    def __init__(self, **fields: Any) -> None:
        for name in set(fields) - set(type(self).model_fields) - {"_internal_config"}:
            ignored(f"{type(self).__name__.partition('[')[0]}({name}=…)", "no such field is known")
        for name in ("entity", "report_metrics"):
            if fields.get(name) is not None:
                ignored(f"{name}=…", "metrics go to metrics.jsonl, and to W&B when WANDB_API_KEY or WANDB_MODE is set")
        super().__init__(**fields)

    if not TYPE_CHECKING:  # a type checker detects a misspelt name itself

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError as error:
                raise absent(self, name) from error

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """An unregistered model with the same fields: scripts copy one to change its name."""
        return type(self)(**{name: deepcopy(value, memo) for name, value in self})

    def backend(self) -> Backend:
        """The backend. Raises `NotRegisteredError` before `register`."""
        if self._backend is None:
            remedy = "First: await model.register(LocalBackend())"
            raise NotRegisteredError(f"the model {self.name} has no backend yet", remedy)
        return self._backend

    async def register(self, backend: Backend, _openai_client_config: Any = None) -> None:
        """Prepares the model; a trainable one resumes from its newest checkpoint."""
        if _openai_client_config:
            ignored("register(_openai_client_config=…)", "the endpoint needs no settings; pass engine= to LocalBackend")
        await backend.register(self)
        self._backend = backend

    def gavel_model(self) -> core.Model:
        """The underlying model of Gavel."""
        project, name = gavel_name(self.project), gavel_name(self.name)
        if self._core is None or self._core.key != (project, name):
            self._core = self._make_core(project=project, name=name)
        return self._core

    def openai_client(self) -> AsyncOpenAI:
        """A client of the API that serves this model."""
        return self.gavel_model().openai_client()

    def litellm_completion_params(self, step: int | None = None) -> dict[str, Any]:
        """Arguments of `litellm.acompletion` for this model."""
        return {
            "model": self.get_inference_name(step),
            "base_url": self.inference_base_url,
            "api_key": self.inference_api_key,
            "temperature": 1,
        }

    def get_inference_name(self, step: int | None = None) -> str:
        """The value of `model` in a request; for a trained model, the adapter of `step` (default: the live one)."""
        name = self.inference_model_name or self.name
        return name if step is None else f"{name}@{step}"

    async def log(
        self,
        trajectories: Iterable[TrajectoryGroup | Trajectory | list[Trajectory] | BaseException] | None = None,
        split: str = "val",
        *,
        metrics: Mapping[str, float] | None = None,
        step: int | None = None,
    ) -> None:
        """Stores trajectories, and their mean metrics with `metrics`; what training stored is skipped."""
        groups = None if trajectories is None else _as_groups(trajectories)
        await self.backend().log(self, groups, split, as_metrics(metrics or {}))

    async def get_step(self) -> int:
        """Training steps so far; 0 for an untrained model."""
        return 0

    def read_state(self) -> dict[str, Any] | None:
        """The state stored by `merge_state` and `overwrite_state`, or None."""
        file = self.output_dir / "state.json"
        return cast("dict[str, Any]", json.loads(file.read_text())) if file.exists() else None

    def overwrite_state(self, state: Mapping[str, Any]) -> None:
        """Stores `state` beside the run, replacing the previous one."""
        self.output_dir.mkdir(parents=True, exist_ok=True)
        write_atomically(self.output_dir / "state.json", json.dumps(dict(state), indent=2))

    write_state = overwrite_state

    def merge_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Merges `state`, including nested dicts, into the stored state; returns the result."""
        merged = _merged(self.read_state() or {}, state)
        self.overwrite_state(merged)
        return merged

    def safe_model_dump(self, *args: Any, **options: Any) -> dict[str, Any]:
        """The fields, without the config."""
        return self.model_dump(*args, **options) | {"config": None}

    def update_wandb_config(self, config: Mapping[str, Any]) -> None:
        """Has no effect, except a warning."""
        ignored("model.update_wandb_config(…)", "a run's settings are in its model.json")

    @property
    def output_dir(self) -> Path:
        """ART's directory of the model, with state and links to its checkpoints."""
        return Path(self.base_path, gavel_name(self.project), "models", gavel_name(self.name))

    def _make_core(self, **key: str) -> core.Model:
        return core.Model(
            **key,
            inference_model_name=self.inference_model_name or self.name,
            inference_base_url=self.inference_base_url,
            inference_api_key=self.inference_api_key,
        )


_PEFT = {
    "r": "rank",
    "lora_alpha": "alpha",
    "target_modules": "targets",
    "lora_dropout": "dropout",
    "use_rslora": "rslora",
    "random_state": "seed",
}
"""Names of `peft_args`, and Gavel's."""


class TrainableModel(Model[Config], Generic[Config]):
    """A base model with a LoRA adapter that is trained."""

    base_model: str
    trainable: bool = True

    _internal_config: InternalModelConfig | None = PrivateAttr(default=None)
    _cost_calculator: CostCalculator | None = PrivateAttr(default=None)

    def __init__(self, *, _internal_config: InternalModelConfig | None = None, **fields: Any) -> None:
        super().__init__(**fields)
        self._internal_config = _internal_config

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        copied = super().__deepcopy__(memo)
        copied._internal_config = deepcopy(self._internal_config, memo)
        return copied

    @property
    def internal_config(self) -> InternalModelConfig:
        return self._internal_config or {}

    def get_inference_name(self, step: int | None = None) -> str:
        if step is not None:
            return f"{gavel_name(self.name)}@{step}"
        return self.gavel_model().get_inference_name()

    def litellm_completion_params(self, step: int | None = None) -> dict[str, Any]:
        params = super().litellm_completion_params(step)
        return params | {"model": f"hosted_vllm/{params['model']}"}

    @property
    def cost_calculator(self) -> CostCalculator:
        """The calculator of `set_cost_calculator`; by default there are no costs: the model runs on this machine."""
        return self._cost_calculator or (lambda prompt_tokens, completion_tokens, purpose: {})

    def set_cost_calculator(self, calculator: CostCalculator | None) -> None:
        self._cost_calculator = calculator

    async def get_step(self) -> int:
        try:
            return await self.gavel_model().get_step()
        except NotRegisteredError:
            if self._backend is None:
                raise
            return newest_step(self.output_dir / "checkpoints")  # its backend is closed

    async def train(
        self,
        trajectory_groups: Groups,
        config: TrainConfig | None = None,
        _config: Mapping[str, Any] | None = None,
        verbose: bool = False,
        **settings: Any,
    ) -> LocalTrainResult:
        """Runs one training step; stores its trajectories and metrics. `_config`: options of `backend.train`."""
        given = (config or TrainConfig()).model_dump(exclude_unset=True) | dict(_config or {}) | settings
        return await self.backend().train(self, trajectory_groups, **given)

    async def train_sft(
        self,
        trajectories: Iterable[Trajectory],
        config: TrainSFTConfig | None = None,
        _config: Mapping[str, Any] | None = None,
        verbose: bool = False,
    ) -> LocalTrainResult:
        """Supervised training on every assistant turn; stores metrics under the split `sft`."""
        for name in _config or {}:
            ignored(f"train_sft(_config={{{name!r}: …}})", "supervised training takes a rate and a batch size")
        return await self.backend().train_sft(self, trajectories, config or TrainSFTConfig())

    async def delete_checkpoints(self, best_checkpoint_metric: str = "val/reward") -> None:
        """Deletes all checkpoints except the newest, and the one with the highest `best_checkpoint_metric`."""
        await cast("core.TrainableModel", self.gavel_model()).delete_checkpoints(best_checkpoint_metric)

    def _make_core(self, **key: str) -> core.TrainableModel:
        internal = self.internal_config
        peft: dict[str, Any] = internal.get("peft_args") or {}
        for name in set(peft) - set(_PEFT):
            ignored(f"peft_args[{name!r}]", "the adapter has rank, alpha, targets, dropout, rslora and seed")
        return core.TrainableModel(
            **key,
            base_model=self.base_model,
            lora=LoraSettings(**{ours: peft[name] for name, ours in _PEFT.items() if peft.get(name) is not None}),
            policy=PolicySettings(chat_template_kwargs=internal.get("chat_template_kwargs") or {}),
        )


def gavel_name(name: str) -> str:
    """A valid directory name: `openai/gpt-5-mini` is a valid name of a model in ART."""
    return name.replace("/", "--")


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for name, value in new.items():
        nested = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _merged(merged[name], cast("Mapping[str, Any]", value)) if nested else value
    return merged


def as_group(item: TrajectoryGroup | Trajectory | list[Trajectory]) -> TrajectoryGroup:
    """A group unchanged; a list of trajectories, or a single one, as a group."""
    return item if isinstance(item, TrajectoryGroup) else TrajectoryGroup(item if isinstance(item, list) else [item])


def _as_groups(
    items: Iterable[TrajectoryGroup | Trajectory | list[Trajectory] | BaseException],
) -> list[TrajectoryGroup]:
    """Groups unchanged; single trajectories, and exceptions among them, as one group."""
    given = [items] if isinstance(items, TrajectoryGroup) else list(items)
    groups = [as_group(item) for item in given if isinstance(item, TrajectoryGroup | list)]
    singles = [item for item in given if not isinstance(item, TrajectoryGroup | list)]
    return [*groups, TrajectoryGroup(singles)] if singles else groups


def link_checkpoints(checkpoints: Path, links: Path) -> Path | None:
    """Makes `links` point to the contents of `checkpoints`; returns the link to the newest one."""
    links.mkdir(parents=True, exist_ok=True)
    for link in _numbered(links):
        if link.is_symlink() and not link.exists():
            link.unlink()
    saved = {links / f"{int(entry.name):04d}": entry for entry in _numbered(checkpoints)}
    for link in saved.keys() - set(_numbered(links)):
        link.symlink_to(os.path.relpath(saved[link], links), target_is_directory=True)
    return max(saved, default=None)


def newest_step(directory: Path) -> int:
    """The highest step with a checkpoint in `directory`; 0 if there is none."""
    return max((int(entry.name) for entry in _numbered(directory)), default=0)


def _numbered(directory: Path) -> list[Path]:
    return [entry for entry in (directory.iterdir() if directory.is_dir() else ()) if entry.name.isdecimal()]
