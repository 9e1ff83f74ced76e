"""ART's experimental settings, as the dicts that scripts make.

What has a counterpart is translated (docs/art.md says how); every other key is named once and has no effect.
"""

from typing import Any

from typing_extensions import TypedDict


class InitArgs(TypedDict, total=False):
    """How the base model is loaded."""

    model_name: str
    max_seq_length: int
    load_in_4bit: bool
    gpu_memory_utilization: float
    max_lora_rank: int


class EngineArgs(TypedDict, total=False):
    """How the sampler runs."""

    max_model_len: int
    gpu_memory_utilization: float
    enforce_eager: bool
    tensor_parallel_size: int


class PeftArgs(TypedDict, total=False):
    """The adapter."""

    r: int
    target_modules: list[str]
    lora_alpha: int
    lora_dropout: float
    random_state: int
    use_rslora: bool


class TrainerArgs(TypedDict, total=False):
    """The optimizer."""

    max_grad_norm: float
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    optim: str


class TinkerArgs(TypedDict, total=False):
    """Of a service that Gavel does not train on."""

    renderer_name: str


TinkerNativeArgs = TinkerArgs


class TinkerTrainingClientArgs(TypedDict, total=False):
    """Of a service that Gavel does not train on."""

    rank: int


class InternalModelConfig(TypedDict, total=False):
    """What `TrainableModel(_internal_config=…)` takes."""

    init_args: InitArgs
    engine_args: EngineArgs
    peft_args: PeftArgs
    trainer_args: TrainerArgs
    chat_template_kwargs: dict[str, Any]
    trainer_gpu_ids: list[int]
    inference_gpu_ids: list[int]


class ServerArgs(TypedDict, total=False):
    """Of vLLM's server."""

    host: str
    port: int
    tool_call_parser: str


class OpenAIServerConfig(TypedDict, total=False):
    """What `model.register(_openai_client_config=…)` takes."""

    log_file: str
    server_args: ServerArgs
    engine_args: EngineArgs


class TrainConfig(TypedDict, total=False):
    """What `model.train(_config=…)` takes."""

    epsilon: float
    epsilon_high: float | None
    importance_sampling_level: str
    kl_penalty_coef: float
    ppo: bool
    scale_rewards: bool
    truncated_importance_sampling: float | None


class TrainSFTConfig(TypedDict, total=False):
    """What `model.train_sft(_config=…)` takes."""
