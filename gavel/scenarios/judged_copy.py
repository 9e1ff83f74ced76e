"""A judged copy of a group: its members' judgements, with their scores as rewards.

A member without a score has no reward, whatever reward it had before: that one is kept as a metric and never trained
in place of a judgement that is missing.
"""

from collections.abc import Sequence
from copy import deepcopy

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import GroupJudgement, Judgement
from gavel.scenarios.trajectory import Trajectory


def with_judgements(group: TrajectoryGroup, members: Sequence[Judgement], whole: GroupJudgement) -> TrajectoryGroup:
    """A copy of the group with judgements, and their scores as rewards.

    Containers are copied; messages and choices, which are never modified, are shared. The previous reward of a
    trajectory is kept in `metrics["independent_reward"]`.
    """
    judged = [_with_judgement(*pair) for pair in zip(group.trajectories, members, strict=True)]
    return group.model_copy(
        update={
            "trajectories": judged,
            "metadata": deepcopy(group.metadata),
            "metrics": dict(group.metrics),
            "logs": list(group.logs),
            "exceptions": list(group.exceptions),
            "judgement": whole,
        }
    )


def _with_judgement(trajectory: Trajectory, judgement: Judgement) -> Trajectory:
    metrics = dict(trajectory.metrics)
    if trajectory.reward is not None and trajectory.judgement is None:
        metrics["independent_reward"] = trajectory.reward
    return trajectory.model_copy(
        update={
            "messages_and_choices": list(trajectory.messages_and_choices),
            "additional_histories": list(trajectory.additional_histories),
            "metadata": deepcopy(trajectory.metadata),
            "logs": list(trajectory.logs),
            "metrics": metrics,
            "reward": judgement.score,
            "judgement": judgement,
        }
    )


def unscored(group: TrajectoryGroup, reason: str) -> TrajectoryGroup:
    """A copy of the group without scores, for one reason."""
    members = [Judgement(reason=reason) for _ in group.trajectories]
    return with_judgements(group, members, GroupJudgement(status="unscored", reason=reason))
