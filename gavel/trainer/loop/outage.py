"""Ends a run at an outage: training on what little is left of a step would hide it."""

from gavel.judge.judge import Judge
from gavel.scenarios.group import TrajectoryGroup
from gavel.trainer.loop.watchdog import LoopError

RESUME = "Mend it, and run the same command again: it resumes after the last finished step."


def stop_at_outage(judge: Judge | None, groups: list[TrajectoryGroup]) -> None:
    """Raises `LoopError` at an outage (all rollouts failed, nothing was scored, or the judge has stopped for good,
    as with a spent budget): training would hide it."""
    trajectories = [trajectory for group in groups for trajectory in group]
    errors = [error.message for group in groups for error in group.exceptions]
    if all(trajectory.status == "failed" for trajectory in trajectories):
        reasons = [trajectory.status_reason for trajectory in trajectories] + errors
        raise LoopError(f"every rollout of this step failed; the first: {reasons[0]}", RESUME)
    if judge is None:
        if all(trajectory.reward is None for trajectory in trajectories):
            raise LoopError(f"no member of this step has a reward; the first error: {errors[0]}", RESUME)
        return
    if (stopped := judge.stopped) is not None:
        raise LoopError(stopped.message, f"{stopped.remedy} {RESUME}")
    unjudged = [group for group in groups if group.judgement is None or group.judgement.status == "unscored"]
    if len(unjudged) == len(groups):
        first = unjudged[0]
        reason = first.judgement.reason if first.judgement else first.exceptions[-1].message
        raise LoopError(f"the judge scored no group of this step; the first: {reason}", RESUME)
