"""Figures over groups, with intervals from drawing the groups anew (the percentile bootstrap, Efron 1979).

Members of a group are judged together, so the group is what is drawn. A statistic is written over weights, how often
each group was drawn: then all resamples are a few matrix products. What is not defined is None, never a number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Statistic = Callable[[Array], Array]
    """Weights `[resamples, groups]` -> values `[resamples]`, NaN where it is not defined."""

RESAMPLES = 2000
_AT_ONCE = 2**19
"""Weights in memory at a time."""
_TAILS = (0.025, 0.975)
_NOTHING = 1e-12
"""A sum of squares below this is float residue."""


@dataclass(frozen=True, slots=True)
class IntervalEstimate:
    """A figure with its 95 % interval."""

    value: float | None
    """None = not defined for these groups."""
    low: float | None
    high: float | None
    """None with fewer than two groups. With fewer than ten the interval is too narrow."""
    groups: int
    """Those that have a say in the figure."""


def estimate(statistic: "Statistic", total: int, contributing: int) -> IntervalEstimate:
    """The statistic of `total` groups, of which `contributing` have a say; the same draws for the same `total`."""
    import numpy as np

    if not contributing:
        return IntervalEstimate(None, None, None, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(np.ones((1, total)))[0])
        if np.isnan(value):
            return IntervalEstimate(None, None, None, contributing)
        if contributing < 2:
            return IntervalEstimate(value, None, None, contributing)
        values = np.concatenate([statistic(weights) for weights in draws(total)])
    low, high = np.quantile(values[~np.isnan(values)], _TAILS)
    return IntervalEstimate(value, float(low), float(high), contributing)


def mean_over_groups(values: Sequence[float | None]) -> IntervalEstimate:
    """The mean of one value for each group; None = it has none."""
    return ratio([value or 0.0 for value in values], [float(value is not None) for value in values])


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> IntervalEstimate:
    """The sum of the groups' numerators over that of their denominators, which are at least 0."""
    import numpy as np

    above, below = np.asarray(numerators, float), np.asarray(denominators, float)
    return estimate(lambda w: (w @ above) / defined(w @ below), len(above), int((below > _NOTHING).sum()))


def correlation(products: Sequence[float], xs: Sequence[float], ys: Sequence[float]) -> IntervalEstimate:
    """Pearson's r of values that are centred within their groups, from each group's Σxy, Σx² and Σy²."""
    import numpy as np

    xy, xx, yy = (np.asarray(sums, float) for sums in (products, xs, ys))
    contributing = int((xx + yy > _NOTHING).sum())
    return estimate(lambda w: (w @ xy) / np.sqrt(defined(w @ xx) * defined(w @ yy)), len(xy), contributing)


def defined(sums: "Array") -> "Array":
    """The sums, with NaN where there is nothing but residue to divide by."""
    import numpy as np

    return np.where(sums > _NOTHING, sums, np.nan)


def draws(total: int) -> "list[Array]":
    """`RESAMPLES` rows of how often each of `total` groups is drawn, in blocks that fit in memory."""
    import numpy as np

    random = np.random.default_rng(0)
    rows = max(1, _AT_ONCE // total)
    sizes = [min(rows, RESAMPLES - start) for start in range(0, RESAMPLES, rows)]
    made = []
    for size in sizes:
        drawn = random.integers(0, total, (size, total)) + np.arange(size)[:, None] * total
        made.append(np.bincount(drawn.ravel(), minlength=size * total).reshape(size, total).astype(float))
    return made
