"""A LoRA adapter in the three forms in which a sampler can take it: merged weights, factors, or a PEFT directory.

A policy provides it and an engine publishes it, so neither needs to know the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class LoraFactors:
    """The adapter of one linear layer, y = W x + scale * B (A x), or of the stacked weight of a mixture's experts."""

    layer: str
    """Its name in the plain model; of experts that of the weight."""
    a: "torch.Tensor"
    """`[rank, in]`; of experts `[experts, rank, in]`"""
    b: "torch.Tensor"
    """`[out, rank]`; of experts `[experts, out, rank]`"""
    scale: float


class Adapter(Protocol):
    """An adapter that can be published; an engine takes whichever form it needs."""

    def merged_weights(self) -> "Iterator[tuple[str, torch.Tensor]]":
        """The adapted weights by their names in the plain model; the tensors are not modified afterwards."""
        ...

    def factors(self) -> Iterator[LoraFactors]:
        """The factors A and B of each layer."""
        ...

    def save_adapter(self, directory: Path) -> None:
        """Writes a PEFT adapter directory."""
        ...
