"""One call of ART's `train_sft` as steps of Gavel, each with one learning rate.

A list of rates, one for each batch, is cut into parts of up to 16 batches, each trained with the mean of its rates:
every step leaves a checkpoint, so one for each batch would be slow.
"""

from collections.abc import Iterator, Sequence
from statistics import fmean

from gavel.compat.art.ignored import ignored
from gavel.compat.art.types import TrainSFTConfig
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import SftConfig

_AUTO = 2
"""Trajectories in a batch, by default."""
_BATCHES = 16


def sft_parts(
    trajectories: Sequence[Trajectory], config: TrainSFTConfig
) -> Iterator[tuple[list[Trajectory], SftConfig]]:
    """The trajectories of each step and its settings; a part whose rate is 0 is left out.

    Raises `ValueError` when there are batches without a rate.
    """
    for name in config.model_extra or ():
        ignored(f"TrainSFTConfig({name}=…)", "no such setting is known")
    size = _AUTO if config.batch_size == "auto" else config.batch_size
    batches = [list(trajectories[start : start + size]) for start in range(0, len(trajectories), size)]
    rates = config.learning_rate
    if not isinstance(rates, list):
        if batches:
            yield list(trajectories), SftConfig(learning_rate=rates, batch_size=size)
        return
    if len(rates) < len(batches):
        raise ValueError(f"{len(batches)} batches of {size} need as many learning rates; there are {len(rates)}")
    for start in range(0, len(batches), _BATCHES):
        part = batches[start : start + _BATCHES]
        rate = fmean(rates[start : start + len(part)])
        if rate > 0:
            yield [member for batch in part for member in batch], SftConfig(learning_rate=rate, batch_size=size)
