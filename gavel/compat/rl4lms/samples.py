"""What is generated from: samples, pools of them, and sampling by weight.

sampler = PrioritySampler(priority_scale=1.0)      probability of a sample = weight ** scale / their sum
PrioritySampler(priority_scale=0.0)                uniform, whatever the weights
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gavel.base.errors import GavelError

Item = TypeVar("Item")


@dataclass
class Sample:
    """One prompt with its references; fields and order are RL4LMs'. Raises `GavelError` for references in one text."""

    id: str
    prompt_or_input_text: str
    references: list[str]
    meta_data: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.references, str):  # every letter would count as a reference
            raise GavelError(f"the references of the sample {self.id} are a text.", "Give a list: [text].")


class TextGenPool:
    """Samples of a data set; iterating gives (sample, weight 1)."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = list(samples)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Sample, float]:
        return self._samples[index], 1.0

    def __iter__(self) -> Iterator[tuple[Sample, float]]:
        return ((sample, 1.0) for sample in self._samples)

    def sample(self) -> Sample:
        """One of them, uniformly."""
        return random.choice(self._samples)

    def split(self, split_ratios: Sequence[float]) -> "list[TextGenPool]":
        """Consecutive parts of these shares; what rounding leaves over is in none."""
        pools: list[TextGenPool] = []
        first = 0
        for ratio in split_ratios:
            count = int(len(self) * ratio)
            pools.append(type(self)(self._samples[first : first + count]))
            first += count
        return pools


class PrioritySampler(Generic[Item]):
    """Draws items with probability proportional to weight ** priority_scale."""

    def __init__(self, priority_scale: float = 0.0) -> None:
        self.priority_scale = priority_scale
        self._items: list[Item] = []
        self._weights: list[float] = []

    def add(self, item: Item, weight: float) -> None:
        """Raises `GavelError` for a weight that is no number from 0."""
        if not 0 <= weight < float("inf"):
            raise GavelError(f"the weight {weight!r} of a sample is no weight.", "Use a number from 0.")
        self._items.append(item)
        self._weights.append(weight)

    def update(self, item: Item, weight: float) -> None:
        """Gives an item another weight."""
        self._weights[self._items.index(item)] = weight

    def __len__(self) -> int:
        return len(self._items)

    @property
    def probabilities(self) -> list[float]:
        """Of the items, in the order in which they were added. Raises `GavelError` when all weights are 0, or there
        are no items."""
        scaled = [weight**self.priority_scale for weight in self._weights]
        total = sum(scaled)
        if not total > 0:
            raise GavelError(
                "there is no sample to draw: there are none, or all have the weight 0.",
                "Add a sample with a weight above 0, or leave priority_scale at 0.",
            )
        return [each / total for each in scaled]

    def sample(self, size: int, chooser: random.Random | None = None) -> list[Item]:
        """`size` different items, or all that have a probability if these are fewer."""
        chooser = chooser or random.Random()
        left = [(item, p) for item, p in zip(self._items, self.probabilities, strict=True) if p > 0]
        found: list[Item] = []
        while left and len(found) < size:
            (at,) = chooser.choices(range(len(left)), weights=[p for _, p in left])
            found.append(left.pop(at)[0])
        return found
