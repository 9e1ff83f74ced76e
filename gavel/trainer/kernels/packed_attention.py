"""Attention over a packed row: the keys and values of a segment are used by all its descendants at once.

A query's context is the segments on its path. Each segment gives attention with its own normalizer, and the parts are
combined by their normalizers (as in ring attention, arXiv 2310.01889), so there is no mask over the row and no copy of
a shared key. In the backward pass every part is exact, given the normalizer of the whole.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from gavel.base.errors import GavelError
from gavel.trainer.data.packing import Packed, pack
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.kernels import varlen_attention
from gavel.trainer.kernels.attention_kernels import (
    FULL,
    CudaFlash,
    Kernel,
    Part,
    ScoreForm,
    Span,
    Tensors,
    at_least_float,
    dense_attention,
    kernel_for,
    layer_spans,
    limited_parts,
    unlimited_parts,
)

NAME = "gavel_packed"
"""Name of the attention function in transformers' registry."""
NO_MASK = torch.empty((1, 1, 0, 0))
"""The mask for a pass over a packed row: transformers hands a 4-dimensional mask to the attention and builds none
itself."""


class AttentionError(GavelError):
    """A model's attention is not supported by packed rows."""


@dataclass(frozen=True)
class PackedRow:
    """The layout of a packed row, as the attention reads it. Layers of one span share their parts."""

    packed: Packed
    spans: Sequence[Span]
    """One for each layer."""
    positions: torch.Tensor
    """`[U]`, on the device."""
    kept: dict[int, tuple[torch.Tensor, torch.Tensor]] | None = None
    """Attention's output and normalizer of each layer that is computed again later, which then takes them from here;
    None: nothing is kept."""
    layers: set[int] = field(default_factory=set)
    """The layers that attended to it."""
    _parts: dict[tuple[Kernel, Span], list[Part]] = field(default_factory=dict)

    def span(self, layer: int) -> Span:
        """The span of a layer, as far as it matters for a row of this depth."""
        span = self.spans[layer]
        return span if span.limits(int(self.packed.positions.max()) + 1) else FULL

    def parts(self, kernel: Kernel, span: Span) -> list[Part]:
        if (kernel, span) not in self._parts:
            segments, positions = self.packed.segments, self.packed.positions
            found = unlimited_parts(segments, kernel) if span == FULL else limited_parts(segments, positions, span)
            self._parts[kernel, span] = list(found)
        return self._parts[kernel, span]

    @cached_property
    def levels(self) -> list[varlen_attention.Level]:
        return varlen_attention.levels(self.packed.segments, self.positions.device)

    def seen(self, part: Part, span: Span) -> torch.Tensor | None:
        """Whether each query of a masked part sees each of its keys. `[queries, keys]`"""
        if not part.masked:
            return None
        queries, keys = self.positions[part.rows, None], self.positions[part.keys]
        return (keys <= queries) & (keys >= span.first_visible(queries))


def attend_packed(decoder: Any) -> list[Span]:
    """Makes a transformers decoder accept a `packed_row`, and returns the spans of its layers.

    Without a row its attention is unchanged. Raises `AttentionError` for a decoder with other layers than attention, or
    whose attention cannot be exchanged.
    """
    config = decoder.config
    spans = layer_spans(config)
    if spans is None:
        raise AttentionError(f"not all layers of {config.model_type} are attention")
    if config._attn_implementation != NAME:
        AttentionInterface.register(NAME, _forward)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        decoder.set_attn_implementation(NAME)
    reached = _layers_reached(decoder, spans) if config._attn_implementation == NAME else set()
    if reached != set(range(len(spans))):
        raise AttentionError(f"the attention of {config.model_type} cannot be exchanged")
    return spans


@torch.no_grad()
def _layers_reached(decoder: Any, spans: list[Span]) -> set[int]:
    """The layers whose attention gets the row in a pass over a single token."""
    device = decoder.device
    packed = pack([TokenSequence([0], [False], [0.0], [1.0])])
    zero = torch.zeros((1, 1), dtype=torch.int64, device=device)
    row = PackedRow(packed, spans, zero[0])
    with contextlib.suppress(AttentionError):
        decoder(input_ids=zero, position_ids=zero, use_cache=False, attention_mask=NO_MASK.to(device), packed_row=row)
    return row.layers


def _forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    packed_row: PackedRow | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    if packed_row is None:
        if attention_mask is not None and attention_mask.shape[-1] == 0:
            raise AttentionError(f"{type(module).__name__} does not hand a packed row on")
        return dense_attention(
            module, query, key, value, attention_mask, scaling=scaling, softcap=softcap, s_aux=s_aux, **others
        )
    layer: int = module.layer_idx  # type: ignore[assignment]
    packed_row.layers.add(layer)
    odd = [name for name in ("position_bias", "dropout") if others.get(name)]
    if others.get("sliding_window") not in (None, packed_row.spans[layer].size):
        odd.append("a window that its config does not tell")
    if odd:
        raise AttentionError(f"{type(module).__name__} attends with {odd[0]}, which packed training does not know")
    form = ScoreForm(scaling or query.shape[-1] ** -0.5, softcap)
    return packed_attention(query, key, value, packed_row, layer, form, s_aux).transpose(1, 2), None


