"""Statistics over groups with 95 % intervals: the percentile bootstrap (Efron 1979).

Members of a group are judged together, so whole groups are resampled. A statistic takes an array of group indices,
one row for each resample, and gives one value for each row. What is undefined is None, never a number.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Indices = NDArray[np.intp]
    Statistic = Callable[[Indices], Array]
    """Group indices `[resamples, groups]` -> values `[resamples]`, NaN where undefined."""

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


def estimate(statistic: "Statistic", total: int, contributing: int) -> IntervalEstimate:
    """The statistic of `total` groups, of which `contributing` influence it; `total` alone determines the resamples."""
    import numpy as np

    if not contributing:
        return UNDEFINED
    batch, random = max(1, _INDICES_AT_ONCE // total), np.random.default_rng(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(np.arange(total)[np.newaxis])[0])
        if np.isnan(value) or contributing < 2:
            return IntervalEstimate(None if np.isnan(value) else value, None, None, contributing)
        sizes = [min(batch, RESAMPLES - start) for start in range(0, RESAMPLES, batch)]
        resampled = [statistic(random.integers(total, size=(size, total))) for size in sizes]
    low, high = np.nanquantile(np.concatenate(resampled), _TAILS)
    return IntervalEstimate(value, float(low), float(high), contributing)


def mean_over_groups(values: Iterable[float | None]) -> IntervalEstimate:
    """The mean of one value per group; groups with None are left out."""
    return ratio((value or 0.0, float(value is not None)) for value in values)


def ratio(sums: Iterable[tuple[float, float]]) -> IntervalEstimate:
    """The sum of the groups' numerators over the sum of their denominators, each at least 0."""
    import numpy as np

    above, below = np.asarray(list(sums), float).reshape(-1, 2).T

    def statistic(drawn: "Indices") -> "Array":
        return above[drawn].sum(axis=1) / defined(below[drawn].sum(axis=1))

    return estimate(statistic, len(above), int((below > _RESIDUE).sum()))


def correlation(sums: Iterable[tuple[float, float, float]]) -> IntervalEstimate:
    """Pearson's r of values centered within their groups, from each group's `centred_sums`."""
    import numpy as np

    xy, xx, yy = np.asarray(list(sums), float).reshape(-1, 3).T

    def statistic(drawn: "Indices") -> "Array":
        spread = np.sqrt(defined(xx[drawn].sum(axis=1)) * defined(yy[drawn].sum(axis=1)))
        return xy[drawn].sum(axis=1) / spread

    return estimate(statistic, len(xy), int((xx + yy > _RESIDUE).sum()))


def defined(sums: "Array") -> "Array":
    """The sums, with NaN instead of residue, for use as denominators."""
    import numpy as np

    return np.where(sums > _RESIDUE, sums, np.nan)
