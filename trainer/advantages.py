"""Group rewards -> advantages: how much better a member did than its group."""

import math
from collections.abc import Sequence
from typing import Literal

_STD_FLOOR = 1e-4


def advantages(rewards: Sequence[float], kind: Literal["mean", "std"] = "mean") -> list[float]:
    """Reward minus group mean; for `std` divided by the unbiased standard deviation + 1e-4.

    `mean` is Dr. GRPO's (arXiv 2503.20783): a near-tie stays small. `std` is GRPO's (arXiv
    2402.03300). Raises `ValueError` for fewer than two rewards, which have no group to compare with.
    """
    if len(rewards) < 2:
        raise ValueError("a group of one has no advantage")
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if kind == "mean":
        return centred
    deviation = math.sqrt(math.fsum(value * value for value in centred) / (len(rewards) - 1))
    return [value / (deviation + _STD_FLOOR) for value in centred]


def has_signal(rewards: Sequence[float], minimal_spread: float) -> bool:
    """Whether the rewards differ by more than `minimal_spread` (a float residue is not a signal)."""
    return max(rewards) - min(rewards) > minimal_spread
