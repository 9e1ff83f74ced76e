"""Attention over a packed row as a list of parts: some rows of queries over some rows of keys.

    Span(4096).first_visible(positions)     the position of the first key that each query sees

Each query's parts cover the keys that it sees, each once: one run that ends at the query. A segment's keys are seen by
its own later queries and by all its descendants; where a layer's span (a sliding window, a chunk) is shorter than the
context, parts without a visible key are left out, and the others are cut so that a mask covers few queries.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gavel.trainer.data.packing import Segment

_KINDS = ("full_attention", "sliding_attention", "chunked_attention")


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
    if set(kinds) - set(_KINDS):
        return None
    chunk = getattr(config, "attention_chunk_size", None)
    spans = {
        "full_attention": FULL,
        "sliding_attention": Span(window or None),
        "chunked_attention": Span(chunk, chunked=True),
    }
    return [spans[kind] for kind in kinds]


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


def joined_parts(segments: Sequence[Segment]) -> Iterator[Part]:
    """Without a limit, one part a segment: its descendants follow its own queries, and see all of its keys."""
    return _marked(
        Part(slice(segment.start, segment.end), slice(segment.start, segment.stop), causal=True) for segment in segments
    )


def square_parts(segments: Sequence[Segment]) -> Iterator[Part]:
    """Without a limit, for kernels whose causal mask needs as many queries as keys."""
    return _marked(part for segment in segments for part in _own_and_descendants(segment))


def limited_parts(segments: Sequence[Segment], positions: np.ndarray, span: Span) -> Iterator[Part]:
    """For a span that is shorter than the context. `positions` `[U]`"""
    first_visible = span.first_visible(positions)
    for segment in segments:
        begin, last = int(positions[segment.start]), int(positions[segment.stop - 1])
        for start in range(segment.start, segment.stop, BLOCK):
            stop = min(start + BLOCK, segment.stop)
            yield _limited(slice(start, stop), segment.start, stop, begin, first_visible)
        reached = np.flatnonzero(first_visible[segment.stop : segment.end] <= last) + segment.stop
        for run in np.split(reached, np.flatnonzero(np.diff(reached) > 1) + 1):
            for block in range(0, len(run), BLOCK):
                own = run[block : block + BLOCK]
                rows = slice(int(own[0]), int(own[-1]) + 1)
                yield _limited(rows, segment.start, segment.stop, begin, first_visible)


def _limited(rows: slice, start: int, stop: int, begin: int, first_visible: np.ndarray) -> Part:
    """The part of the keys [start, stop), the first of them at position `begin`, that any of the rows sees."""
    firsts = first_visible[rows]
    keys = slice(start + max(0, int(firsts.min()) - begin), stop)
    return Part(rows, keys, causal=False, masked=stop == rows.stop or int(firsts.max()) > begin + keys.start - start)


def _own_and_descendants(segment: Segment) -> Iterator[Part]:
    own = slice(segment.start, segment.stop)
    yield Part(own, own, causal=True)
    if segment.end > segment.stop:
        yield Part(slice(segment.stop, segment.end), own, causal=False)


def _marked(parts: Iterator[Part]) -> Iterator[Part]:
    """In preorder the parts that have new queries are those that begin behind all earlier ones."""
    seen = 0
    for part in parts:
        yield Part(part.rows, part.keys, part.causal, first=part.rows.start >= seen)
        seen = max(seen, part.rows.stop)
