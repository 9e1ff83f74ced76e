"""Statistics over groups with 95 % intervals: the percentile bootstrap (Efron 1979).

Members of a group are judged together, so whole groups are resampled. Each statistic is a formula of sums over the
groups. What is undefined is None, never a number.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

RESAMPLES = 2000
_INDICES_AT_ONCE = 2**19
"""Limits memory: resamples are drawn and evaluated in batches of at most this many indices."""
_TAILS = (0.025, 0.975)
_RESIDUE = 1e-12
"""A sum of squares below this is floating-point residue."""


@dataclass(frozen=True, slots=True)
class IntervalEstimate:
    """A value with its 95 % interval."""

    value: float | None
    """None = undefined for these groups."""
    low: float | None
    high: float | None
    """None with fewer than two groups. With fewer than ten the interval is too narrow."""
    groups: int
    """Groups that contribute to the value."""


UNDEFINED = IntervalEstimate(None, None, None, 0)
"""The estimate when no group contributes."""


def estimate(
    sums: Sequence[Sequence[float]], formula: "Callable[..., Array]", contributes: Sequence[bool]
) -> IntervalEstimate:
    """The `formula` of the columns' totals, from each group's `sums` `[groups, columns]`.

    The formula takes a vector `[resamples]` for each column and gives one, NaN where undefined. `contributes`: whether
    a group influences it.
    """
    import numpy as np

    groups = sum(contributes)
    if not groups:
        return UNDEFINED
    total, columns, random = len(sums), np.asarray(sums, float).T, np.random.default_rng(0)

    def values(drawn: "NDArray[np.intp]") -> "Array":
        return formula(*(column[drawn].sum(axis=1) for column in columns))

    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(values(np.arange(total)[np.newaxis])[0])
        if np.isnan(value) or groups < 2:
            return IntervalEstimate(None if np.isnan(value) else value, None, None, groups)
        batch = max(1, _INDICES_AT_ONCE // total)
        sizes = [min(batch, RESAMPLES - start) for start in range(0, RESAMPLES, batch)]
        resampled = [values(random.integers(total, size=(size, total))) for size in sizes]
    low, high = np.nanquantile(np.concatenate(resampled), _TAILS)
    return IntervalEstimate(value, float(low), float(high), groups)


def mean_over_groups(values: Iterable[float | None]) -> IntervalEstimate:
    """The mean of one value per group; groups with None are left out."""
    return ratio((value or 0.0, float(value is not None)) for value in values)


def ratio(sums: Iterable[tuple[float, float]]) -> IntervalEstimate:
    """The sum of the groups' numerators over the sum of their denominators, each at least 0."""
    own = list(sums)

    def share(above: "Array", below: "Array") -> "Array":
        return above / defined(below)

    return estimate(own, share, [below > _RESIDUE for _, below in own])


def correlation(sums: Iterable[tuple[float, float, float]]) -> IntervalEstimate:
    """Pearson's r of values centered within their groups, from each group's `centred_sums`."""
    own = list(sums)

    def pearson(xy: "Array", xx: "Array", yy: "Array") -> "Array":
        return xy / (defined(xx) * defined(yy)) ** 0.5

    return estimate(own, pearson, [xx + yy > _RESIDUE for _, xx, yy in own])


def defined(sums: "Array") -> "Array":
    """The sums, with NaN instead of residue, for use as denominators."""
    import numpy as np

    return np.where(sums > _RESIDUE, sums, np.nan)
