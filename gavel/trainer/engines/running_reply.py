"""A reply that the embedded engine is sampling."""

import contextlib
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from gavel.trainer.engines.adapter_cache import CachedAdapter
from gavel.trainer.engines.draws import Draw
from gavel.trainer.engines.grammar import Constraint
from gavel.trainer.engines.protocol import EngineError, Sampled, SamplingRequest


@dataclass(slots=True)
class RunningReply:
    """Its tokens so far, and where it is computed."""

    request: SamplingRequest
    future: "Future[Sampled]"
    ids: np.ndarray
    """Of the prompt."""
    adapter: CachedAdapter
    constraint: Constraint | None
    slot: int = -1
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list[list[tuple[int, float]]])
    redrawn: int = 0

    def extend(self, drawn: Draw) -> None:
        self.token_ids.append(drawn.token)
        self.logprobs.append(drawn.logprob)
        self.redrawn += drawn.again
        top = [] if drawn.likeliest is None else [drawn.likeliest]
        self.top_logprobs += top
        if self.request.on_tokens is not None:
            version = self.adapter.version
            self.request.on_tokens(Sampled([drawn.token], [drawn.logprob], "stop", version, top, int(drawn.again)))

    def refuse(self, error: EngineError) -> None:
        """Fails it; it leaves the batch as one that was cancelled."""
        with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
            self.future.set_exception(error)

    def finish_reason(self, max_context: int) -> Literal["stop", "length"] | None:
        """None while it goes on, and while its prompt is not fully computed."""
        if not self.token_ids:
            return None
        if self.token_ids[-1] in self.request.stop_ids:
            return "stop"
        room = min(self.request.max_tokens, max_context - len(self.ids))
        return "length" if len(self.token_ids) >= room else None

    def sampled(self, finish_reason: Literal["stop", "length"]) -> Sampled:
        return Sampled(
            self.token_ids, self.logprobs, finish_reason, self.adapter.version, self.top_logprobs, self.redrawn
        )
