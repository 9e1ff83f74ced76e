"""Attention of some queries over some keys, with its normalizer, forward and backward: one class for each way.

The backward pass takes output and normalizer of the whole attention, of which the keys may be a part.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from gavel.trainer.data.packing import Segment
from gavel.trainer.kernels.packed_parts import Part, joined_parts, square_parts

_PLAIN_QUERIES = 1024
"""Queries computed at once by the plain kernel; bounds its memory."""

_aten = torch.ops.aten

_assumed: ContextVar[str] = ContextVar("assumed device", default="cpu")


def device_type(tensor: torch.Tensor) -> str:
    """`cpu`, `cuda`, …"""
    return _assumed.get() if tensor.is_meta else tensor.device.type


@contextlib.contextmanager
def assume(device: str) -> Iterator[None]:
    """Within it, meta tensors are computed as those of `device` are."""
    token = _assumed.set(device)
    try:
        yield
    finally:
        _assumed.reset(token)


@dataclass(frozen=True, slots=True)
class ScoreForm:
    """score = scale q k, or cap * tanh(scale q k / cap)."""

    scale: float
    cap: float | None = None


class CpuFlash:
    """PyTorch's kernel for the CPU; its causal mask shows all keys to later queries, so a segment is one part."""

    parts: Callable[[Sequence[Segment]], Iterator[Part]] = staticmethod(joined_parts)

    @staticmethod
    def forward(
        query: Any, key: Any, value: Any, form: ScoreForm, causal: bool, seen: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return _aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=_additive(seen, query.dtype), scale=form.scale
        )

    @staticmethod
    def backward(
        gradient: Any,
        query: Any,
        key: Any,
        value: Any,
        output: Any,
        normaliser: Any,
        form: ScoreForm,
        causal: bool,
        seen: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        return _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, query, key, value, output, normaliser, 0.0, causal,
            attn_mask=_additive(seen, query.dtype), scale=form.scale,
        )  # fmt: skip


