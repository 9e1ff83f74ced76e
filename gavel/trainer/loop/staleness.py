"""Staleness: by how many steps the policy that sampled a group is older than the policy that learns from it.

    max_staleness = 1, the policy of step 7 is live:
    a group whose first rollout began at step 6 may be trained        is_too_old(6, step=7, max_staleness=1) is False
    one that began at step 5 is cancelled, and made anew              is_too_old(5, step=7, max_staleness=1) is True

With `max_staleness` 0 every group is sampled by the policy that learns from it. `prefetch.py` holds these bounds.
"""

from collections.abc import Iterable
from statistics import fmean

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory


def is_too_old(version: int | None, step: int, max_staleness: int) -> bool:
    """Whether a group may not be trained at `step`. `version`: the step of its first rollout; None = none began."""
    return version is not None and step - version > max_staleness


def steps_ahead(step: int, steps: int, max_staleness: int) -> int:
    """How many of a run's `steps` may have groups in the making at `step`, counted from the first step of all."""
    return min(step + max_staleness + 1, steps)


def staleness(groups: Iterable[TrajectoryGroup], step: int) -> dict[str, float]:
    """`staleness/mean` and `staleness/max` over trajectories: how many steps their policies are older than `step`.

    A trajectory is as old as its oldest turn. Empty when no turn carries its policy version.
    """
    oldest = [version for group in groups for trajectory in group if (version := _oldest(trajectory)) is not None]
    if not oldest:
        return {}
    return {"staleness/mean": step - fmean(oldest), "staleness/max": float(step - min(oldest))}


def _oldest(trajectory: Trajectory) -> int | None:
    versions = [(choice.model_extra or {}).get("policy_version") for choice in trajectory.choices()]
    return min((version for version in versions if version is not None), default=None)