def packed_attention(
    query: Any, key: Any, value: Any, row: PackedRow, layer: int, form: ScoreForm, sinks: torch.Tensor | None = None
) -> torch.Tensor:
    """`[1, heads, U, D]` for queries of that shape and keys and values of as many heads or a divisor of them.

    `sinks` `[heads]`: frozen logits that take a share of each query's attention and have no value (arXiv 2309.17453).
    """
    return _PackedAttention.apply(query, key, value, row, layer, form, sinks)  # type: ignore[no-any-return]


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Any, key: Any, value: Any, row: PackedRow, layer: int, form: ScoreForm, sinks: Any
    ) -> torch.Tensor:
        kernel, span = kernel_for(query, value, form), row.span(layer)
        by_levels = kernel is CudaFlash and span == FULL
        way = _ByLevels(row.levels, form) if by_levels else _ByParts(row, kernel, span, form)
        if row.kept is not None and layer in row.kept:
            output, normaliser = row.kept.pop(layer)
        else:
            whole, normaliser = way.forward(query, key, value)
            if sinks is not None:
                logits = sinks.detach().to(normaliser.dtype)[None, :, None]
                whole = whole * torch.sigmoid(normaliser - logits)[..., None]
                normaliser = torch.logaddexp(normaliser, logits)
            output = whole.to(query.dtype)
            if row.kept is not None and by_levels:
                row.kept[layer] = output.detach(), normaliser
        ctx.save_for_backward(query, key, value, output, normaliser)
        ctx.way = way
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        found = ctx.way.backward(gradient, *ctx.saved_tensors)
        return *(total.to(gradient.dtype) for total in found), None, None, None, None


@dataclass(frozen=True, slots=True)
class _ByParts:
    """One call of the kernel for each part."""

    row: PackedRow
    kernel: Kernel
    span: Span
    form: ScoreForm

    def forward(self, query: Any, key: Any, value: Any) -> Tensors:
        _, heads, length, _ = query.shape
        whole = query.new_empty((1, length, heads, value.shape[-1]), dtype=at_least_float(query.dtype)).transpose(1, 2)
        normaliser = whole.new_empty((1, length, heads)).transpose(1, 2)
        if self.span != FULL:  # then no part is the first of its queries
            whole.zero_()
            normaliser.fill_(-torch.inf)
        for part in self.row.parts(self.kernel, self.span):
            rows, keys, seen = part.rows, part.keys, self.row.seen(part, self.span)
            own, own_normaliser = self.kernel.forward(
                query[:, :, rows], key[:, :, keys], value[:, :, keys], self.form, part.causal, seen
            )
            if part.first:
                whole[:, :, rows], normaliser[:, :, rows] = own, own_normaliser
                continue
            known = normaliser[:, :, rows]
            whole[:, :, rows].lerp_(own.to(whole.dtype), torch.sigmoid(own_normaliser - known)[..., None])
            torch.logaddexp(known, own_normaliser, out=known)
        return whole, normaliser

    def backward(self, gradient: Any, *attended: torch.Tensor) -> Tensors:
        empty = torch.empty_like if self.span == FULL else torch.zeros_like
        found = tuple(empty(each, dtype=at_least_float(each.dtype)) for each in attended[:3])
        for part in self.row.parts(self.kernel, self.span):
            rows, keys = part.rows, part.keys
            places = (rows, keys, keys, rows, rows)
            own = tuple(each[:, :, place] for each, place in zip(attended, places, strict=True))
            seen = self.row.seen(part, self.span)
            gradients = self.kernel.backward(gradient[:, :, rows], own, self.form, part.causal, seen)
            # A segment's own queries precede those of its descendants, so its keys occur in the causal part first.
            fresh = (part.first, part.causal, part.causal)
            for total, place, new, is_first in zip(found, places[:3], gradients, fresh, strict=True):
                if is_first:
                    total[:, :, place] = new
                else:
                    total[:, :, place] += new
        return found


@dataclass(frozen=True, slots=True)
class _ByLevels:
    """One call of the flash kernel for each depth of the row."""

    levels: Sequence[varlen_attention.Level]
    form: ScoreForm

    def forward(self, query: Any, key: Any, value: Any) -> Tensors:
        q, k, v = map(_by_token, (query, key, value))
        whole, normaliser = varlen_attention.forward(q, k, v, self.levels, self.form.scale)
        return whole.transpose(0, 1)[None], normaliser[None]

    def backward(self, gradient: torch.Tensor, *attended: torch.Tensor) -> Tensors:
        incoming = _by_token(gradient).contiguous()  # a gradient that was expanded is none of the kernel's
        given = (*map(_by_token, attended[:4]), attended[4][0])
        found = varlen_attention.backward(incoming, given, self.levels, self.form.scale)
        return tuple(each.transpose(0, 1)[None] for each in found)


def _by_token(heads: torch.Tensor) -> torch.Tensor:
    """`[1, heads, U, D]` as `[U, heads, D]`."""
    return heads[0].transpose(0, 1)