class Plain:
    """Plain matrix products on any device and type; the reference for the other kernels."""

    parts: Callable[[Sequence[Segment]], Iterator[Part]] = staticmethod(square_parts)

    @staticmethod
    def forward(
        query: Any, key: Any, value: Any, form: ScoreForm, causal: bool, seen: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        key, value = _for_each_head(key, query), _for_each_head(value, query)
        outputs, normalisers = [], []
        for first in range(0, query.shape[2], _PLAIN_QUERIES):
            rows = slice(first, first + _PLAIN_QUERIES)
            scores = _hidden(_scores(query[:, :, rows], key, form), first, causal, seen)
            normalisers.append(scores.logsumexp(-1))
            outputs.append((scores - normalisers[-1][..., None]).exp() @ value)
        return torch.cat(outputs, 2), torch.cat(normalisers, 2)

    @staticmethod
    def backward(
        gradient: Any,
        query: Any,
        key: Any,
        value: Any,
        output: Any,
        normaliser: Any,
        form: ScoreForm,
        causal: bool,
        seen: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        own_shapes = key.shape, value.shape
        key, value = _for_each_head(key, query), _for_each_head(value, query)
        to_query, to_key, to_value = [], torch.zeros_like(key), torch.zeros_like(value)
        for first in range(0, query.shape[2], _PLAIN_QUERIES):
            rows = slice(first, first + _PLAIN_QUERIES)
            queries, incoming = query[:, :, rows].to(key.dtype), gradient[:, :, rows].to(key.dtype)
            scores = _scores(queries, key, form)
            weights = (_hidden(scores, first, causal, seen) - normaliser[:, :, rows, None]).exp()
            to_value += weights.transpose(2, 3) @ incoming
            mean = (incoming * output[:, :, rows]).sum(-1, keepdim=True)
            to_scores = weights * (incoming @ value.transpose(2, 3) - mean) * form.scale
            if form.cap is not None:
                to_scores *= 1 - (scores / form.cap) ** 2
            to_query.append(to_scores @ key)
            to_key += to_scores.transpose(2, 3) @ queries
        shared = [
            each.unflatten(1, (shape[1], -1)).sum(2) for each, shape in zip((to_key, to_value), own_shapes, strict=True)
        ]
        return torch.cat(to_query, 2), *shared


class CudaFlash(Plain):
    """PyTorch's flash attention for half precision on a GPU; it has no mask, so masked parts are plain.

    Its causal mask needs as many queries as keys.
    """

    @staticmethod
    def forward(
        query: Any, key: Any, value: Any, form: ScoreForm, causal: bool, seen: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if seen is not None:
            return Plain.forward(query, key, value, form, causal, seen)
        return _aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal, scale=form.scale)[:2]

    @staticmethod
    def backward(
        gradient: Any,
        query: Any,
        key: Any,
        value: Any,
        output: Any,
        normaliser: Any,
        form: ScoreForm,
        causal: bool,
        seen: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        if seen is not None:
            return Plain.backward(gradient, query, key, value, output, normaliser, form, causal, seen)
        # Random state of the dropout, which is zero, so it is not read.
        state = torch.zeros(2, dtype=torch.uint64, device=query.device)
        lengths = query.shape[2], key.shape[2]
        return _aten._scaled_dot_product_flash_attention_backward(
            gradient, query, key, value, output, normaliser.contiguous(),
            None, None, *lengths, 0.0, causal, state, state, scale=form.scale,
        )  # fmt: skip


Kernel = type[CpuFlash] | type[Plain]


def kernel_for(query: torch.Tensor, value: torch.Tensor, form: ScoreForm) -> Kernel:
    """The fastest kernel for these shapes, types and scores."""
    size = query.shape[-1]
    if size == value.shape[-1] and form.cap is None:
        if device_type(query) == "cpu":
            return CpuFlash
        if (
            device_type(query) == "cuda"
            and query.dtype in (torch.bfloat16, torch.float16)
            and size % 8 == 0
            and size <= 256
        ):
            return CudaFlash
    return Plain


def dense_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    scaling: float | None,
    softcap: float | None,
    s_aux: torch.Tensor | None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """An attention function of transformers: PyTorch's scaled dot product, with soft cap and sinks if they are given.

    `mask` is boolean or added to the scores. `[rows, queries, heads, D]`
    """
    if softcap is None and s_aux is None:
        return sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **others)
    grouped = query.unflatten(1, (key.shape[1], -1)).flatten(2, 3)
    form = ScoreForm(scaling or query.shape[-1] ** -0.5, softcap)
    scores = _scores(grouped, key.to(at_least_float(key.dtype)), form).unflatten(2, (-1, query.shape[2]))
    if mask is None:
        scores = _hidden(scores, key.shape[2] - query.shape[2], True, None)
    elif mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask[:, :, None], -torch.inf)
    else:
        scores = scores + mask[:, :, None]
    normaliser = scores.logsumexp(-1, keepdim=True)
    if s_aux is not None:
        normaliser = torch.logaddexp(normaliser, s_aux.to(scores.dtype).view(1, key.shape[1], -1, 1, 1))
    weights = (scores - normaliser).exp()
    read = weights @ value[:, :, None].to(weights.dtype)
    return read.flatten(1, 2).transpose(1, 2).to(query.dtype), None


def at_least_float(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _additive(seen: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    if seen is None:
        return None
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


def _for_each_head(shared: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Keys or values repeated for the query heads that share them, in at least single precision."""
    repeated = shared.repeat_interleave(query.shape[1] // shared.shape[1], 1)
    return repeated.to(at_least_float(shared.dtype))


def _scores(query: torch.Tensor, key: torch.Tensor, form: ScoreForm) -> torch.Tensor:
    scores = query.to(key.dtype) @ key.transpose(2, 3) * form.scale
    return scores if form.cap is None else torch.tanh(scores / form.cap) * form.cap


def _hidden(scores: torch.Tensor, first: int, causal: bool, seen: torch.Tensor | None) -> torch.Tensor:
    """Scores of queries from `first` on, without those of keys that they do not see."""
    queries = scores.shape[-2]
    if causal:
        places = torch.arange(first, first + queries, device=scores.device)
        later = torch.arange(scores.shape[-1], device=scores.device) > places[:, None]
        scores = scores.masked_fill(later, -torch.inf)
    if seen is not None:
        scores = scores.masked_fill(~seen[first : first + queries], -torch.inf)
    return scores
