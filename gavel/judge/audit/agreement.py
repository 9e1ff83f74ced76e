# pyright: reportMissingTypeStubs=false
"""Agreement of a judge's scores with a reference: a hand-crafted reward, true success, or another judge.

Scores are relative to their group, so every statistic except the AUC is computed within groups and averaged over
them. A group in which a statistic is undefined is left out of it.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import TYPE_CHECKING

from gavel.judge.audit.bootstrap import (
    UNDEFINED,
    IntervalEstimate,
    correlation,
    defined,
    estimate,
    mean_over_groups,
    times_drawn,
)
from gavel.judge.audit.votes import judged_groups
from gavel.judge.errors import JudgeError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

if TYPE_CHECKING:
    from gavel.judge.audit.bootstrap import Array, Indices

Pairs = Sequence[tuple[float, float]]
"""(judge's score, reference) for the members of one group."""
Reference = str | Callable[[Trajectory], float | None]
"""The name of a metric or of a numeric metadata field (fields of rows scored from a file are metadata), or a function
that returns None for members without a reference."""

INDEPENDENT = "independent_reward"
"""The metric that holds the reward that a trajectory had before it was judged."""
_DIGITS = 9
"""Differences beyond these decimals are floating-point residue."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """A judge compared with a reference."""

    reference: str
    members: int
    """Members with both a score and a reference."""
    tau: IntervalEstimate
    """Kendall's tau-b (1945), -1 to 1; 0 for a group that the judge ties."""
    spearman: IntervalEstimate
    """Spearman's rho over mid-ranks, -1 to 1; 0 for a group that the judge ties."""
    pair_accuracy: IntervalEstimate
    """Of two members with different references, how often the better one has the higher score; a tie counts 0.5.
    For a binary reference this is the AUC within the group."""
    top_1: IntervalEstimate
    """How often the member with the highest score is one of the best by reference; of members tied for the highest
    score, the share that is."""
    auc: IntervalEstimate
    """Over all members of all groups, how often a member with the higher label scores above one with the lower label
    (Mann-Whitney; a tie counts 0.5). Only for a binary reference. A score means different things in different groups,
    which lowers it."""
    advantage_correlation: IntervalEstimate
    """Pearson's r of score and reference, each less its group's mean, as in training with `mean` advantages."""


def agreement(groups: Iterable[TrajectoryGroup], reference: Reference = INDEPENDENT) -> Agreement:
    """The judge's scores compared with a reference, over the members that have both.

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
    """Names of the metrics and of the numeric metadata fields of any member, sorted."""
    return sorted({name for group in groups for member in group for name in _numbers(member)})


def _numbers(member: Trajectory) -> Mapping[str, float]:
    """Possible references by name; a metric takes precedence over metadata of the same name."""
    numeric = {name: value for name, value in member.metadata.items() if isinstance(value, int | float)}
    return numeric | member.metrics


def score_pairs(group: TrajectoryGroup, reference: Reference) -> list[tuple[float, float]]:
    """(score, reference) for each member that has both."""
    found: list[tuple[float, float]] = []
    for member in group:
        value = _numbers(member).get(reference) if isinstance(reference, str) else reference(member)
        score = member.judgement and member.judgement.score
        if score is not None and value is not None and math.isfinite(value):
            found.append((score, float(value)))
    return found


def agreement_of_pairs(groups: Sequence[Pairs], reference: str) -> Agreement:
    """All statistics, from plain numbers."""
    groups = [[(round(score, _DIGITS), round(value, _DIGITS)) for score, value in pairs] for pairs in groups]
    return Agreement(
        reference=reference,
        members=sum(map(len, groups)),
        tau=mean_over_groups([kendall_tau(pairs) for pairs in groups]),
        spearman=mean_over_groups([spearman_rho(pairs) for pairs in groups]),
        pair_accuracy=mean_over_groups([pair_accuracy(pairs) for pairs in groups]),
        top_1=mean_over_groups([top_1(pairs) for pairs in groups]),
        auc=pooled_auc(groups),
        advantage_correlation=_advantage_correlation(groups),
    )


def _advantage_correlation(groups: Sequence[Pairs]) -> IntervalEstimate:
    products: list[float] = []
    score_squares: list[float] = []
    reference_squares: list[float] = []
    for pairs in groups:
        scores = center([score for score, _ in pairs])
        references = center([value for _, value in pairs])
        products.append(math.fsum(x * y for x, y in zip(scores, references, strict=True)))
        score_squares.append(math.fsum(x * x for x in scores))
        reference_squares.append(math.fsum(y * y for y in references))
    return correlation(products, score_squares, reference_squares)


def center(values: Sequence[float]) -> list[float]:
    """The values less their mean; exact zeros for equal values, empty for none."""
    if len(set(values)) < 2:
        return [0.0] * len(values)
    mean = fmean(values)
    return [value - mean for value in values]


def _sides(pairs: Pairs) -> tuple[list[float], list[float]] | None:
    """Scores and references; None where either is constant, so that there is no order to compare."""
    scores = [score for score, _ in pairs]
    references = [value for _, value in pairs]
    return (scores, references) if len(set(scores)) > 1 and len(set(references)) > 1 else None


def _without_order(pairs: Pairs) -> float | None:
    """The rank correlation of a group in which one side is constant.

    A judge that ties members of different value has told nothing of their order: leaving the group out would reward a
    judge that ties whatever is hard.
    """
    return 0.0 if len({value for _, value in pairs}) > 1 else None


def kendall_tau(pairs: Pairs) -> float | None:
    """Tau-b of one group; 0 where the judge ties all members, None where the reference does."""
    from scipy.stats import kendalltau  # pyright: ignore[reportUnknownVariableType]

    if (sides := _sides(pairs)) is None:
        return _without_order(pairs)
    tau = float(kendalltau(*sides)[0])  # pyright: ignore[reportArgumentType]
    return None if math.isnan(tau) else tau


def mean_kendall_tau(groups: Iterable[Pairs]) -> float | None:
    """The mean of `kendall_tau` over the groups that have one; None if none has."""
    taus = [tau for tau in map(kendall_tau, groups) if tau is not None]
    return fmean(taus) if taus else None


def spearman_rho(pairs: Pairs) -> float | None:
    """Rho of one group; 0 where the judge ties all members, None where the reference does."""
    from scipy.stats import spearmanr  # pyright: ignore[reportUnknownVariableType]

    if (sides := _sides(pairs)) is None:
        return _without_order(pairs)
    return float(spearmanr(*sides)[0])  # pyright: ignore[reportArgumentType]


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
    """AUC over all members, with an interval over groups; undefined unless the reference has two values."""
    import numpy as np

    labels = {value for pairs in groups for _, value in pairs}
    if len(labels) != 2:
        return UNDEFINED
    members = sorted(
        (score, value == max(labels), group) for group, pairs in enumerate(groups) for score, value in pairs
    )
    scores = np.array([score for score, _, _ in members])
    positive = np.array([is_positive for _, is_positive, _ in members])
    group_of = np.array([group for _, _, group in members])
    first_of_tie = np.flatnonzero(np.diff(scores, prepend=np.nan) != 0)

    def statistic(drawn: "Indices") -> "Array":
        weights = times_drawn(drawn)[:, group_of]
        positives = np.add.reduceat(weights * positive, first_of_tie, axis=1)
        negatives = np.add.reduceat(weights * ~positive, first_of_tie, axis=1)
        wins = positives * (np.cumsum(negatives, axis=1) - negatives / 2)
        pairs = positives.sum(axis=1) * negatives.sum(axis=1)
        return wins.sum(axis=1) / defined(pairs)

    return estimate(statistic, len(groups), np.unique(group_of).size)
