"""Attention over a packed row: the keys and values of a segment are used by all its descendants at once.

A query's context is the segments on its path. Each segment gives plain attention with its own normalizer, and the parts
are combined by their normalizers (as in ring attention, arXiv 2310.01889), so there is no mask and no copy of a shared
key. In the backward pass every part is exact, given the normalizer of the whole.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from gavel.llm.errors import GavelError
from gavel.trainer.data.packing import Segment

NAME = "gavel_packed"
"""Name of the attention function in transformers' registry."""

_PLAIN_QUERIES = 1024
"""Queries computed at once by the plain kernel; bounds its memory."""

_aten = torch.ops.aten


class AttentionError(GavelError):
    """A model's attention is not supported by packed rows."""


def attend_packed(decoder: Any) -> None:
    """Makes a transformers decoder accept `segments`; without them its attention is unchanged.

    Raises `AttentionError` for one that cannot, or that does not attend to the whole context.
    """
    config = decoder.config
    if config._attn_implementation == NAME:
        return
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    if kinds - {"full_attention"} or (window is not None and not getattr(config, "layer_types", None)):
        raise AttentionError(
            f"{config.model_type} cannot be trained: not all of its layers attend to the whole context",
            "Choose a base model with full attention, or set use_sliding_window=false where its config knows that.",
        )
    AttentionInterface.register(NAME, _forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    decoder.set_attn_implementation(NAME)
    if config._attn_implementation != NAME:
        raise AttentionError(
            f"{config.model_type} cannot be trained: its attention cannot be exchanged",
            "Choose a base model that transformers implements with its attention interface.",
        )


def _forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    segments: Sequence[Segment] | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    if segments is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    odd = [name for name in ("softcap", "s_aux", "position_bias", "sliding_window") if others.get(name) is not None]
    if odd or others.get("dropout"):
        raise AttentionError(
            f"{type(module).__name__} attends with {odd[0] if odd else 'dropout'}, which packed training does not know",
            "Choose a base model with plain causal attention.",
        )
    return packed_attention(query, key, value, segments, scaling).transpose(1, 2), None


def packed_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Sequence[Segment], scale: float | None = None
) -> torch.Tensor:
    """`[1, heads, U, D]` for queries of that shape and keys and values of as many heads or a divisor of them.

    `scale` multiplies the scores; 1 / sqrt(D) when it is None.
    """
    return _PackedAttention.apply(query, key, value, segments, scale or query.shape[-1] ** -0.5)  # type: ignore[no-any-return]


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, segments: Sequence[Segment], scale: float) -> torch.Tensor:
        kernel = _kernel(query, value)
        _, heads, length, _ = query.shape
        whole = query.new_empty((1, length, heads, value.shape[-1]), dtype=_at_least_float(query.dtype)).transpose(1, 2)
        normaliser = whole.new_empty((1, length, heads)).transpose(1, 2)
        for rows, own, causal, first in _ordered(kernel, segments):
            part, part_normaliser = kernel.forward(query[:, :, rows], key[:, :, own], value[:, :, own], causal, scale)
            if first:
                whole[:, :, rows], normaliser[:, :, rows] = part, part_normaliser
                continue
            known = normaliser[:, :, rows]
            whole[:, :, rows].lerp_(part.to(whole.dtype), torch.sigmoid(part_normaliser - known)[..., None])
            torch.logaddexp(known, part_normaliser, out=known)
        output = whole.to(query.dtype)
        ctx.save_for_backward(query, key, value, output, normaliser)
        ctx.kernel, ctx.segments, ctx.scale = kernel, segments, scale
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        query, key, value, output, normaliser = ctx.saved_tensors
        kernel = ctx.kernel
        found = [torch.empty_like(each, dtype=_at_least_float(each.dtype)) for each in (query, key, value)]
        for rows, own, causal, first in _ordered(kernel, ctx.segments):
            own_gradients = kernel.backward(
                gradient[:, :, rows],
                query[:, :, rows],
                key[:, :, own],
                value[:, :, own],
                output[:, :, rows],
                normaliser[:, :, rows],
                causal,
                ctx.scale,
            )
            # A segment's own queries precede those of its descendants, so its keys occur in the causal part first.
            for total, place, part, fresh in zip(
                found, (rows, own, own), own_gradients, (first, causal, causal), strict=True
            ):
                if fresh:
                    total[:, :, place] = part
                else:
                    total[:, :, place] += part
        return *(total.to(query.dtype) for total in found), None, None


def _ordered(kernel: Any, segments: Sequence[Segment]) -> Iterator[tuple[slice, slice, bool, bool]]:
    """The kernel's parts, and whether a part is the first one for its queries."""
    seen = 0
    for rows, own, causal in kernel.parts(segments):
        yield rows, own, causal, rows.start >= seen
        seen = max(seen, rows.stop)


