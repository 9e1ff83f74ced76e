"""Batches of a data set over epochs, in an order that a restart repeats."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tqdm.auto import tqdm

Item = TypeVar("Item")


@dataclass
class DatasetBatch(Generic[Item]):
    """The items of one training step."""

    items: list[Item]
    step: int
    """From 0, over all epochs."""
    epoch: int
    epoch_step: int


def iterate_dataset(
    dataset: Sequence[Item],
    groups_per_step: int = 1,
    num_epochs: int = 1,
    initial_step: int = 0,
    use_tqdm: bool = True,
) -> Iterator[DatasetBatch[Item]]:
    """Gives the batches from `initial_step` on; each epoch's order depends on its number alone, as in ART."""
    steps = math.ceil(len(dataset) / groups_per_step)
    with tqdm(
        initial=initial_step,
        total=steps * num_epochs,
        desc="Iterating dataset",
        unit="batch",
        disable=not use_tqdm or not dataset,
    ) as bar:
        for step in range(initial_step, steps * num_epochs):
            epoch, epoch_step = divmod(step, steps)
            order = list(range(len(dataset)))
            random.Random(epoch).shuffle(order)
            chosen = order[epoch_step * groups_per_step : (epoch_step + 1) * groups_per_step]
            yield DatasetBatch([dataset[index] for index in chosen], step, epoch, epoch_step)
            bar.update(1)
