"""From scores to rewards: what of a judge's scores the learner is to see.

Shaping is no part of judging: the judgement stays as it is, and only rewards change. No kind turns the order of two
members round, a member without a reward stays without one, and float residue is not a difference.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, variance
from typing import Literal, get_args

from gavel.judge.errors import JudgeError
from gavel.scenarios.group import TrajectoryGroup

ShapingKind = Literal["raw", "centred", "rank", "shrunk"]

NEAR_TIE = "near_tie"
"""The group metric of a group whose scores lay closer together than `Shaping.min_spread`."""
_RESIDUE = 1e-6
"""Scores closer than this are equal."""


@dataclass(frozen=True, slots=True)
class Shaping:
    """How the scores of a group become its rewards. Raises `JudgeError` for values that make no sense."""

    kind: ShapingKind = "raw"
    """`raw`: the scores. `centred`: less the group's mean. `rank`: mid-ranks from 0 (last) to 1 (first), so that a
    near-tie counts as much as a clear difference. `shrunk`: drawn towards the group's mean, the further the less
    reliable the votes are."""
    min_spread: float = 0.0
    """A group whose best and worst score differ by less than this gives no signal; in score."""

    def __post_init__(self) -> None:
        shaping_kind(self.kind)
        if not 0 <= self.min_spread <= 1:
            raise JudgeError(f"a minimal spread is a difference of scores, from 0 to 1, not {self.min_spread}.")


def shaping_kind(name: str) -> ShapingKind:
    """The kind of that name. Raises `JudgeError` when there is none."""
    for kind in get_args(ShapingKind):
        if name == kind:
            return kind
    raise JudgeError(f"there is no shaping {name!r}.", f"Choose one of: {', '.join(get_args(ShapingKind))}.")


def shape_group(group: TrajectoryGroup, shaping: Shaping) -> TrajectoryGroup:
    """A copy of the group with shaped rewards; judgements, and rewards that are None or not finite, stay.

    A group without a signal because of `min_spread` gets equal rewards, the metric `near_tie`, and a log line.
    """
    rewards = {n: t.reward for n, t in enumerate(group) if t.reward is not None and math.isfinite(t.reward)}
    errors = [(j := group.trajectories[n].judgement) and j.standard_error for n in rewards]
    scores = list(rewards.values())
    shaped = dict(zip(rewards, shape_rewards(scores, errors, shaping), strict=True))
    metrics, logs = dict(group.metrics), list(group.logs)
    if scores and _RESIDUE < (spread := max(scores) - min(scores)) < shaping.min_spread - _RESIDUE:
        metrics[NEAR_TIE] = True
        logs.append(f"no signal: the scores differ by {spread:.3g}, less than {shaping.min_spread:g}")
    members = [t.model_copy(update={"reward": shaped.get(n, t.reward)}) for n, t in enumerate(group)]
    return group.model_copy(update={"trajectories": members, "metrics": metrics, "logs": logs})


def shape_rewards(scores: Sequence[float], errors: Sequence[float | None], shaping: Shaping) -> list[float]:
    """The rewards of one group's finite scores, whose standard errors are `errors` (None = unknown), in order.

    Scores that spread by less than `shaping.min_spread` all get the mean of what they would have got.
    """
    if not scores:
        return []
    mean = fmean(scores)
    match shaping.kind:
        case "raw":
            shaped = list(scores)
        case "centred":
            shaped = [score - mean for score in scores]
        case "rank":
            shaped = _ranks(scores)
        case "shrunk":
            share = reliability(scores, errors)
            shaped = [mean + share * (score - mean) for score in scores]
    spread = max(scores) - min(scores)
    if spread <= _RESIDUE or spread < shaping.min_spread - _RESIDUE:
        return [fmean(shaped)] * len(shaped)
    return shaped


def reliability(scores: Sequence[float], errors: Sequence[float | None]) -> float:
    """The share of the scores' variance that is not error: max(0, 1 - mean SE² / variance of the scores).

    A score is a true score plus an error of variance SE², so the variance of the scores (n - 1 in the denominator)
    is on average that of the true scores plus mean SE². Times a score's distance from the mean it is the best linear
    estimate of the true distance (Kelley, Fundamentals of Statistics, 1947; empirical Bayes with one error variance
    for all, Efron and Morris 1975). One share for the whole group keeps the order.

    Members without an error are taken to err as the others do. Without any error, from single votes, nothing is known
    and the share is 1. Votes differ by place too, which balanced orders cancel out of the mean: with two orders the
    share is on the cautious side.
    """
    known = [error for error in errors if error is not None]
    if not known or len(scores) < 2:
        return 1.0
    between = variance(scores)
    return max(0.0, 1 - fmean(error**2 for error in known) / between) if between > _RESIDUE**2 else 0.0


def _ranks(scores: Sequence[float]) -> list[float]:
    """Mid-ranks scaled to [0, 1]; neighbours within the residue share theirs. A score alone has the middle."""
    order = sorted(range(len(scores)), key=scores.__getitem__)
    starts = [0, *(n for n, (a, b) in enumerate(pairwise(order), 1) if scores[b] - scores[a] > _RESIDUE), len(order)]
    ranks = [0.5] * len(scores)
    for start, end in pairwise(starts):
        for member in order[start:end]:
            ranks[member] = (start + end - 1) / 2 / (len(order) - 1) if len(order) > 1 else 0.5
    return ranks
