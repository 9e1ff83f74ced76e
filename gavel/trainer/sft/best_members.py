"""Which members of judged groups are worth imitating.

    chosen = best_members(groups, best=1, above=0.7)
    chosen.trajectories        the best member of each group, where its score is above 0.7

Imitating the best of several attempts is rejection sampling (best of n; RAFT, arXiv 2304.06767).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory


@dataclass(slots=True)
class BestMembers:
    """The members that were chosen, in the order of the groups, and how many were not, by reason."""

    trajectories: list[Trajectory] = field(default_factory=list[Trajectory])
    scored: int = 0
    """Members with a score, of all groups."""
    unscored: int = 0
    """Members without a finite score, and failed ones."""
    too_low: int = 0
    """Among their group's best, but not above the threshold."""
    not_best: int = 0
    groups: int = 0
    """Of which at least one member was chosen."""
    alike: int = 0
    """Of these, the groups without a best member: all scores are the same, and only the first members were chosen."""


def best_members(groups: Iterable[TrajectoryGroup], best: int = 1, above: float | None = None) -> BestMembers:
    """The `best` members of each group by score, if their score is greater than `above`.

    Of members with equal scores the earlier one comes first; groups that are left without a best one are counted. A
    member without a finite score is never chosen.
    """
    chosen = BestMembers()
    for group in groups:
        scored = [
            (member.reward, member)
            for member in group
            if member.reward is not None and math.isfinite(member.reward) and member.status != "failed"
        ]
        chosen.scored += len(scored)
        chosen.unscored += len(group) - len(scored)
        ranked = sorted(scored, key=lambda pair: -pair[0])
        chosen.not_best += len(ranked[best:])
        taken = [member for score, member in ranked[:best] if above is None or score > above]
        chosen.trajectories += taken
        chosen.too_low += len(ranked[:best]) - len(taken)
        if taken:
            chosen.groups += 1
            chosen.alike += len(ranked) > best and ranked[0][0] == ranked[-1][0]
    return chosen
