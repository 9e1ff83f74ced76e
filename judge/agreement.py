"""How well a judge's scores agree with a reference: a hand-crafted reward, or true success."""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean


def mean_kendall_tau(groups: Iterable[Sequence[tuple[float, float]]]) -> float | None:
    """Mean over groups of Kendall's tau-b between (judge score, reference) of the group's members.

    Groups in which either is constant have no order to agree with and are left out; None if all are.
    """
    from scipy.stats import kendalltau

    taus = []
    for pairs in groups:
        scores, references = zip(*pairs, strict=True) if pairs else ((), ())
        if len(set(scores)) > 1 and len(set(references)) > 1:
            tau = float(kendalltau(scores, references)[0])  # pyright: ignore[reportArgumentType]
            if not math.isnan(tau):
                taus.append(tau)
    return fmean(taus) if taus else None
