"""How well a judge's scores agree with a reference: a hand-crafted reward, true success, or another judge.

Scores are relative to their group, so all but the AUC is read within groups and averaged over them. A group in which
a statistic is not defined has no say in it.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from gavel.judge.audit.bootstrap import IntervalEstimate, correlation, estimate, mean_over_groups
from gavel.judge.audit.votes import judged_groups
from gavel.judge.errors import JudgeError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

Pairs = Sequence[tuple[float, float]]
"""(judge's score, reference) of the members of a group."""
Reference = str | Callable[[Trajectory], float | None]
"""The name of a metric, or of a number or truth value in the metadata, where the fields of rows are that are scored
from a file; or a function that gives None where there is nothing to agreement_of_pairs with."""

INDEPENDENT = "independent_reward"
"""The metric that keeps the reward that a trajectory had before it was judged."""
_DIGITS = 9
"""Beyond these decimals a difference is float residue."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """A judge beside a reference."""

    reference: str
    members: int
    """That have both a score and a reference."""
    tau: IntervalEstimate
    """Kendall's tau-b (1945), -1 to 1."""
    spearman: IntervalEstimate
    """Spearman's rho over mid-ranks, -1 to 1."""
    pair_accuracy: IntervalEstimate
    """Of two members with different references, how often the better one has the higher score; a tie counts half.
    Against labels this is the AUC within the group."""
    top_1: IntervalEstimate
    """How often the member with the highest score is one of the best by reference; among several by lot."""
    auc: IntervalEstimate
    """Over all members of all groups, how often one with the higher label has a higher score than one with the lower
    (Mann-Whitney; a tie counts half). Only against a reference of two values. Groups differ in what a score means."""
    advantage_correlation: IntervalEstimate
    """Pearson's r of score and reference, each less its group's mean: what training with `mean` advantages sees."""


def agreement(groups: Iterable[TrajectoryGroup], reference: Reference = INDEPENDENT) -> Agreement:
    """The judge's scores beside a reference, over the members that have both.

    Raises `JudgeError` when no member is judged, or none has the reference.
    """
    groups = judged_groups(groups)
    name = reference if isinstance(reference, str) else getattr(reference, "__name__", "reference")
    pairs = [score_pairs(group, reference) for group in groups]
    if not any(pairs):
        known = ", ".join(metric_names(groups)) or "none"
        raise JudgeError(f"no judged member has the reference {name}.", f"What these members have: {known}.")
    return agreement_of_pairs(pairs, name)


def metric_names(groups: Iterable[TrajectoryGroup]) -> list[str]:
    """The metrics, and the numbers in the metadata, that any member has, sorted."""
    return sorted({name for group in groups for member in group for name in _numbers(member)})


def _numbers(member: Trajectory) -> Mapping[str, float]:
    """What may be a reference, by name; a metric goes before metadata of its name."""
    noted = {name: value for name, value in member.metadata.items() if isinstance(value, int | float)}
    return noted | member.metrics


def score_pairs(group: TrajectoryGroup, reference: Reference) -> list[tuple[float, float]]:
    """(score, reference) of the members that have both."""
    found: list[tuple[float, float]] = []
    for member in group:
        value = _numbers(member).get(reference) if isinstance(reference, str) else reference(member)
        score = member.judgement and member.judgement.score
        if score is not None and value is not None and math.isfinite(value):
            found.append((score, float(value)))
    return found


def agreement_of_pairs(groups: Sequence[Pairs], reference: str) -> Agreement:
    """All statistics of plain numbers."""
    groups = [[(round(score, _DIGITS), round(value, _DIGITS)) for score, value in pairs] for pairs in groups]
    centred = [list(zip(*map(center, zip(*pairs, strict=True)), strict=True)) for pairs in groups]
    return Agreement(
        reference=reference,
        members=sum(map(len, groups)),
        tau=mean_over_groups([kendall_tau(pairs) for pairs in groups]),
        spearman=mean_over_groups([spearman_rho(pairs) for pairs in groups]),
        pair_accuracy=mean_over_groups([pair_accuracy(pairs) for pairs in groups]),
        top_1=mean_over_groups([top_1(pairs) for pairs in groups]),
        auc=pooled_auc(groups),
        advantage_correlation=correlation(
            [math.fsum(x * y for x, y in pairs) for pairs in centred],
            [math.fsum(x * x for x, _ in pairs) for pairs in centred],
            [math.fsum(y * y for _, y in pairs) for pairs in centred],
        ),
    )


def center(values: Sequence[float]) -> list[float]:
    """The values less their mean; exact zeros for equal values, empty for none."""
    if len(set(values)) < 2:
        return [0.0] * len(values)
    mean = fmean(values)
    return [value - mean for value in values]


def _ordered(pairs: Pairs) -> bool:
    """Whether neither side is constant."""
    return all(len(set(side)) > 1 for side in zip(*pairs, strict=True)) if pairs else False


def kendall_tau(pairs: Pairs) -> float | None:
    """Tau-b of one group; None where either side is constant."""
    from scipy.stats import kendalltau

    if not _ordered(pairs):
        return None
    tau = float(kendalltau(*zip(*pairs, strict=True))[0])  # pyright: ignore[reportArgumentType]
    return None if math.isnan(tau) else tau


def mean_kendall_tau(groups: Iterable[Pairs]) -> float | None:
    """The mean of `kendall_tau` over the groups that have one; None if none has."""
    taus = [tau for tau in map(kendall_tau, groups) if tau is not None]
    return fmean(taus) if taus else None


def spearman_rho(pairs: Pairs) -> float | None:
    """Rho of one group; None where either side is constant."""
    from scipy.stats import spearmanr

    if not _ordered(pairs):
        return None
    return float(spearmanr(*zip(*pairs, strict=True))[0])  # pyright: ignore[reportArgumentType]


def pair_accuracy(pairs: Pairs) -> float | None:
    """Of one group; None where the reference is constant."""
    right = [
        0.5 if score == other else float((score > other) == (value > other_value))
        for (score, value), (other, other_value) in combinations(pairs, 2)
        if value != other_value
    ]
    return fmean(right) if right else None


def top_1(pairs: Pairs) -> float | None:
    """Of one group; None where the reference is constant."""
    if len({value for _, value in pairs}) < 2:
        return None
    highest, best = max(score for score, _ in pairs), max(value for _, value in pairs)
    return fmean(float(value == best) for score, value in pairs if score == highest)


def pooled_auc(groups: Sequence[Pairs]) -> IntervalEstimate:
    """AUC over all members, the groups drawn anew; not defined unless the reference has two values."""
    import numpy as np

    labels = {value for pairs in groups for _, value in pairs}
    if len(labels) != 2:
        return IntervalEstimate(None, None, None, 0)
    members = sorted(
        (score, value == max(labels), group) for group, pairs in enumerate(groups) for score, value in pairs
    )
    scores, good, group_of = (np.array(column) for column in zip(*members, strict=True))
    levels = np.flatnonzero(np.diff(scores, prepend=np.nan) != 0)

    def statistic(weights: np.ndarray) -> np.ndarray:
        drawn = weights[:, group_of]
        above = np.add.reduceat(drawn * good, levels, axis=1)
        below = np.add.reduceat(drawn * ~good, levels, axis=1)
        wins = above * (np.cumsum(below, axis=1) - below / 2)
        pairs = above.sum(axis=1) * below.sum(axis=1)
        return wins.sum(axis=1) / np.where(pairs > 0, pairs, np.nan)

    return estimate(statistic, len(groups), np.unique(group_of).size)
