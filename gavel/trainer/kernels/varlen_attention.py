"""Attention over a packed row in one call of PyTorch's flash kernel for all segments of one depth.

Long segments go through cuDNN's kernel instead, where a trial finds it equal: on an H100 it is faster, but it is
prepared anew for every length.

The first level is every segment over itself. Each further one is the descendants of the segments of one depth over
these segments, so a group of replies to one prompt is two calls, however many replies there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, pairwise

import torch

from gavel.trainer.data.packing import Segment
from gavel.trainer.kernels.attention_kernels import Tensors, at_least_float

_aten = torch.ops.aten

_LONG = 8192
"""Tokens of a segment from which on cuDNN's kernel saves more time in the layers than it takes to be prepared."""
_MOST_RUNS = 16
_SAME = 0.02
"""Largest difference of the two kernels, relative to all values together: a few roundings to bfloat16."""

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
    long_runs: Sequence[tuple[slice, slice]] = ()
    """Queries and keys of each run, if they are few and long."""


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
    found = [_level(own, own, device, causal=True)]
    for _, parents in sorted(by_depth.items()):
        queries, keys = [(each.stop, each.end) for each in parents], [(each.start, each.stop) for each in parents]
        found.append(_level(queries, keys, device, causal=False))
    return found


def _level(queries: Sequence[Run], keys: Sequence[Run], device: torch.device, *, causal: bool) -> Level:
    lengths = [[stop - start for start, stop in runs] for runs in (queries, keys)]
    ends = [[*accumulate(each, initial=0)] for each in lengths]
    rows, places = (torch.cat([torch.arange(*run) for run in runs]).to(device) for runs in (queries, keys))
    query_ends, key_ends = (torch.tensor(each, dtype=torch.int32, device=device) for each in ends)
    longest = max(of_queries * of_keys for of_queries, of_keys in zip(*lengths, strict=True))
    long_runs: list[tuple[slice, slice]] = []
    # cuDNN refuses one token over one key
    if len(queries) <= _MOST_RUNS and longest >= _LONG**2 and min(map(min, lengths)) > 1:
        of_queries, of_keys = ([slice(*run) for run in pairwise(each)] for each in ends)
        long_runs = list(zip(of_queries, of_keys, strict=True))
    return Level(rows, places, query_ends, key_ends, max(lengths[0]), max(lengths[1]), causal, long_runs)


def forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, row: Sequence[Level], scale: float) -> Tensors:
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


def backward(gradient: torch.Tensor, attended: Tensors, row: Sequence[Level], scale: float) -> Tensors:
    """Gradients to queries, keys and values; `attended`: these three, and output and normalizer of the whole."""
    query, key, value, output, normaliser = attended
    first, *deeper = row
    found = tuple(each.to(_sum_type(row, query)) for each in flash_backward(gradient, attended, first, scale))
    for level in deeper:
        rows, keys = level.rows, level.keys
        of_level = query[rows], key[keys], value[keys], output[rows], normaliser[:, rows].contiguous()
        own = flash_backward(gradient[rows], of_level, level, scale)
        for total, places, part in zip(found, (rows, keys, keys), own, strict=True):
            total.index_add_(0, places, part.to(total.dtype))
    return found


def _sum_type(row: Sequence[Level], query: torch.Tensor) -> torch.dtype:
    """A sum of two rounded parts is rounded once in any type."""
    return query.dtype if len(row) <= 2 else at_least_float(query.dtype)


def flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, level: Level, scale: float) -> Tensors:
    """Output `[Q, heads, D]` and normalizer `[heads, Q]` of one level."""
    if _takes_cudnn(query, key, level):
        return _cudnn(query, key, value, level, scale)
    return _pytorch(query, key, value, level, scale)


def flash_backward(gradient: torch.Tensor, attended: Tensors, level: Level, scale: float) -> Tensors:
    if _takes_cudnn(attended[0], attended[1], level):
        return _cudnn_backward(gradient, attended, level, scale)
    return _pytorch_backward(gradient, attended, level, scale)


