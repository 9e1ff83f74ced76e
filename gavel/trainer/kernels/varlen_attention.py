"""Attention over a packed row in one call of PyTorch's flash kernel for all segments of one depth.

The first level is every segment over itself. Each further one is the descendants of the segments of one depth over
these segments, so a group of replies to one prompt is two calls, however many replies there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from gavel.trainer.data.packing import Segment
from gavel.trainer.kernels.attention_kernels import at_least_float

_aten = torch.ops.aten

Tensors = tuple[torch.Tensor, ...]
Run = tuple[int, int]
"""[start, stop) in the row."""


@dataclass(frozen=True, slots=True)
class Level:
    """Runs of queries, each over a run of keys of its own."""

    rows: torch.Tensor
    """Indices of the queries in the row, run by run."""
    keys: torch.Tensor
    query_ends: torch.Tensor
    """`[runs + 1]`, int32: where each run of queries begins, and where the last one ends."""
    key_ends: torch.Tensor
    most_queries: int
    most_keys: int
    causal: bool
    """Whether a query sees only the keys up to its own place; then its run has as many keys as queries."""


def levels(segments: Sequence[Segment], device: torch.device) -> list[Level]:
    """The first one holds every query and key, in the order of the row."""
    own = [(segment.start, segment.stop) for segment in segments]
    by_depth: dict[int, list[Segment]] = {}
    ends: list[int] = []
    for segment in segments:
        while ends and ends[-1] <= segment.start:
            ends.pop()
        if segment.end > segment.stop:
            by_depth.setdefault(len(ends), []).append(segment)
        ends.append(segment.end)
    deeper = [
        _level(
            [(segment.stop, segment.end) for segment in found],
            [(segment.start, segment.stop) for segment in found],
            device,
            causal=False,
        )
        for _, found in sorted(by_depth.items())
    ]
    return [_level(own, own, device, causal=True), *deeper]


def _level(queries: Sequence[Run], keys: Sequence[Run], device: torch.device, *, causal: bool) -> Level:
    query_lengths, key_lengths = ([stop - start for start, stop in runs] for runs in (queries, keys))
    return Level(
        _places(queries, device),
        _places(keys, device),
        _ends(query_lengths, device),
        _ends(key_lengths, device),
        max(query_lengths),
        max(key_lengths),
        causal,
    )


def _places(runs: Sequence[Run], device: torch.device) -> torch.Tensor:
    return torch.cat([torch.arange(start, stop) for start, stop in runs]).to(device)


def _ends(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor([*accumulate(lengths, initial=0)], dtype=torch.int32, device=device)


def forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, row: Sequence[Level], scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The row's output `[U, heads, D]`, and its normalizer `[heads, U]` in float32, by the levels of the row.

    `query` is `[U, heads, D]`; keys and values have as many heads, or a divisor of them.
    """
    first, *deeper = row
    whole, normaliser = flash(query, key, value, first, scale)
    whole = whole.to(_sum_type(row, query))
    for level in deeper:
        rows, keys = level.rows, level.keys
        own, own_normaliser = flash(query[rows], key[keys], value[keys], level, scale)
        known, precise = normaliser[:, rows], at_least_float(whole.dtype)
        share = torch.sigmoid(own_normaliser - known).T[..., None]
        whole[rows] = whole[rows].to(precise).lerp(own.to(precise), share).to(whole.dtype)
        normaliser[:, rows] = torch.logaddexp(known, own_normaliser)
    return whole, normaliser


def backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    normaliser: torch.Tensor,
    row: Sequence[Level],
    scale: float,
) -> Tensors:
    """To queries, keys and values, given output and normalizer of the whole attention."""
    first, *deeper = row
    given = flash_backward(gradient, query, key, value, output, normaliser, first, scale)
    found = [each.to(_sum_type(row, query)) for each in given]
    for level in deeper:
        rows, keys = level.rows, level.keys
        own = flash_backward(
            gradient[rows],
            query[rows],
            key[keys],
            value[keys],
            output[rows],
            normaliser[:, rows].contiguous(),
            level,
            scale,
        )
        for total, places, part in zip(found, (rows, keys, keys), own, strict=True):
            total.index_add_(0, places, part.to(total.dtype))
    return tuple(found)


def _sum_type(row: Sequence[Level], query: torch.Tensor) -> torch.dtype:
    """A sum of two rounded parts is rounded once in any type."""
    return query.dtype if len(row) <= 2 else at_least_float(query.dtype)


def flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, level: Level, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output `[Q, heads, D]` and normalizer `[heads, Q]` of one level."""
    output, normaliser, *_ = _aten._flash_attention_forward(
        query, key, value, level.query_ends, level.key_ends, level.most_queries, level.most_keys,
        0.0, level.causal, False, scale=scale,
    )  # fmt: skip
    return output, normaliser


def flash_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    normaliser: torch.Tensor,
    level: Level,
    scale: float,
) -> Tensors:
    state = torch.zeros(2, dtype=torch.uint64, device=query.device)  # of the dropout, which is zero: not read
    return _aten._flash_attention_backward(
        gradient, query, key, value, output, normaliser, level.query_ends, level.key_ends,
        level.most_queries, level.most_keys, 0.0, level.causal, state, state, scale=scale,
    )  # fmt: skip
