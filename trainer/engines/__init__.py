"""Rollout inference: token ids in, token ids and their log-probs out.

Whatever samples tokens for training speaks this protocol, so that the endpoint in front of it is
always the same code. Log-probs are those of the distribution sampled from (temperature applied).
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from scenarios.errors import GavelError

if TYPE_CHECKING:
    import torch


class EngineError(GavelError):
    """The engine cannot serve a request, or has stopped."""


class ContextOverflow(EngineError):
    """A prompt leaves no room for a single token."""


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """One turn to sample."""

    prompt_ids: Sequence[int]
    stop_ids: frozenset[int]
    max_tokens: int
    temperature: float
    """0 = the likeliest token; its log-prob is then that of temperature 1."""
    seed: int
    """The same seed and prompt give the same tokens on the same adapter."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What the engine made of a request."""

    token_ids: list[int]
    """The stop token included, when there was one."""
    logprobs: list[float]
    """One for each of `token_ids`, in nats."""
    finish_reason: Literal["stop", "length"]
    adapter_version: int


class Engine(Protocol):
    """A sampler with one live adapter."""

    @property
    def adapter_version(self) -> int:
        """Version of the live adapter."""
        ...

    def submit(self, request: SamplingRequest) -> "Future[Sampled]":
        """Queues a request; raises `ContextOverflow` or `EngineError` through the future."""
        ...

    def publish(self, weights: "Iterable[tuple[str, torch.Tensor]]", version: int) -> None:
        """Makes an adapter live, once the requests in flight are done. Blocks until it is."""
        ...

    def score(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probs of `token_ids[1:]` under the live adapter, at temperature 1."""
        ...

    def close(self) -> None: ...