def _takes_cudnn(query: torch.Tensor, key: torch.Tensor, level: Level) -> bool:
    heads, size = query.shape[1:]
    return bool(level.long_runs) and query.is_cuda and _cudnn_agrees(heads, key.shape[1], size, query.dtype)


def _pytorch(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, level: Level, scale: float) -> Tensors:
    return _aten._flash_attention_forward(
        query, key, value, level.query_ends, level.key_ends, level.most_queries, level.most_keys,
        0.0, level.causal, False, scale=scale,
    )[:2]  # fmt: skip


def _pytorch_backward(gradient: torch.Tensor, attended: Tensors, level: Level, scale: float) -> Tensors:
    state = torch.zeros(2, dtype=torch.uint64, device=gradient.device)  # of the dropout, which is zero: not read
    return _aten._flash_attention_backward(
        gradient, *attended, level.query_ends, level.key_ends,
        level.most_queries, level.most_keys, 0.0, level.causal, state, state, scale=scale,
    )  # fmt: skip


def _cudnn(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, level: Level, scale: float) -> Tensors:
    """cuDNN's counterpart, one call per long run."""
    outputs, normalisers = [], []
    for rows, keys in level.long_runs:
        output, normaliser, *_ = _aten._scaled_dot_product_cudnn_attention(
            _by_head(query[rows]), _by_head(key[keys]), _by_head(value[keys]),
            None, True, 0.0, level.causal, False, scale=scale,
        )  # fmt: skip
        outputs.append(output[0].transpose(0, 1))
        normalisers.append(normaliser.reshape(query.shape[1], -1))
    return torch.cat(outputs), torch.cat(normalisers, -1)


def _cudnn_backward(gradient: torch.Tensor, attended: Tensors, level: Level, scale: float) -> Tensors:
    query, key, value, output, normaliser = attended
    state = torch.zeros((), dtype=torch.int64, device=query.device)  # of the dropout, which is zero: not read
    found = []
    for rows, keys in level.long_runs:
        own = _aten._scaled_dot_product_cudnn_attention_backward(
            _by_head(gradient[rows]), _by_head(query[rows]), _by_head(key[keys]), _by_head(value[keys]),
            _by_head(output[rows]), normaliser[None, :, rows, None].contiguous(), state, state, None, None, None,
            rows.stop - rows.start, keys.stop - keys.start, 0.0, level.causal, scale=scale,
        )  # fmt: skip
        found.append([each[0].transpose(0, 1) for each in own])
    return tuple(torch.cat(each) for each in zip(*found, strict=True))


def _by_head(tokens: torch.Tensor) -> torch.Tensor:
    """`[Q, heads, D]` as `[1, heads, Q, D]`."""
    return tokens.transpose(0, 1)[None]


@cache
def _cudnn_agrees(heads: int, key_heads: int, size: int, dtype: torch.dtype) -> bool:
    """Whether cuDNN's kernel runs here, and gives what PyTorch's flash kernel gives: a trial over two short runs."""
    length, scale = 256, size**-0.5
    fixed = torch.Generator("cuda").manual_seed(0)
    query, key, value, gradient = (
        torch.randn((2 * length, count, size), generator=fixed, device="cuda").to(dtype)
        for count in (heads, key_heads, key_heads, heads)
    )
    runs = [(0, length), (length, 2 * length)]
    for causal in (True, False):
        level = _level(runs, runs, query.device, causal=causal)
        level = replace(level, long_runs=[(slice(*run), slice(*run)) for run in runs])
        try:
            found = _cudnn(query, key, value, level, scale)
            found += _cudnn_backward(gradient, (query, key, value, *found), level, scale)
        except RuntimeError:  # not built in, or not for this device or these shapes
            return False
        expected = _pytorch(query, key, value, level, scale)
        expected += _pytorch_backward(gradient, (query, key, value, *expected), level, scale)
        for one, other in zip(found, expected, strict=True):
            if not (one.float() - other.float()).norm() <= _SAME * other.float().norm():
                return False
    return True
