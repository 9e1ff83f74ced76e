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


@dataclass(frozen=True, slots=True)
class Level:
    """Runs of queries, each over a run of keys of its own."""

    rows: torch.Tensor | None
    """Indices of the queries in the row, run by run; None: the whole row."""
    keys: torch.Tensor | None
    query_ends: torch.Tensor
    """`[runs + 1]`, int32: where each run of queries begins, and where the last one ends."""
    key_ends: torch.Tensor
    most_queries: int
    most_keys: int
    causal: bool
    """Whether a query sees only the keys up to its own place; then its run has as many keys as queries."""


def levels(segments: Sequence[Segment], device: torch.device) -> list[Level]:
    """Every query and key of the row is in the first one."""
    own = [(segment.start, segment.stop) for segment in segments]
    by_depth: dict[int, list[Segment]] = {}
    ends: list[int] = []
    for segment in segments:
        while ends and ends[-1] <= segment.start:
            ends.pop()
        if segment.end > segment.stop:
            by_depth.setdefault(len(ends), []).append(segment)
        ends.append(segment.end)
    return [
        Level(None, None, *_ends(own, own, device), causal=True),
        *(_below(found, device) for _, found in sorted(by_depth.items())),
    ]


def _below(segments: Sequence[Segment], device: torch.device) -> Level:
    """The descendants of segments that are not each other's, over them."""
    queries = [(segment.stop, segment.end) for segment in segments]
    keys = [(segment.start, segment.stop) for segment in segments]
    places = (torch.cat([torch.arange(*run) for run in runs]).to(device) for runs in (queries, keys))
    return Level(*places, *_ends(queries, keys, device), causal=False)


def _ends(
    queries: Sequence[tuple[int, int]], keys: Sequence[tuple[int, int]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    sizes = [[stop - start for start, stop in runs] for runs in (queries, keys)]
    ends = [torch.tensor([*accumulate(each, initial=0)], dtype=torch.int32, device=device) for each in sizes]
    return ends[0], ends[1], max(sizes[0]), max(sizes[1])


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
        taken = _of(level.rows, query), _of(level.keys, key), _of(level.keys, value)
        own, own_normaliser = flash(*taken, level, scale)
        known = _of(level.rows, normaliser, 1)
        share = torch.sigmoid(own_normaliser - known).T[..., None]
        precise = at_least_float(whole.dtype)
        whole[level.rows] = _of(level.rows, whole).to(precise).lerp(own.to(precise), share).to(whole.dtype)
        normaliser[:, level.rows] = torch.logaddexp(known, own_normaliser)
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
        own = flash_backward(
            *(_of(level.rows, each) for each in (gradient, query)),
            *(_of(level.keys, each) for each in (key, value)),
            _of(level.rows, output),
            _of(level.rows, normaliser, 1),
            level,
            scale,
        )
        for total, places, part in zip(found, (level.rows, level.keys, level.keys), own, strict=True):
            total.index_add_(0, places, part.to(total.dtype))
    return tuple(found)


def _of(places: torch.Tensor | None, tensor: torch.Tensor, axis: int = 0) -> torch.Tensor:
    return tensor if places is None else tensor.index_select(axis, places)


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
