"""The adapters that the embedded engine keeps, and switching its one model between them.

    activate = cache.prepare(adapter)   copies nothing yet to the model; may run in any thread
    cache.publish(activate, version)    makes it the live one
    cache.activate(cache.find(3))       the next forward pass uses the adapter of step 3

Switching adapters swaps tensor pointers; no weights are copied. In float32 an adapter is merged into a second copy of
the adapted weights, which costs nothing per token. In lower precision or over quantized weights, merging would round
small updates away, so the factors stay beside the weights, and compute and round as the learner's layers do.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from gavel.trainer.engines.protocol import BASE, AdapterGone
from gavel.trainer.kernels.fused_layers import ExpertFactors, LoraWeights, adapted_experts
from gavel.trainer.policy.adapter import Adapter, LoraFactors
from gavel.trainer.policy.loading import is_quantized

Adapted = TypeVar("Adapted", "AdaptedLinear", "AdaptedExperts")


class AdaptedLinear(torch.nn.Module):
    """y = W x + scale * B (A x)."""

    def __init__(self, plain: torch.nn.Module) -> None:
        super().__init__()
        self._plain = plain
        self.factors: LoraFactors | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factors = self.factors
        if factors is None:
            return self._plain(x)
        if type(self._plain) is torch.nn.Linear:  # the learner's `LoraLinear`
            return LoraWeights(self._plain.weight, self._plain.bias, factors.a, factors.b, factors.scale).product(x)[0]
        # The others are layers of PEFT: the product in the factors' precision, over 4 bits rounded before the sum.
        y = self._plain(x)
        update = x.to(factors.a.dtype) @ factors.a.T @ factors.b.T * factors.scale
        if type(self._plain).__name__ == "Linear4bit":
            update = update.to(y.dtype)
        return (y + update).to(y.dtype)


class AdaptedExperts(torch.nn.Module):
    """The learner's `LoraExperts`."""

    def __init__(self, plain: torch.nn.Module) -> None:
        super().__init__()
        self._plain = plain
        self.factors: dict[str, ExpertFactors] = {}
        """By the name of the weight."""

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not self.factors:
            return self._plain(*args, **kwargs)
        return adapted_experts(self._plain, self.factors, *args, **kwargs)


def set_factors(model: Any, factors: Iterable[LoraFactors]) -> None:
    """Replaces the adapter of `model` by `factors`; none gives the plain model. Raises AttributeError for no layer."""
    for module in model.modules():
        if isinstance(module, AdaptedLinear):
            module.factors = None
        elif isinstance(module, AdaptedExperts):
            module.factors = {}
    for each in factors:
        if each.a.ndim == 3:
            name, _, weight = each.layer.rpartition(".")
            _adapted(model, name, AdaptedExperts).factors[weight] = ExpertFactors(each.a, each.b, each.scale)
        else:
            _adapted(model, each.layer, AdaptedLinear).factors = each


def _adapted(model: Any, name: str, kind: type[Adapted]) -> Adapted:
    """The module of this name, which is put into `kind` unless it is in it."""
    module = model.get_submodule(name)
    if not isinstance(module, kind):
        module = kind(module)
        model.set_submodule(name, module)
    return module


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
