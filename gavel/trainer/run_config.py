"""A whole training run as plain data: what `gavel train run.toml` reads and `gavel config` prints.

    RunConfig.model_validate({"scenario": "returns_desk", "train": {"loss": {"kind": "gspo"}}}).resolved()

Values that follow from others (the name of the run, the learning rate's schedule) are left out of a file and filled in
by `resolved`. Importing this loads no torch.
"""

import re
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from gavel.judge.config import JudgeConfig
from gavel.trainer.config import (
    EngineChoice,
    EvolveConfig,
    LoopConfig,
    LoraSettings,
    PolicySettings,
    Settings,
    SftConfig,
    TrainConfig,
)
from gavel.trainer.embedded import EMBEDDED, EMBEDDED_POLICY
from gavel.trainer.runs.trackers import TrackerName

_EMBEDDED_LEARNING_RATE = 2e-3
"""A model of at most a few million parameters needs far larger steps."""
_EMBEDDED_IMITATION_RATE, _EMBEDDED_EPOCHS = 4e-3, 3


class ModelConfig(Settings):
    """The model that is trained."""

    base_model: str = EMBEDDED_POLICY
    """Base model: a directory, a hub id, tool-caller (a tiny one that calls any scenario's tools, for a laptop),
    smollm2-135m (a small real one), or one made for a single scenario: embedded/returns-desk, embedded/booking-desk."""
    name: str | None = None
    """Name of the run. Default: made from the base model."""
    from_checkpoint: str | None = None
    """Begins with the adapter of a checkpoint, of `gavel sft` or of another run: a run (sft/qwen3-4b), a step of it
    (sft/qwen3-4b@12), or the directory of an adapter. Its LoRA settings must be these."""
    renderer: str | None = None
    """Chat format of the `renderers` library; only for a model that it does not know by name."""
    lora: LoraSettings = LoraSettings()
    policy: PolicySettings = PolicySettings()


class BackendConfig(Settings):
    """Where the model is trained and sampled."""

    url: str | None = None
    """Address of a `gavel backend` that trains and samples instead of this machine; GAVEL_BACKEND_KEY is its key. The
    other settings here are then its own."""
    engine: EngineChoice = "transformers"
    """Engine of the rollouts: transformers (in this process), vllm, or the address of a vLLM server, or several with
    commas between them."""
    max_context: int | None = Field(default=None, ge=16)
    """Maximum tokens of a conversation. Default: the model's own, or what memory holds of it."""
    max_reply: int | None = Field(default=None, ge=1)
    """Maximum tokens of a reply whose request sets none. Default: the rest of the context."""
    slots: int = Field(default=128, ge=1)
    """Conversations in the engine's cache at once."""
    processes: int = Field(default=1, ge=1)
    """Processes that learn, on this machine: one for each GPU."""
    earlier_policies: int = Field(default=0, ge=0)
    """Policies of earlier steps to play against (`gavel.Agent(steps_back=…)`), served beside the live one."""
    shard_base: bool = False
    """Shards the base model over the processes, for one that does not fit one GPU; needs vllm."""
    tracker: TrackerName | None = None
    """Where metrics, groups and the report are shown besides the run directory. Default: wandb, if WANDB_MODE or
    WANDB_API_KEY asks for it."""

    @field_validator("engine", mode="before")
    @classmethod
    def _read_address(cls, value: Any) -> Any:
        if value in ("transformers", "vllm"):
            return value
        if not isinstance(table := engine_table(value), str):
            return table
        raise ValueError(
            f"there is no engine {value!r}: name transformers, vllm, or the address of a vLLM server such as "
            "http://127.0.0.1:8000"
        )


def engine_table(engine: object) -> object:
    """The settings of vLLM that `vllm` or an address stand for, as a table; anything else as it is."""
    if engine == "vllm":
        return {}
    if isinstance(engine, str) and engine.startswith(("http://", "https://")):
        return {"urls": engine}
    return engine


