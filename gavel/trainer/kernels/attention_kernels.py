"""Attention of some queries over some keys, with its normalizer, forward and backward: one class for each way.

The backward pass takes output and normalizer of the whole attention, of which the keys may be a part.

A packed row is attended part by part: some rows of queries over some rows of keys.

    Span(4096).first_visible(positions)     the position of the first key that each query sees

Each query's parts cover the keys that it sees, each once: one run that ends at the query. A segment's keys are seen by
its own later queries and by all its descendants; where a layer's span (a sliding window, a chunk) is shorter than the
context, parts without a visible key are left out, and the others are cut so that a mask covers few queries.
"""

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from gavel.trainer.data.packing import Segment


@dataclass(frozen=True, slots=True)
class Span:
    """One layer's reach."""

    size: int | None = None
    """Keys that a query sees, its own included; None: all earlier ones."""
    chunked: bool = False
    """Whether the keys begin at a multiple of `size`, instead of `size` keys before the query."""

    def first_visible(self, positions: Any) -> Any:
        """The first visible position of queries at `positions`: an integer, or an array or tensor of them."""
        if self.size is None:
            return positions * 0
        if self.chunked:
            return positions // self.size * self.size
        return (positions - self.size + 1) * (positions >= self.size)

    def limits(self, context: int) -> bool:
        """Whether a query in a context of so many tokens misses any of them."""
        return self.size is not None and self.size < context


FULL = Span()


def layer_spans(config: Any) -> list[Span] | None:
    """The span of each layer by the config of a text model; None when one of them is not plain attention."""
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    kinds = getattr(config, "layer_types", None)
    if kinds is None:  # then the window is that of all layers
        return [Span(window or None)] * config.num_hidden_layers
    chunk = Span(getattr(config, "attention_chunk_size", None), chunked=True)
    spans = {"full_attention": FULL, "sliding_attention": Span(window or None), "chunked_attention": chunk}
    return [spans[kind] for kind in kinds] if spans.keys() >= {*kinds} else None


BLOCK = 512
"""Queries of a part that needs a mask."""


@dataclass(frozen=True, slots=True)
class Part:
    """Queries `rows` over keys `keys`, both as slices of the packed row."""

    rows: slice
    keys: slice
    causal: bool
    """Whether query i of the part sees only its keys up to i."""
    masked: bool = False
    """Whether a query sees only those keys that its span reaches."""
    first: bool = False
    """Whether no earlier part has any of its queries."""


def unlimited_parts(segments: Sequence[Segment], kernel: "Kernel") -> Iterator[Part]:
    """The parts without a limit: a segment's own queries, and its descendants, which follow and see all of its keys.

    They are one part where the kernel's causal mask shows all keys to later queries.
    """
    seen = 0  # in preorder the parts that have new queries begin behind all earlier ones
    for each in segments:
        apart = kernel is not CpuFlash and each.end > each.stop
        for start, stop in pairwise([each.start, each.stop, each.end] if apart else [each.start, each.end]):
            keys = slice(each.start, each.stop)
            yield Part(slice(start, stop), keys, causal=start == each.start, first=start >= seen)
            seen = max(seen, stop)


def limited_parts(segments: Sequence[Segment], positions: np.ndarray, span: Span) -> Iterator[Part]:
    """The parts for a span that is shorter than the context. `positions` `[U]`"""
    first_visible = span.first_visible(positions)
    for segment in segments:
        begin, last = int(positions[segment.start]), int(positions[segment.stop - 1])
        blocks = [slice(at, min(at + BLOCK, segment.stop)) for at in range(segment.start, segment.stop, BLOCK)]
        reached = np.flatnonzero(first_visible[segment.stop : segment.end] <= last) + segment.stop
        for run in np.split(reached, np.flatnonzero(np.diff(reached) > 1) + 1):
            parts = (run[at : at + BLOCK] for at in range(0, len(run), BLOCK))
            blocks += [slice(int(part[0]), int(part[-1]) + 1) for part in parts]
        for rows in blocks:
            firsts = first_visible[rows] - begin
            keys = slice(segment.start + max(0, int(firsts.min())), min(rows.stop, segment.stop))
            hides = keys.stop == rows.stop or int(firsts.max()) > keys.start - segment.start
            yield Part(rows, keys, causal=False, masked=hides)


_PLAIN_QUERIES = 1024
"""Queries computed at once by the plain kernel; bounds its memory."""

_aten = torch.ops.aten

_assumed: ContextVar[str] = ContextVar("assumed device", default="cpu")


def device_type(tensor: torch.Tensor) -> str:
    """`cpu`, `cuda`, …"""
    return _assumed.get() if tensor.is_meta else tensor.device.type


@contextlib.contextmanager
def assume(device: str) -> Iterator[None]:
    """Within the block, meta tensors are computed as those of `device` are."""
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


