"""The adapters that the embedded engine holds; the weights of its one model are those of one of them at a time.

In fp32 an adapter is merged into the weights, which costs nothing per token, but a copy of the adapted weights for each
that is held. Coarser or quantised weights would swallow small updates in their rounding, so there it stays beside them,
as in the learner. What puts one in place of another moves pointers only.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from gavel.trainer.engines.lora_layers import set_factors
from gavel.trainer.engines.protocol import Adapter, AdapterGone, LoraFactors
from gavel.trainer.policy.loading import is_quantized

Put = Callable[[], None]


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A published adapter."""

    version: int
    number: int
    """Its own; the same version may be published again."""
    put: Put
    """Makes it the one that the next pass computes with."""


class HeldAdapters:
    """The `versions` that were published last, and those that requests in flight still use.

    Touched by the engine's thread alone, but for `prepared` and `published`.
    """

    def __init__(self, model: Any, versions: int) -> None:
        self._model = model
        self._versions = versions
        self._parameters = dict(model.named_parameters())
        self._merges = model.dtype == torch.float32 and not is_quantized(model)
        self._numbers = itertools.count()
        plain = self._merged(self._parameters.items()) if self._merges else self._beside([])
        base = Held(0, next(self._numbers), plain)
        self.published = [base]
        """Those that can be asked for, the live one last; replaced whole, never changed."""
        self._retired: list[Held] = []
        self._in_place: Held | None = base

    def prepared(self, adapter: Adapter) -> Put:
        """What puts `adapter` in place, as it is at this moment. Raises KeyError when it does not fit."""
        return self._merged(adapter.merged_weights()) if self._merges else self._beside(adapter.factors())

    def publish(self, put: Put, version: int) -> None:
        """Makes an adapter live. Raises what `put` raises; then nothing has changed."""
        new = Held(version, next(self._numbers), put)
        self.activate(new)
        earlier = [held for held in self.published if held.number and held.version != version]  # 0 is the plain model
        kept = [*earlier, new][-self._versions :]
        self._retired += [held for held in self.published if held not in kept]
        self.published = kept

    def find(self, version: int | None) -> Held:
        """The adapter of a version, None for the live one. Raises `AdapterGone`."""
        for held in reversed(self.published):
            if version in (None, held.version):
                return held
        raise AdapterGone(version or 0, [held.version for held in self.published])

    def activate(self, held: Held) -> None:
        if held is not self._in_place:
            self._in_place = None  # should it fail half-way, whichever is next is put again
            held.put()
            self._in_place = held

    def let_go(self, in_use: Iterable[Held]) -> list[int]:
        """Drops what cannot be asked for and is not `in_use`; gives the numbers of what it dropped."""
        if not self._retired:
            return []
        used = set(in_use)
        gone = [held.number for held in self._retired if held not in used]
        self._retired = [held for held in self._retired if held in used]
        return gone

    def _merged(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Put:
        pairs = [(self._parameters[name], weight.detach()) for name, weight in weights]

        def put() -> None:
            for parameter, weight in pairs:
                parameter.data = weight

        return put

    def _beside(self, factors: Iterable[LoraFactors]) -> Put:
        kept = list(factors)
        return lambda: set_factors(self._model, kept)
