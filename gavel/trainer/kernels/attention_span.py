"""How far back the queries of a layer see: the whole context, a sliding window, or their chunk.

    Span(4096).first_visible(positions)     the position of the first key that each query sees

The keys that a query sees are one run that ends at the query, whatever the span is.
"""

from dataclasses import dataclass
from typing import Any

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
