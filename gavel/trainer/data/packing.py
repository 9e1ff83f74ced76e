"""Sequences -> one flat row of tokens in which every shared prefix stands once.

    [1 2 3 4] and [1 2 5]  ->  row [1 2 3 4 5], paths [0 1 2 3] and [0 1 4]

The row is a radix tree in preorder: a token follows its parent directly, or the whole subtree of an earlier sibling, so
all descendants of a segment are one range of the row. Two sequences share a token exactly when they agree up to and
including it; `paths` maps each sequence to the row.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gavel.trainer.data.token_sequences import TokenError, TokenSequence


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens without a fork: [start, stop) are its own, [stop, end) its descendants."""

    start: int
    stop: int
    end: int


@dataclass(frozen=True, slots=True)
class Packed:
    """The row of `U` unique tokens, and the `T` trained tokens of all sequences in their order."""

    token_ids: np.ndarray
    """[U]"""
    positions: np.ndarray
    """[U], counted from 0 at the beginning of a sequence."""
    segments: list[Segment]
    """In preorder."""
    paths: list[np.ndarray]
    """For each sequence the indices of its tokens in the row."""
    predictors: np.ndarray
    """[S], indices in the row; each predicts one token at one temperature."""
    targets: np.ndarray
    """[S], the predicted tokens' ids."""
    temperatures: np.ndarray
    """[S]"""
    scored: np.ndarray
    """[T], for each trained token the index of its prediction; sequences may share one."""


def pack(batch: Sequence[TokenSequence]) -> Packed:
    """Packs the sequences. Raises `TokenError` for one that begins with a sampled token, which nothing predicts."""
    ids = [np.asarray(tokens.token_ids, dtype=np.int64) for tokens in batch]
    paths: list[np.ndarray] = [np.empty(0, dtype=np.int64)] * len(batch)
    starts = {0}
    unique: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    size, before = 0, None
    for index in _trie_order(batch):
        shared = 0 if before is None else _common_prefix(ids[before], ids[index])
        if before is not None and shared < len(ids[before]):
            starts |= {int(paths[before][shared]), size}
        length = len(ids[index])
        own = np.arange(size, size + length - shared)
        paths[index] = own if before is None else np.concatenate([paths[before][:shared], own])
        unique.append(ids[index][shared:])
        positions.append(np.arange(shared, length))
        size, before = size + length - shared, index
    flat_positions = np.concatenate(positions)
    predictions = _predictions(batch, paths)
    found, scored = np.unique(predictions, return_inverse=True)
    return Packed(
        np.concatenate(unique),
        flat_positions,
        list(_segments(sorted(starts - {size}), flat_positions)),
        paths,
        found["place"],
        found["target"],
        found["temperature"],
        scored,
    )


def unique_tokens(batch: Sequence[TokenSequence]) -> int:
    """The length of the row that `pack` would make of `batch`."""
    return sum(_added_tokens(batch, list(_trie_order(batch))))


def micro_batches(batch: Sequence[TokenSequence], groups: Sequence[int], most_tokens: int) -> list[list[int]]:
    """Micro-batches as indices into `batch`, of at most `most_tokens` unique tokens, the largest first.

    A group that fits stays together; a larger one is cut where its members share the shortest prefixes. A sequence
    longer than `most_tokens` is a micro-batch of its own.
    """
    pieces = [piece for indices in _members(groups) for piece in _pieces(batch, indices, most_tokens)]
    bins: list[tuple[int, list[int]]] = []
    for size, indices in sorted(pieces, key=lambda piece: piece[0], reverse=True):
        for number, (used, members_so_far) in enumerate(bins):
            if used + size <= most_tokens:
                bins[number] = (used + size, members_so_far + indices)
                break
        else:
            bins.append((size, indices))
    return [indices for _, indices in sorted(bins, key=lambda each: each[0], reverse=True)]


def assign_to_ranks(batch: Sequence[TokenSequence], groups: Sequence[int], count: int) -> list[list[int]]:
    """Indices into `batch` for each of `count` processes, in whole groups.

    The loads of unique tokens are balanced greedily: the largest group first, onto the smallest load. With fewer groups
    than processes some parts are empty.
    """
    sized = [(unique_tokens([batch[index] for index in indices]), indices) for indices in _members(groups)]
    loads = [0] * count
    parts: list[list[int]] = [[] for _ in range(count)]
    for size, indices in sorted(sized, key=lambda each: each[0], reverse=True):
        lightest = loads.index(min(loads))
        loads[lightest] += size
        parts[lightest] += indices
    return [sorted(part) for part in parts]


def _members(groups: Sequence[int]) -> Collection[list[int]]:
    """The indices of each group."""
    found: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        found.setdefault(group, []).append(index)
    return found.values()


def _pieces(batch: Sequence[TokenSequence], indices: list[int], most_tokens: int) -> Iterator[tuple[int, list[int]]]:
    """Runs of neighbors in the trie, each with its number of unique tokens."""
    members = [batch[index] for index in indices]
    order = list(_trie_order(members))
    size = 0
    piece: list[int] = []
    for index, added in zip(order, _added_tokens(members, order), strict=True):
        if piece and size + added > most_tokens:
            yield size, piece
            size, piece = 0, []
        size += added if piece else len(members[index].token_ids)
        piece.append(indices[index])
    yield size, piece


def _trie_order(batch: Sequence[TokenSequence]) -> list[int]:
    """An order in which sequences that share a prefix are neighbors."""
    return sorted(range(len(batch)), key=lambda index: batch[index].token_ids)


def _added_tokens(batch: Sequence[TokenSequence], order: list[int]) -> list[int]:
    """Tokens that each sequence adds to those before it in trie order."""
    ids = [np.asarray(batch[index].token_ids) for index in order]
    shared = [0, *(_common_prefix(*pair) for pair in pairwise(ids))]
    return [len(own) - known for own, known in zip(ids, shared, strict=True)]


def _common_prefix(one: np.ndarray, other: np.ndarray) -> int:
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    return int(differs.argmax()) if differs.any() else length


def _segments(starts: list[int], positions: np.ndarray) -> Iterator[Segment]:
    stops = [*starts[1:], len(positions)]
    for number, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        depth = positions[stop - 1]
        following = (later for later in starts[number + 1 :] if positions[later] <= depth)
        yield Segment(start, stop, next(following, len(positions)))


_PREDICTION = np.dtype([("place", np.int64), ("target", np.int64), ("temperature", np.float64)])


def _predictions(batch: Sequence[TokenSequence], paths: list[np.ndarray]) -> np.ndarray:
    """One row for each trained token of each sequence."""
    found: list[np.ndarray] = []
    for tokens, path in zip(batch, paths, strict=True):
        trained = np.flatnonzero(tokens.sampled)
        if len(trained) and trained[0] == 0:
            raise TokenError(
                "a sequence begins with a sampled token, which nothing predicts", "Begin it with a prompt."
            )
        rows = np.empty(len(trained), dtype=_PREDICTION)
        rows["place"] = path[trained - 1]
        rows["target"] = np.asarray(tokens.token_ids)[trained]
        rows["temperature"] = np.asarray(tokens.temperatures)[trained]
        found.append(rows)
    return np.concatenate(found)