Tensors = tuple[torch.Tensor, ...]
Seen = torch.Tensor | None
"""Whether each query sees each key, `[queries, keys]`; None: all of them."""


class CpuFlash:
    """PyTorch's kernel for the CPU; its causal mask shows all keys to later queries."""

    @staticmethod
    def forward(query: Any, key: Any, value: Any, form: ScoreForm, causal: bool, seen: Seen) -> Tensors:
        """Output `[1, heads, queries, D]` and normalizer `[1, heads, queries]`."""
        return _aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=_additive(seen, query.dtype), scale=form.scale
        )

    @staticmethod
    def backward(gradient: Any, attended: Tensors, form: ScoreForm, causal: bool, seen: Seen) -> Tensors:
        """Gradients to query, key and value; `attended`: these three, and output and normalizer of the whole."""
        mask = _additive(seen, attended[0].dtype)
        return _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, *attended, 0.0, causal, attn_mask=mask, scale=form.scale
        )


class Plain:
    """Plain matrix products on any device and type; the reference for the other kernels."""

    @staticmethod
    def forward(query: Any, key: Any, value: Any, form: ScoreForm, causal: bool, seen: Seen) -> Tensors:
        key, value = _for_each_head(key, query), _for_each_head(value, query)
        outputs, normalisers = [], []
        for first in range(0, query.shape[2], _PLAIN_QUERIES):
            rows = slice(first, first + _PLAIN_QUERIES)
            scores = _hidden(_scores(query[:, :, rows], key, form), first, causal, seen)
            normalisers.append(scores.logsumexp(-1))
            outputs.append((scores - normalisers[-1][..., None]).exp() @ value)
        return torch.cat(outputs, 2), torch.cat(normalisers, 2)

    @staticmethod
    def backward(gradient: Any, attended: Tensors, form: ScoreForm, causal: bool, seen: Seen) -> Tensors:
        query, own_key, own_value, output, normaliser = attended
        key, value = _for_each_head(own_key, query), _for_each_head(own_value, query)
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
        shared = (each.unflatten(1, (own_key.shape[1], -1)).sum(2) for each in (to_key, to_value))
        return torch.cat(to_query, 2), *shared


class CudaFlash(Plain):
    """PyTorch's flash attention for half precision on a GPU, without a causal mask: `varlen_attention` has that one."""

    @staticmethod
    def forward(query: Any, key: Any, value: Any, form: ScoreForm, causal: bool, seen: Seen) -> Tensors:
        if seen is not None:
            return Plain.forward(query, key, value, form, causal, seen)
        return _aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal, scale=form.scale)[:2]

    @staticmethod
    def backward(gradient: Any, attended: Tensors, form: ScoreForm, causal: bool, seen: Seen) -> Tensors:
        if seen is not None:
            return Plain.backward(gradient, attended, form, causal, seen)
        query, key, value, output, normaliser = attended
        state = torch.zeros(2, dtype=torch.uint64, device=query.device)  # of the dropout, which is zero: not read
        return _aten._scaled_dot_product_flash_attention_backward(
            gradient, query, key, value, output, normaliser.contiguous(),
            None, None, query.shape[2], key.shape[2], 0.0, causal, state, state, scale=form.scale,
        )  # fmt: skip


Kernel = type[CpuFlash] | type[Plain]


def kernel_for(query: torch.Tensor, value: torch.Tensor, form: ScoreForm) -> Kernel:
    """The fastest kernel for these shapes, types and scores."""
    size, device = query.shape[-1], device_type(query)
    if size != value.shape[-1] or form.cap is not None:
        return Plain
    if device == "cuda" and query.dtype in (torch.bfloat16, torch.float16) and size % 8 == 0 and size <= 256:
        return CudaFlash
    return CpuFlash if device == "cpu" else Plain


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


def _additive(seen: Seen, dtype: torch.dtype) -> torch.Tensor | None:
    return None if seen is None else torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, -torch.inf)


def _for_each_head(shared: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Keys or values repeated for the query heads that share them, in at least single precision."""
    repeated = shared.repeat_interleave(query.shape[1] // shared.shape[1], 1)
    return repeated.to(at_least_float(shared.dtype))


def _scores(query: torch.Tensor, key: torch.Tensor, form: ScoreForm) -> torch.Tensor:
    scores = query.to(key.dtype) @ key.transpose(2, 3) * form.scale
    return scores if form.cap is None else torch.tanh(scores / form.cap) * form.cap


def _hidden(scores: torch.Tensor, first: int, causal: bool, seen: Seen) -> torch.Tensor:
    """Scores of queries from `first` on, without those of keys that they do not see."""
    places = torch.arange(first, first + scores.shape[-2], device=scores.device)
    if causal:
        later = torch.arange(scores.shape[-1], device=scores.device) > places[:, None]
        scores = scores.masked_fill(later, -torch.inf)
    return scores if seen is None else scores.masked_fill(~seen[places], -torch.inf)
