"""A judge's health in one step of training, from the step's judged groups: figures to be watched from step to step.

    judge_health(groups)       # {"health/unscored": 0.0, "health/position_slope": -0.01, …}

They need no call to a judge, and no reference but `success` where the members have it. A figure that is not defined for
the step is left out.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

from gavel.judge.audit.agreement import kendall_tau, score_pairs
from gavel.judge.audit.bias import flips, length_sums, slope_sums, ties
from gavel.judge.audit.votes import judge_calls
from gavel.judge.stats import characters_written
from gavel.scenarios.group import TrajectoryGroup

PREFIX = "health/"
_TRUTH = "success"


def judge_health(groups: Iterable[TrajectoryGroup]) -> dict[str, float]:
    """By name with the prefix `health/`; empty where no group was judged.

    unscored, flagged: shares of the members, unscored without groups of identical ones, which no judge is asked about.
    tie_rate, flip_rate, position_slope: as in `BiasReport`. order_agreement: mean of the groups' own.
    length_correlation: Pearson's r of score and log characters, each less its group's mean; characters: mean that an
    agent wrote. success_tau: mean within-group Kendall tau-b of score and success; success_gap: mean score less mean
    success.
    """
    judged = [group for group in groups if group.judgement is not None]
    members = [member for group in judged for member in group]
    if not members:
        return {}
    shown = [each for group in judged if group.judgement and group.judgement.status != "degenerate" for each in group]
    found: dict[str, float | None] = {
        "unscored": _mean([float(each.judgement is None or each.judgement.score is None) for each in shown]),
        "flagged": fmean(bool(each.judgement and each.judgement.flags) for each in members),
        "characters": fmean(map(characters_written, members)),
        "order_agreement": _mean([group.judgement.order_agreement for group in judged if group.judgement]),
        "tie_rate": _ratio([ties(group) for group in judged]),
        "length_correlation": _length_correlation(judged),
    }
    calls = [judge_calls(group) for group in judged]
    found["flip_rate"] = _ratio([flips(of_group) for of_group in calls])
    found["position_slope"] = _ratio([slope_sums(of_group) for of_group in calls])
    pairs = [score_pairs(group, _TRUTH) for group in judged]
    known = [pair for of_group in pairs for pair in of_group]
    if known:
        found["success_tau"] = _mean([kendall_tau(of_group) for of_group in pairs if of_group])
        found["success_gap"] = fmean(score - truth for score, truth in known)
    return {f"{PREFIX}{name}": value for name, value in found.items() if value is not None}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _ratio(sums: Sequence[tuple[float, float]]) -> float | None:
    below = math.fsum(denominator for _, denominator in sums)
    return math.fsum(numerator for numerator, _ in sums) / below if below else None


def _length_correlation(groups: Sequence[TrajectoryGroup]) -> float | None:
    xy, xx, yy = (math.fsum(sums) for sums in zip(*map(length_sums, groups), strict=True))
    spread = math.sqrt(xx * yy)
    return xy / spread if spread > 1e-12 else None
