"""What a trainer and its environments say of themselves when they register, and what is kept of it."""

import time
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

LEAST_WEIGHT = 0.01
"""Of an environment's share of the sampling, so that none is starved."""


class TrainerRegistration(BaseModel):
    """The body of `POST /register`."""

    model_config = ConfigDict(extra="allow")

    wandb_group: str
    wandb_project: str
    batch_size: int = Field(ge=1)
    """Sequences of a batch."""
    max_token_len: int
    checkpoint_dir: str
    save_checkpoint_interval: int
    starting_step: int = Field(ge=0)
    num_steps: int


class EnvRegistration(BaseModel):
    """The body of `POST /register-env`."""

    max_token_length: int = Field(ge=0)
    desired_name: str | None = None
    weight: float | None = Field(default=1.0, allow_inf_nan=False)
    group_size: int = Field(ge=1)
    min_batch_allocation: float | None = Field(default=None, ge=0, le=1)
    """Least share of each batch that is of this environment."""


class EnvIdentifier(BaseModel):
    """The body of `POST /disconnect-env` and of `GET /status-env`."""

    env_id: int


class RegisteredEnv(BaseModel):
    """An environment."""

    env_id: int
    real_name: str
    registration: EnvRegistration
    connected: bool = True
    registered_at: float = Field(default_factory=time.time)

    @property
    def weight(self) -> float:
        """The share of the sampling that it asks for, before it is compared with that of others."""
        registration = self.registration
        weight = 1.0 if registration.weight is None else registration.weight
        return registration.max_token_length * max(0.0, weight)


def share(env: RegisteredEnv, envs: list[RegisteredEnv]) -> float:
    """The environment's share among those that are connected, at least `LEAST_WEIGHT`."""
    total = sum(each.weight for each in envs if each.connected)
    return max(LEAST_WEIGHT, env.weight / total) if total > 0 else 1.0


def minimums(envs: list[RegisteredEnv], batch_size: int) -> dict[int, int]:
    """The least number of sequences in a batch, by environment; scaled down where they are more than the batch."""
    shares = {
        env.env_id: env.registration.min_batch_allocation
        for env in envs
        if env.connected and env.registration.min_batch_allocation
    }
    scale = 1 / max(1.0, sum(shares.values()))
    return {env_id: int(batch_size * part * scale) for env_id, part in shares.items()}


def unallocated(envs: list[RegisteredEnv]) -> float:
    """The share of a batch that no environment has reserved."""
    reserved = sum(env.registration.min_batch_allocation or 0.0 for env in envs if env.connected)
    return 1.0 - min(reserved, 1.0)


Answer = dict[str, Any]
