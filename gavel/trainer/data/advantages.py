"""Group rewards -> advantages: how much better a member did than its group.

Every kind gives numbers that sum to zero, keep the order of the rewards, and do not change when all
rewards are shifted by a constant.
"""

import math
from collections.abc import Sequence

from gavel.judge.shaping import reliability
from gavel.trainer.config import AdvantageKind

_STD_FLOOR = 1e-4
_TIE = 1e-6
"""Rewards that differ by no more are equal: a float residue is not a rank."""


def advantages(
    rewards: Sequence[float], kind: AdvantageKind = "mean", errors: Sequence[float | None] = ()
) -> list[float]:
    """The advantage of each member of one group.

    mean: reward minus group mean (Dr. GRPO, arXiv 2503.20783): a near-tie stays small.
    std: that, divided by the unbiased standard deviation + 1e-4 (GRPO, arXiv 2402.03300).
    rloo: reward minus the mean of the others (arXiv 2402.14740).
    rank: the share of the others that it beats minus the share that beats it, halved: from -1/2 to 1/2, and only the
    order counts (the centred ranks of arXiv 1703.03864).
    shrunk: mean, times the `reliability` of the rewards; `errors` are their standard errors, None where unknown.

    Raises `ValueError` for fewer than two rewards, which have no group to compare with.
    """
    size = len(rewards)
    if size < 2:
        raise ValueError("a group of one has no advantage")
    mean = math.fsum(rewards) / size
    centred = [reward - mean for reward in rewards]
    match kind:
        case "mean":
            return centred
        case "std":
            return [value / (math.sqrt(_variance(rewards)) + _STD_FLOOR) for value in centred]
        case "rloo":
            return [value * size / (size - 1) for value in centred]
        case "rank":
            return [sum(_compared(own, other) for other in rewards) / (2 * (size - 1)) for own in rewards]
        case "shrunk":
            factor = reliability(rewards, errors)
            return [value * factor for value in centred]


def has_signal(rewards: Sequence[float], minimal_spread: float) -> bool:
    """Whether the rewards differ by more than `minimal_spread` (a float residue is not a signal)."""
    return max(rewards) - min(rewards) > minimal_spread


def _variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _compared(own: float, other: float) -> int:
    return (own - other > _TIE) - (other - own > _TIE)
