"""Rollout inference: token ids in, token ids and their log-probs out.

Whatever samples tokens for training speaks this protocol, so that the endpoint in front of it is
always the same code. Log-probs are those of the distribution sampled from (temperature applied).
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from gavel.errors import GavelError

if TYPE_CHECKING:
    import torch

DEADLINE = 600.0
"""Seconds that a request, a publication or a scoring may take, the wait for others included."""


class EngineError(GavelError):
    """The engine cannot serve a request, or has stopped."""


class ContextOverflow(EngineError):
    """A prompt leaves no room for a single token."""


class AdapterGone(EngineError):
    """A request asks for an adapter that the engine does not hold."""

    def __init__(self, wanted: int, held: Iterable[int]) -> None:
        live = ", ".join(map(str, held)) or "none"
        super().__init__(
            f"the adapter of step {wanted} is not held; there are: {live}",
            "A conversation that takes longer than max_staleness steps cannot be ended: begin it again.",
        )


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
    adapter_version: int | None = None
    """Which of the adapters that the engine holds; None = the live one."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What the engine made of a request."""

    token_ids: list[int]
    """The stop token included, when there was one."""
    logprobs: list[float]
    """One for each of `token_ids`, in nats."""
    finish_reason: Literal["stop", "length"]
    adapter_version: int


@dataclass(frozen=True, slots=True)
class LoraFactors:
    """What an adapter adds to one linear layer: y = W x + scale * B (A x)."""

    layer: str
    """Its name in the plain model."""
    a: "torch.Tensor"
    """`[rank, in]`"""
    b: "torch.Tensor"
    """`[out, rank]`"""
    scale: float


class Adapter(Protocol):
    """What is published, in whichever form an engine takes it."""

    def merged_weights(self) -> "Iterator[tuple[str, torch.Tensor]]":
        """The adapted weights, which nobody changes afterwards, by their names in the plain model."""
        ...

    def factors(self) -> Iterator[LoraFactors]:
        """The adapter itself, layer by layer."""
        ...

    def save_adapter(self, directory: Path) -> None:
        """Writes it as PEFT does."""
        ...


class Engine(Protocol):
    """A sampler with one live adapter, to be asked once one has been published.

    It holds the adapters that were published last, as many as it was told to, for conversations that began with them.
    Every request is sampled by one adapter from its first token to its last.
    """

    @property
    def adapter_version(self) -> int:
        """Version of the live adapter."""
        ...

    @property
    def adapter_versions(self) -> list[int]:
        """Those that can be asked for, the live one last."""
        ...

    @property
    def closed(self) -> bool:
        """Whether it has been closed, or has stopped with an error."""
        ...

    @property
    def max_context(self) -> int:
        """Tokens of a prompt and its reply, at most."""
        ...

    def submit(self, request: SamplingRequest) -> "Future[Sampled]":
        """Queues a request; raises `ContextOverflow`, `AdapterGone` or `EngineError` through the future.

        Cancelling the future ends the sampling and frees its place.
        """
        ...

    def publish(self, adapter: Adapter, version: int) -> None:
        """Makes an adapter live: requests submitted after this returns get it; those in flight keep theirs."""
        ...

    def score(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probs of `token_ids[1:]` under the live adapter, at temperature 1."""
        ...

    def making_room(self) -> AbstractContextManager[None]:
        """Held while the learner computes: an engine that is told to share its device hands the memory over."""
        ...

    def close(self) -> None:
        """Fails what is in flight and frees everything; closing again does nothing."""
        ...
