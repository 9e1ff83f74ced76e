"""What can be set about training. One object per concern; nothing here that nobody reads."""

import os
import sys
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LoraSettings(_Settings):
    """The adapter, on all linear layers (Hu et al., 2021, arXiv 2106.09685)."""

    rank: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    """Update scale; the update is multiplied by alpha / rank."""
    seed: int = 0
    """For the random half of the adapter."""


class VllmSettings(_Settings):
    """vLLM as the engine of rollouts: a process that is started and ended here, or a server that runs already."""

    url: str | None = Field(default=None, pattern=r"^https?://")
    """Address of a running server, which must see the run directory; None starts one."""
    api_key: SecretStr | None = None
    """Its key, if it wants one."""
    python: str = Field(default_factory=lambda: os.environ.get("GAVEL_VLLM_PYTHON") or sys.executable)
    """Interpreter of the environment that holds vLLM, to start it with. Default: GAVEL_VLLM_PYTHON, else this one."""
    gpu_memory_utilization: float = Field(default=0.45, gt=0, le=1)
    """Share of the GPU's memory that a started server takes; the learner needs the rest, unless it sleeps."""
    sleep: bool = False
    """Whether the server hands its GPU memory to the learner during every training step."""
    start_seconds: float = Field(default=900.0, gt=0)
    """Until when a started server must be ready."""
    arguments: tuple[str, ...] = ()
    """Further arguments for a started server, as of `vllm serve`."""


EngineChoice = Literal["transformers", "vllm"] | VllmSettings
"""Who samples the rollouts: the embedded engine, a vLLM that is started with default settings, or one as described."""


class TrainConfig(_Settings):
    """One call of `model.train`: GRPO with a clipped surrogate (arXiv 2402.03300)."""

    learning_rate: float = Field(default=1e-5, gt=0)
    """Peak; for LoRA about ten times that of full fine-tuning."""
    warmup_steps: int = Field(default=0, ge=0)
    """Linear warm-up."""
    total_steps: int | None = Field(default=None, ge=1)
    """With it the rate decays linearly, reaching zero after this step; without it, it stays."""
    advantage: Literal["mean", "std"] = "mean"
    """Reward minus the group's mean; `std` divides by the group's standard deviation too."""
    minimal_spread: float = Field(default=1e-6, ge=0)
    """A group whose rewards differ by no more than this gives no signal and is left out."""
    aggregation: Literal["grpo", "dapo", "dr_grpo"] = "dapo"
    """How token losses are averaged: over tokens then sequences, over all tokens, or by a constant length."""
    constant_length: int = Field(default=1024, ge=1)
    """The length of dr_grpo (arXiv 2503.20783), in tokens."""
    clip_low: float = Field(default=0.2, ge=0)
    clip_high: float = Field(default=0.2, ge=0)
    """The ratio to the sampler's probability counts from 1 - clip_low to 1 + clip_high."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence (k3) from the base model."""
    max_gradient_norm: float = Field(default=1.0, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    micro_batch_tokens: int = Field(default=16384, ge=1)
    """Padded tokens per forward pass: bounds memory, does not change the result."""


class LoopConfig(_Settings):
    """A whole training run of one scenario."""

    steps: int = Field(default=50, ge=1)
    tasks_per_step: int = Field(default=16, ge=1)
    """Groups in a step."""
    group_size: int = Field(default=8, ge=2)
    """Rollouts of a task: the members that the judge compares."""
    temperature: float = Field(default=1.0, gt=0)
    max_tokens: int | None = Field(default=None, ge=1)
    """Of one turn."""
    concurrency: int = Field(default=128, ge=1)
    """Rollouts at once."""
    seed: int = 0
    """Chooses the tasks and seeds every sampled turn."""
    evaluate_every: int = Field(default=5, ge=1)
    """Steps between two points of the learning curve."""
    evaluation_tasks: int = Field(default=128, ge=1)
    """Held-out tasks of a point of the curve."""
    final_tasks: int = Field(default=512, ge=1)
    """Held-out tasks of the first and the last evaluation."""
    keep_checkpoints: int = Field(default=3, ge=1)
