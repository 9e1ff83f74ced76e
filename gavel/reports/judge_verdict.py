"""What a judge's figures come to, in one sentence, and the groups in which it and the reference disagree most.

A verdict is given only where there are groups enough for an interval; else it says how many are needed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev

from gavel.judge.audit.agreement import Agreement, kendall_tau, score_pairs
from gavel.judge.audit.bias import BiasReport
from gavel.judge.audit.bootstrap import IntervalEstimate
from gavel.judge.audit.inter_rater import InterRaterReliability
from gavel.llm.counted import counted
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

MIN_GROUPS = 10
"""The bootstrap's intervals are too narrow below this number of groups."""
_HALF_WIDTH = 0.1
"""Of tau, which a verdict should be known to."""
_SPREAD = 0.5
"""Standard deviation of tau between groups, where too few tell."""
_GOOD, _SOME = 0.6, 0.3
"""Tau from which a judge ranks as the reference does, and does so in part."""
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class DisagreeingGroup:
    """A group that the judge and the reference rank differently, by the two members that show it best."""

    number: int
    """In the file, from 1."""
    tau: float
    preferred: Trajectory
    """By the judge."""
    better: Trajectory
    """By the reference."""
    scores: tuple[float, float]
    """The judge's, of `preferred` and `better`."""
    values: tuple[float, float]
    """The reference's."""


def verdict(
    groups: Sequence[TrajectoryGroup],
    beside: Agreement | None,
    calls: InterRaterReliability | None,
    bias: BiasReport,
) -> str:
    """One or two sentences: agreement, or what stands in for it, and the biases that show."""
    return " ".join(filter(None, (_first(groups, beside, calls), _biases(bias))))


def groups_needed(taus: Sequence[float]) -> int:
    """Groups after which tau is known to ±0.1, by the spread of its values in the groups there are."""
    spread = max(stdev(taus), 0.1) if len(taus) >= MIN_GROUPS else _SPREAD
    return max(MIN_GROUPS, math.ceil((1.96 * spread / _HALF_WIDTH) ** 2))


def disagreements(groups: Sequence[TrajectoryGroup], reference: str) -> list[DisagreeingGroup]:
    """The groups with the lowest tau in which a pair is reversed, the worst first."""
    found: list[DisagreeingGroup] = []
    for number, group in enumerate(groups, 1):
        tau = kendall_tau(score_pairs(group, reference))
        known = [
            (member, *pairs[0]) for member in group if (pairs := score_pairs(TrajectoryGroup([member]), reference))
        ]
        reversed_pairs = [(one, other) for one in known for other in known if one[1] > other[1] and one[2] < other[2]]
        if tau is None or not reversed_pairs:
            continue
        spread = max(value for _, _, value in known) - min(value for _, _, value in known)
        one, other = max(
            reversed_pairs, key=lambda pair: (pair[0][1] - pair[1][1]) + (pair[1][2] - pair[0][2]) / spread
        )
        found.append(DisagreeingGroup(number, tau, one[0], other[0], (one[1], other[1]), (one[2], other[2])))
    return sorted(found, key=lambda each: each.tau)[:_SHOWN]


def _first(groups: Sequence[TrajectoryGroup], beside: Agreement | None, calls: InterRaterReliability | None) -> str:
    if beside is None:
        again = ""
        if calls is not None and calls.icc_mean.value is not None and calls.icc_mean.groups >= MIN_GROUPS:
            steady = "much the same" if calls.icc_mean.value >= 0.75 else "noticeably different"
            again = f" Asked again it gives {steady} scores (ICC {calls.icc_mean.value:.2f})."
        return f"Whether this judge is right cannot be said without a reference.{again}"
    taus = [tau for group in groups if (tau := kendall_tau(score_pairs(group, beside.reference))) is not None]
    tau = beside.tau
    if tau.value is None:
        return f"No group has members that differ in {beside.reference}, so the judge cannot be compared with it."
    if tau.groups < MIN_GROUPS:
        need = groups_needed(taus)
        return (
            f"Too few groups for a verdict: {counted(tau.groups, 'group')} can be compared with {beside.reference}; "
            f"an interval takes at least {MIN_GROUPS}, and about {need} give Kendall's tau to ±{_HALF_WIDTH:g}."
        )
    ends = "" if tau.low is None or tau.high is None else f", 95 % interval {tau.low:.2f} to {tau.high:.2f}"
    figure = f"tau {tau.value:.2f}{ends}, {tau.groups:,} groups"
    low = tau.value if tau.low is None else tau.low
    if low >= _GOOD:
        said = f"ranks attempts as {beside.reference} does"
    elif low >= _SOME:
        said = f"ranks attempts mostly as {beside.reference} does, with mistakes that training will feel"
    elif tau.high is not None and tau.high < _SOME:
        said = f"does not rank attempts as {beside.reference} does: do not train on it"
    else:
        need = groups_needed(taus)
        more = f"; about {need:,} groups would tell" if need > tau.groups else ""
        return f"How far this judge ranks attempts as {beside.reference} does is not settled ({figure}{more})."
    return f"This judge {said} ({figure})."


def _biases(bias: BiasReport) -> str:
    slope, length = bias.position_slope, bias.length_correlation
    found: list[str] = []
    if _shows(slope, 0.05):
        found.append(f"those shown {'late' if (slope.value or 0) > 0 else 'early'}")
    if _shows(length, 0.3):
        found.append(f"{'long' if (length.value or 0) > 0 else 'short'} ones")
    return f"It favours {' and '.join(found)}." if found else ""


def _shows(estimate: IntervalEstimate, least: float) -> bool:
    """Whether a bias is at least so large, and its interval excludes 0."""
    value, low, high = estimate.value, estimate.low, estimate.high
    if estimate.groups < MIN_GROUPS or value is None or low is None or high is None:
        return False
    return abs(value) >= least and low * high > 0