def with_loss_kind(data: Any) -> Any:
    """The tables of a run; a table of the loss without a kind is one of the default loss."""
    match data:
        case {"train": {"loss": {**loss}}} if "kind" not in loss:
            kind = TrainConfig().loss.kind
            return {**data, "train": {**data["train"], "loss": {"kind": kind, **loss}}}
        case _:
            return data


class RunConfig(Settings):
    """One training run."""

    scenario: str
    """A shipped scenario, file.py, or file.py:variable; several with + between them are trained on together."""
    weights: dict[str, float] = Field(default={})
    """Of several scenarios, their shares of a step's groups: returns_desk=3. 20:returns_desk=3 is the weight from step
    20 on, and 0 before, unless there is another. Default: 1 each."""
    model: ModelConfig = ModelConfig()
    judge: JudgeConfig = JudgeConfig()
    loop: LoopConfig = LoopConfig()
    train: TrainConfig = TrainConfig()
    backend: BackendConfig = BackendConfig()

    @model_validator(mode="before")
    @classmethod
    def _default_loss_kind(cls, data: Any) -> Any:
        return with_loss_kind(data)

    def resolved(self) -> "RunConfig":
        """The same with every value that was not set and follows from others filled in."""
        model, loop, train, judge = self.model, self.loop, self.train, self.judge
        default_rate = _EMBEDDED_LEARNING_RATE if model.base_model in EMBEDDED else train.learning_rate
        return self.model_copy(
            update={
                "model": _fill(model, name=model.name or _slug(model.base_model)),
                "loop": _fill(loop, final_tasks=loop.evaluation_tasks),
                "judge": _fill(judge, seed=loop.seed),
                "train": _fill(
                    train,
                    learning_rate=default_rate,
                    warmup_steps=min(3, loop.steps - 1),
                    total_steps=loop.steps,
                ),
            }
        )


class EvolveRunConfig(Settings):
    """One run of `gavel evolve`."""

    scenario: str
    """A shipped scenario, file.py, or file.py:variable."""
    base: list[Path] = Field(default=[])
    """Files of trajectories that every iteration imitates, too: demonstrations, all of them; of groups with scores, the
    members that `best` and `above` choose."""
    model: ModelConfig = ModelConfig()
    judge: JudgeConfig = JudgeConfig()
    evolve: EvolveConfig = EvolveConfig()
    train: SftConfig = SftConfig()
    backend: BackendConfig = BackendConfig()

    def resolved(self) -> "EvolveRunConfig":
        """The same with every value that was not set and follows from others filled in."""
        model, train = self.model, self.train
        embedded = model.base_model in EMBEDDED
        rate = _EMBEDDED_IMITATION_RATE if embedded else train.learning_rate
        epochs = _EMBEDDED_EPOCHS if embedded else train.epochs
        return self.model_copy(
            update={
                "model": _fill(model, name=model.name or f"evolve-{_slug(model.base_model)}"),
                "judge": _fill(self.judge, seed=self.evolve.seed),
                "train": _fill(train, learning_rate=rate, epochs=epochs),
            }
        )


class ChooseConfig(Settings):
    """Which members of judged groups are imitated."""

    best: int = Field(default=1, ge=1)
    """Members of each group, those with the highest scores."""
    above: float | None = None
    """Only members whose score is greater than this."""


class ImitationConfig(Settings):
    """One run of `gavel sft`."""

    model: ModelConfig = ModelConfig()
    choose: ChooseConfig = ChooseConfig()
    train: SftConfig = SftConfig()
    backend: BackendConfig = BackendConfig()
    seed: int = 0
    """Shuffles the trajectories in every epoch."""

    @property
    def run_name(self) -> str:
        return self.model.name or _slug(self.model.base_model)


def _fill(config: Any, **values: Any) -> Any:
    return config.model_copy(update={n: v for n, v in values.items() if n not in config.model_fields_set})


def _slug(base_model: str) -> str:
    return re.sub(r"[^\w.-]+", "-", base_model.rstrip("/").split("/")[-1]).lower()
