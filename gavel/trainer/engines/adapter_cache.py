"""The adapters that the embedded engine keeps, and switching its one model between them.

    activate = cache.prepare(adapter)   copies nothing yet to the model; may run in any thread
    cache.publish(activate, version)    makes it the live one
    cache.activate(cache.find(3))       the next forward pass uses the adapter of step 3

Switching adapters swaps tensor pointers; no weights are copied. In float32 an adapter is merged into a second copy of
the adapted weights, which costs nothing per token. In lower precision or over quantized weights, merging would round
small updates away, so the factors stay beside the weights, as in the learner.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from gavel.trainer.engines.lora_layers import set_factors
from gavel.trainer.engines.protocol import BASE, AdapterGone
from gavel.trainer.policy.adapter import Adapter, LoraFactors
from gavel.trainer.policy.loading import is_quantized

Activate = Callable[[], None]


@dataclass(frozen=True, slots=True, eq=False)
class CachedAdapter:
    """A published adapter."""

    version: int
    number: int
    """Unique in the engine; the same version may be published again."""
    activate: Activate
    """Makes the next forward pass use it."""


class AdapterCache:
    """The `versions` adapters that were published last, and those that requests in flight still use.

    Used by the engine's thread only, except for `prepare` and `published`.
    """

    def __init__(self, model: Any, versions: int) -> None:
        self._model = model
        self._versions = versions
        self._parameters = dict(model.named_parameters())
        self._merges = model.dtype == torch.float32 and not is_quantized(model)
        self._numbers = itertools.count()
        plain = self._swap_weights(self._parameters.items()) if self._merges else self._set_factors([])
        base = CachedAdapter(0, next(self._numbers), plain)
        self._base = CachedAdapter(BASE, next(self._numbers), plain)
        self.published = [base]
        """Those that requests can name, the live one last; the list is replaced, never modified."""
        self._retired: list[CachedAdapter] = []
        self._active: CachedAdapter | None = base

    def prepare(self, adapter: Adapter) -> Activate:
        """The function that activates `adapter` with its weights as of now. Raises KeyError when it does not fit."""
        return self._swap_weights(adapter.merged_weights()) if self._merges else self._set_factors(adapter.factors())

    def publish(self, activate: Activate, version: int) -> None:
        """Makes an adapter live. Raises what `activate` raises, and then nothing has changed."""
        new = CachedAdapter(version, next(self._numbers), activate)
        self.activate(new)
        # Number 0 is the plain model, which is not an adapter.
        earlier = [adapter for adapter in self.published if adapter.number and adapter.version != version]
        kept = [*earlier, new][-self._versions :]
        self._retired += [adapter for adapter in self.published if adapter not in kept]
        self.published = kept

    def find(self, version: int | None) -> CachedAdapter:
        """The adapter of a version, None for the live one, `BASE` for none. Raises `AdapterGone`."""
        if version == BASE:
            return self._base
        for adapter in reversed(self.published):
            if version in (None, adapter.version):
                return adapter
        raise AdapterGone(version or 0, [adapter.version for adapter in self.published])

    def activate(self, adapter: CachedAdapter) -> None:
        if adapter is not self._active:
            self._active = None  # if this fails half-way, the next call activates again
            adapter.activate()
            self._active = adapter

    def evict(self, in_use: Iterable[CachedAdapter]) -> list[int]:
        """Drops the adapters that are neither published nor `in_use`; returns their numbers."""
        if not self._retired:
            return []
        used = set(in_use)
        evicted = [adapter.number for adapter in self._retired if adapter not in used]
        self._retired = [adapter for adapter in self._retired if adapter in used]
        return evicted

    def _swap_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Activate:
        pairs = [(self._parameters[name], weight.detach()) for name, weight in weights]

        def activate() -> None:
            for parameter, weight in pairs:
                parameter.data = weight

        return activate

    def _set_factors(self, factors: Iterable[LoraFactors]) -> Activate:
        kept = list(factors)
        return lambda: set_factors(self._model, kept)
