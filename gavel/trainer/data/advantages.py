"""Group scores -> advantages: how much better each member is than its group, or why the group has no signal.

    group_advantages([0.2, 0.4, 0.9])                        ->  [-0.3, -0.1, 0.4]
    group_advantages([0.2, 0.4, 0.9], kind="rank")           ->  [-0.5, 0.0, 0.5]
    group_advantages([0.50, 0.52], minimal_spread=0.05)      ->  LeftOut.NEAR_TIE

This is the one place that decides what of a judge's scores the learner sees, in plain numbers, so adapters for other
trainers can call it too. Every kind gives numbers that sum to zero, keep the order of the scores, and do not change
when all scores are shifted by a constant.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, stdev, variance

from gavel.judge.stats import expected_scores
from gavel.trainer.config import AdvantageKind
from gavel.trainer.data.left_out import LeftOut

_STD_FLOOR = 1e-4
_TIE = 1e-6
"""Scores that differ by no more are equal: a float rounding error is not a rank."""


def group_advantages(
    scores: Sequence[float],
    standard_errors: Sequence[float | None] = (),
    *,
    kind: AdvantageKind = "mean",
    minimal_spread: float = _TIE,
    p_right: float | None = None,
) -> list[float] | LeftOut:
    """The advantages of one group's finite scores, or the reason why it gives no training signal.

    `standard_errors` are those of the scores, None where unknown, and `p_right` is the judgement's; only `shrunk` uses
    them. Scores that differ by no more than `minimal_spread` give no signal.
    """
    if len(scores) < 2:
        return LeftOut.ONE_MEMBER
    spread = max(scores) - min(scores)
    if spread <= minimal_spread:
        return LeftOut.NEAR_TIE if spread > _TIE else LeftOut.NO_SIGNAL
    found = advantages(scores, kind, standard_errors, p_right)
    if any(found):
        return found
    return LeftOut.UNRELIABLE_SCORES if kind == "shrunk" else LeftOut.NO_SIGNAL


def advantages(
    scores: Sequence[float],
    kind: AdvantageKind = "mean",
    standard_errors: Sequence[float | None] = (),
    p_right: float | None = None,
) -> list[float]:
    """The advantage of each member of one group.

    mean: score minus group mean (Dr. GRPO, arXiv 2503.20783): a near-tie stays small.
    std: that, divided by the unbiased standard deviation + 1e-4 (GRPO, arXiv 2402.03300).
    rloo: score minus the mean of the others (arXiv 2402.14740).
    rank: half of (share of the others below minus share above), from -1/2 to 1/2; only the order counts (the centred
    ranks of arXiv 1703.03864).
    shrunk: mean, times 2·`p_right` - 1, the margin by which the judge is right rather than wrong about two members, by
    labels; without labels times the `score_reliability`.
    critic: mean; `critic_advantages` says what of it each turn is paid.

    Raises `ValueError` for fewer than two scores, which have no group to compare with.
    """
    size = len(scores)
    if size < 2:
        raise ValueError("a group of one has no advantage")
    mean = math.fsum(scores) / size
    centred = [score - mean for score in scores]
    match kind:
        case "mean" | "critic":
            return centred
        case "std":
            return [value / (stdev(scores) + _STD_FLOOR) for value in centred]
        case "rloo":
            return [value * size / (size - 1) for value in centred]
        case "rank":
            margins = [[own - other for other in scores] for own in scores]
            return [sum((each > _TIE) - (each < -_TIE) for each in own) / (2 * (size - 1)) for own in margins]
        case "shrunk":
            labelled = None if p_right is None else max(0.0, 2 * p_right - 1)
            factor = score_reliability(scores, standard_errors) if labelled is None else labelled
            return [value * factor for value in centred]


def score_reliability(scores: Sequence[float], standard_errors: Sequence[float | None]) -> float:
    """The share of the scores' variance that is not error: max(0, 1 - mean SE² / variance of the scores).

    A score is a true score plus an error of variance SE², so the variance of the scores (n - 1 in the denominator)
    is on average that of the true scores plus mean SE². Multiplied with a score's distance from the mean it is the best
    linear estimate of the true distance (Kelley, Fundamentals of Statistics, 1947; empirical Bayes with one error
    variance for all, Efron and Morris 1975). One share for the whole group keeps the order.

    Members without an error are assumed to have that of the others; without any error (single votes) the share is 1.
    The judge's errors are those of `gavel.judge.panel.standard_errors`: pooled over the group, without the effect of
    positions, which balanced orders cancel.
    """
    known = [error for error in standard_errors if error is not None]
    if not known or len(scores) < 2:
        return 1.0
    between = variance(scores)
    return max(0.0, 1 - fmean(error**2 for error in known) / between) if between > _TIE**2 else 0.0


def credit(gains: Sequence[float], later: float, earlier: float = 0.0) -> list[float]:
    """What each turn is paid of the gains of all: its own, of a later one `later` for each turn between, and of an
    earlier one `earlier`.

        credit(rewards, 1)                     rewards to go
        credit(temporal differences, γλ)       generalized advantage estimation
        credit(gains of the critic, λ, λ)      see `critic_advantages`
    """
    paid, behind = list(gains), 0.0
    for at in range(len(gains) - 2, -1, -1):
        paid[at] += later * paid[at + 1]
    for at, gain in enumerate(gains):
        paid[at] += earlier * behind
        behind = gain + earlier * behind
    return paid


def critic_advantages(
    scores: Sequence[float], states: Sequence[Sequence[float]], gae_lambda: float
) -> list[list[float]]:
    """The advantage of each turn of each member: empty for one without states, whose turns are all paid alike.

    A turn's gain is what it changed the expected score by: g_t = V_t - V_{t-1}, where V_0 is the group's mean and the
    last V the score itself. So a member's gains sum to its score less the group's mean. A_t = Σ_k λ^|t - k| g_k: with
    λ = 1 all turns have that sum, whatever the states are; with λ = 0 each has its own gain. docs/turn-credit.md.
    """
    mean = math.fsum(scores) / len(scores)
    found: list[list[float]] = []
    for score, own, given in zip(scores, expected_scores(scores, states), states, strict=True):
        path = [mean, *own, score]
        gains = [after - before for before, after in pairwise(path)] if given else []
        found.append(credit(gains, gae_lambda, gae_lambda))
    return found
