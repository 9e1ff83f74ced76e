"""Forward passes of the embedded engine over the tokens that its slots do not hold yet.

`BatchedPasses` computes all slots in one pass, over keys and values in one tensor a layer; query heads that share keys
read them once. `SinglePasses` computes one slot after the other, each with a cache of transformers' own: for models
with layers that keep another state (linear attention, state space, convolution), which batches of unequal lengths
cannot share.

On a CPU a row of `BatchedPasses` gets the same bits whatever else is in the pass, and whether its earlier tokens were
decoded, prefilled or copied. A BLAS computes products of few rows in another order than those of many, and cuts long
sums where their length says, so passes are padded to shapes that this machine computes alike (`EvenShapes`); the
products of experts, whose rows are those of other conversations too, are not. PyTorch's SiLU rounds the last numbers of
a tensor, or of a thread's share, otherwise than the rest; `_EvenSilu` does not.

`AdapterCache` keeps the adapters of the engine, and switches its one model between them:

    activate = cache.prepare(adapter)   copies nothing yet to the model; may run in any thread
    cache.publish(activate, version)    makes it the live one
    cache.activate(cache.find(3))       the next forward pass uses the adapter of step 3

Switching adapters swaps tensor pointers; no weights are copied. In float32 an adapter is merged into a second copy of
the adapted weights, which costs nothing per token. In lower precision or over quantized weights, merging would round
small updates away, so the factors stay beside the weights, and compute and round as the learner's layers do.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad
from torch.nn.functional import scaled_dot_product_attention as attend
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.activations import SiLUActivation
from transformers.masking_utils import sdpa_mask

from gavel.trainer.cached_pass import cached
from gavel.trainer.engines.kv_cache import Slots, SlotView
from gavel.trainer.engines.protocol import BASE, AdapterGone
from gavel.trainer.kernels.attention_kernels import Span, dense_attention, layer_spans
from gavel.trainer.kernels.fused_layers import ExpertFactors, LoraWeights, adapted_experts
from gavel.trainer.kernels.lm_head import logit_form
from gavel.trainer.policy.adapter import Adapter, LoraFactors
from gavel.trainer.policy.loading import is_quantized, text_decoder

NAME = "gavel_grouped"
"""Name of the attention function in transformers' registry."""


@dataclass(frozen=True, slots=True)
class SlotMasks:
    """The masks of a pass, one for each span of the layers; added to the scores. `[rows, 1, new, keys]`"""

    spans: Sequence[Span]
    """One for each layer."""
    masks: Mapping[Span, torch.Tensor]
    queries: int = 1
    """Queries that share keys are padded to a multiple of this."""


def attend_grouped(decoder: Any) -> None:
    """Makes a transformers decoder accept `slot_masks`; one with another attention is unchanged."""
    if decoder.config._attn_implementation in ("sdpa", "eager"):
        AttentionInterface.register(NAME, _forward)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        decoder.set_attn_implementation(NAME)