def _at_least_float(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


Part = tuple[slice, slice, bool]
"""Rows of queries, rows of keys, and whether query i sees only the keys up to i."""


class CpuFlash:
    """PyTorch's kernel for the CPU; its causal mask shows all keys to later queries, so a segment is one part."""

    @staticmethod
    def parts(segments: Sequence[Segment]) -> Iterator[Part]:
        for segment in segments:
            yield slice(segment.start, segment.end), slice(segment.start, segment.stop), True

    @staticmethod
    def forward(query: Any, key: Any, value: Any, causal: bool, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        return _aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal, scale=scale)

    @staticmethod
    def backward(
        gradient: Any, query: Any, key: Any, value: Any, output: Any, normaliser: Any, causal: bool, scale: float
    ) -> tuple[torch.Tensor, ...]:
        return _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, query, key, value, output, normaliser, 0.0, causal, scale=scale
        )


class Plain:
    """Plain matrix products on any device and type; the reference for the other kernels."""

    @staticmethod
    def parts(segments: Sequence[Segment]) -> Iterator[Part]:
        for segment in segments:
            own = slice(segment.start, segment.stop)
            yield own, own, True
            if segment.end > segment.stop:
                yield slice(segment.stop, segment.end), own, False

    @staticmethod
    def forward(query: Any, key: Any, value: Any, causal: bool, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        key, value = _for_each_head(key, query), _for_each_head(value, query)
        outputs, normalisers = [], []
        for first in range(0, query.shape[2], _PLAIN_QUERIES):
            scores = _scores(query[:, :, first : first + _PLAIN_QUERIES], key, first, causal, scale)
            normalisers.append(scores.logsumexp(-1))
            outputs.append((scores - normalisers[-1][..., None]).exp() @ value)
        return torch.cat(outputs, 2), torch.cat(normalisers, 2)

    @staticmethod
    def backward(
        gradient: Any, query: Any, key: Any, value: Any, output: Any, normaliser: Any, causal: bool, scale: float
    ) -> tuple[torch.Tensor, ...]:
        own_shapes = key.shape, value.shape
        key, value = _for_each_head(key, query), _for_each_head(value, query)
        to_query, to_key, to_value = [], torch.zeros_like(key), torch.zeros_like(value)
        for first in range(0, query.shape[2], _PLAIN_QUERIES):
            rows = slice(first, first + _PLAIN_QUERIES)
            queries, incoming = query[:, :, rows].to(key.dtype), gradient[:, :, rows].to(key.dtype)
            weights = (_scores(queries, key, first, causal, scale) - normaliser[:, :, rows, None]).exp()
            to_value += weights.transpose(2, 3) @ incoming
            mean = (incoming * output[:, :, rows]).sum(-1, keepdim=True)
            to_scores = weights * (incoming @ value.transpose(2, 3) - mean) * scale
            to_query.append(to_scores @ key)
            to_key += to_scores.transpose(2, 3) @ queries
        shared = [
            each.unflatten(1, (shape[1], -1)).sum(2) for each, shape in zip((to_key, to_value), own_shapes, strict=True)
        ]
        return torch.cat(to_query, 2), *shared


class CudaFlash(Plain):
    """PyTorch's flash attention for half precision on a GPU; its causal mask needs as many queries as keys."""

    @staticmethod
    def forward(query: Any, key: Any, value: Any, causal: bool, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        return _aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal, scale=scale)[:2]

    @staticmethod
    def backward(
        gradient: Any, query: Any, key: Any, value: Any, output: Any, normaliser: Any, causal: bool, scale: float
    ) -> tuple[torch.Tensor, ...]:
        # Random state of the dropout, which is zero, so it is not read.
        state = torch.zeros(2, dtype=torch.uint64, device=query.device)
        lengths = query.shape[2], key.shape[2]
        return _aten._scaled_dot_product_flash_attention_backward(
            gradient, query, key, value, output, normaliser.contiguous(),
            None, None, *lengths, 0.0, causal, state, state, scale=scale,
        )  # fmt: skip


def _kernel(query: torch.Tensor, value: torch.Tensor) -> type[CpuFlash] | type[Plain]:
    size = query.shape[-1]
    if size == value.shape[-1]:
        if query.device.type == "cpu":
            return CpuFlash
        if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and size % 8 == 0 and size <= 256:
            return CudaFlash
    return Plain


def _for_each_head(shared: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Keys or values repeated for the query heads that share them, in at least single precision."""
    repeated = shared.repeat_interleave(query.shape[1] // shared.shape[1], 1)
    return repeated.to(_at_least_float(shared.dtype))


def _scores(query: torch.Tensor, key: torch.Tensor, first: int, causal: bool, scale: float) -> torch.Tensor:
    scores = query.to(key.dtype) @ key.transpose(2, 3) * scale
    if causal:
        places = torch.arange(first, first + query.shape[2], device=query.device)
        later = torch.arange(key.shape[2], device=query.device) > places[:, None]
        scores = scores.masked_fill(later, -torch.inf)
    return scores