def _forward(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    slot_masks: SlotMasks | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    least = slot_masks.queries if slot_masks else 1
    if slot_masks:
        attention_mask = slot_masks.masks[slot_masks.spans[module.layer_idx]]
    rows, heads, new, size = query.shape
    query = query[: len(key)]  # rows of padding have no keys
    odd = any(each is not None for each in (softcap, s_aux, others.get("position_bias")))
    if odd or new > 1 or attention_mask is None or (heads == key.shape[1] and least == 1):
        if new == 1 and least > 1:  # the same query several times
            query = query.expand(-1, -1, least, -1)
        read, _ = dense_attention(
            module, query, key, value, attention_mask, scaling=scaling, softcap=softcap, s_aux=s_aux, **others
        )
        read = read[:, :new]
    else:
        # The heads take the query axis: all of them see the same keys.
        grouped = query.reshape(len(key), key.shape[1], -1, size)
        group = grouped.shape[2]
        grouped = pad(grouped, (0, 0, 0, -group % least))
        read = attend(grouped, key, value, attention_mask, scale=scaling)
        read = read[:, :, :group].reshape(len(key), 1, heads, value.shape[-1])
    return pad(read, (0, 0, 0, 0, 0, 0, 0, rows - len(key))), None


_WIDTHS = 256
"""Keys on a GPU, whose kernels are built anew for each width."""
_TOKENS = 16
"""Tokens of a pass on a CPU are a multiple of this."""
_KEYS = 512
"""Keys that PyTorch's attention for the CPU takes at once."""


@dataclass(frozen=True, slots=True)
class EvenShapes:
    """Shapes of attention whose results have the same bits as those of larger ones."""

    queries: int
    """Min number of queries."""
    keys: list[int]
    """Zeros behind so many keys change nothing. Ascending; the last is `_KEYS`."""

    @classmethod
    def measure(cls) -> "EvenShapes":
        """Measures the shapes on this machine, by attention over random numbers."""
        generator = torch.Generator().manual_seed(0)
        query, keys, values = (torch.randn(1, 1, n, 64, generator=generator) for n in (16, _KEYS, _KEYS))

        def even(queries: int, width: int) -> bool:
            mask = torch.zeros(queries, width)
            part = attend(query[:, :, :queries], keys[:, :, :width], values[:, :, :width], mask)
            mask = torch.where(torch.arange(_KEYS) < width, 0.0, -torch.inf).expand(16, -1)
            return torch.equal(part, attend(query, keys, values, mask)[:, :, :queries])

        queries = next((few for few in (4, 8) if even(few, _KEYS)), 16)
        return cls(queries, [width for width in range(64, _KEYS, 64) if even(16, width)] + [_KEYS])

    def tokens(self, rows: int, new: int) -> tuple[int, int]:
        """The smallest even pass that holds `rows` of `new` tokens each."""
        shares = [1] if new == 1 else [share for share in (4, 8, 16) if share >= self.queries]
        fitting = ((-(-rows * share // _TOKENS) * (_TOKENS // share), -(-new // share) * share) for share in shares)
        return min(fitting, key=math.prod)

    def width(self, keys: int) -> int:
        """The next number of keys that is even."""
        whole = (keys - 1) // _KEYS * _KEYS
        return whole + next(width for width in self.keys if width >= keys - whole)


class BatchedPasses:
    """One pass for all rows."""

    def __init__(self, model: Any, slots: Slots) -> None:
        self._decoder = text_decoder(model)
        self._head = model.get_output_embeddings()
        self._form = logit_form(self._decoder.config)
        self._spans = layer_spans(self._decoder.config) or []
        self._slots = slots
        self._dtype, self._device = model.dtype, model.device
        attend_grouped(self._decoder)
        is_even = self._device.type == "cpu" and self._dtype == torch.float32  # others round as the learner does
        self._even = EvenShapes.measure() if is_even else None
        if self._even is not None:
            for module in self._decoder.modules():
                if isinstance(getattr(module, "act_fn", None), torch.nn.SiLU | SiLUActivation):
                    module.act_fn = _EvenSilu()

    def logits(self, rows: np.ndarray, tokens: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> torch.Tensor:
        """Logits `[rows, vocabulary]` after the last new token of each slot in `rows`.

        `tokens` `[rows, most]` are new from `starts` on; `counts` says how many of them are real, and a row without any
        gets no meaningful logits. Keys and values of padding stand behind a slot's real tokens, where the next real
        ones overwrite them.
        """
        longest = int((starts + counts)[counts > 0].max())
        width = longest + -longest % _WIDTHS if self._even is None else self._even.width(longest)
        padding = 0
        if self._even is not None:
            more, columns = self._even.tokens(*tokens.shape)
            padding, tokens = more - len(rows), np.pad(tokens, ((0, 0), (0, columns - tokens.shape[1])))
        self._slots.reserve(min(int(starts.max()) + tokens.shape[1], self._slots.max_context))
        width = min(width, self._slots.capacity)
        new = torch.from_numpy(tokens).to(self._device)
        first = torch.from_numpy(starts).to(self._device)
        positions = first[:, None] + torch.arange(new.shape[1], device=self._device)
        positions = positions.clamp_(max=self._slots.capacity - 1)
        masks = self._masks(positions.clamp(max=width - 1), width)  # padding and idle rows see a key, too
        hidden = self._decoder(
            input_ids=_padded(new, padding),
            position_ids=_padded(positions, padding),
            attention_mask=next(iter(masks.values())),
            slot_masks=SlotMasks(self._spans, masks, 1 if self._even is None else self._even.queries),
            use_cache=False,
            **cached(self._decoder, SlotView(self._slots, rows, positions, width)),
        ).last_hidden_state
        last = hidden[torch.arange(len(rows), device=self._device), torch.from_numpy(counts - 1).to(self._device)]
        if self._even is not None:
            last = _padded(last, -len(rows) % _TOKENS)
        return self._form.logits(self._head(last)[: len(rows)].float())

    def _masks(self, positions: torch.Tensor, width: int) -> dict[Span, torch.Tensor]:
        """Made once, not in every layer."""
        queries, keys = positions[:, None, :, None], torch.arange(width, device=positions.device)
        earlier, masks = keys <= queries, {}
        for span in dict.fromkeys(self._spans):
            seen = earlier & (keys >= span.first_visible(queries)) if span.limits(width) else earlier
            masks[span] = torch.where(seen, 0.0, -torch.inf).to(self._dtype)
        return masks


class SinglePasses:
    """A pass for each row. The states of a slot can be continued, but neither cut nor copied."""

    def __init__(self, model: Any, slots: int) -> None:
        self._decoder = text_decoder(model)
        self._head = model.get_output_embeddings()
        self._form = logit_form(self._decoder.config)
        self._device = model.device
        self._caches: list[DynamicCache | None] = [None] * slots

    def logits(self, rows: np.ndarray, tokens: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> torch.Tensor:
        """As those of `BatchedPasses`."""
        found = {
            at: self._next(int(rows[at]), tokens[at, : counts[at]], int(starts[at]))
            for at in counts.nonzero()[0].tolist()
        }
        return torch.stack([found.get(at, next(iter(found.values()))) for at in range(len(rows))])

    def _next(self, slot: int, tokens: np.ndarray, start: int) -> torch.Tensor:
        cache = self._caches[slot] if start else None
        if cache is None:
            cache = self._caches[slot] = DynamicCache(config=self._decoder.config)
        hidden = self._decoder(
            input_ids=torch.from_numpy(tokens[None].astype(np.int64)).to(self._device),
            position_ids=torch.arange(start, start + len(tokens), device=self._device)[None],
            use_cache=True,
            **cached(self._decoder, cache),
        ).last_hidden_state
        return self._form.logits(self._head(hidden[0, -1]).float())


def _padded(rows: torch.Tensor, more: int) -> torch.Tensor:
    return pad(rows, (0, 0, 0, more)) if more else rows


class _EvenSilu(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / x.neg().exp_().add_(1)


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
        name, _, weight = each.layer.rpartition(".") if each.a.ndim == 3 else (each.layer, "", "")
        module = model.get_submodule(name)
        if not isinstance(module, AdaptedLinear | AdaptedExperts):
            module = AdaptedExperts(module) if weight else AdaptedLinear(module)
            model.set_submodule(name, module)
        if isinstance(module, AdaptedExperts):
            module.factors[weight] = ExpertFactors(each.a, each.b, each.scale)
        else:
            module.factors = each


Activate = Callable[[], None]
"""Makes the next forward pass use an adapter."""


@dataclass(frozen=True, slots=True, eq=False)
class CachedAdapter:
    version: int
    number: int
    """Unique in the engine; the same version may be published again."""
    activate: Activate


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
        plain = self._swap_weights(self._parameters.items()) if self._merges else partial(set_factors, model, [])
        base = CachedAdapter(0, next(self._numbers), plain)
        self._base = CachedAdapter(BASE, next(self._numbers), plain)
        self.published = [base]
        """The adapter versions that requests can name, the live one last; the list is replaced, never modified."""
        self._retired: list[CachedAdapter] = []
        self._active: CachedAdapter | None = base

    def prepare(self, adapter: Adapter) -> Activate:
        """The function that activates `adapter` with its weights as of now. Raises KeyError when it does not fit."""
        if self._merges:
            return self._swap_weights(adapter.merged_weights())
        return partial(set_factors, self._model, list(adapter.factors()))

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
        for adapter in (self._base, *reversed(self.published)):
            if version == adapter.version or (version is None and adapter is not self._base):
                return adapter
        raise AdapterGone(version or 0, [adapter.version for adapter in self.published])

    def activate(self, adapter: CachedAdapter) -> None:
        if adapter is not self._active:
            self._active = None  # if this fails half-way, the next call activates again
            adapter.activate()
            self._active = adapter

    def evict(self, in_use: Iterable[CachedAdapter]) -> list[int]:
        """Drops the adapters that are neither published nor `in_use`; returns their numbers."""
        used = set(in_use) if self._retired else set[CachedAdapter]()
        evicted = [adapter.number for adapter in self._retired if adapter not in used]
        self._retired = [adapter for adapter in self._retired if adapter in used]
        return evicted

    def _swap_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Activate:
        pairs = [(self._parameters[name], weight.detach()) for name, weight in weights]

        def activate() -> None:
            for parameter, weight in pairs:
                parameter.data = weight

        return activate
