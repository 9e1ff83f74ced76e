"""RULER's contract: returns a group of scored trajectories, or raises; returns None for a swallowed error.

    metrics["ruler_score"]           the score, which is the reward too
    metrics["independent_reward"]    the reward before
    logs                             "RULER explanation: …"

ART always scores everyone, so identical and single members are scored here too. A member without a score, or without
messages, is removed from the group, and its reason is added to the group's exceptions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

import gavel.judge.ruler as core
from gavel.integrations.art.errors import add_aliases
from gavel.judge.errors import JudgeError
from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import RolloutError, Trajectory

add_aliases(__name__, "ruler")

DEFAULT_RUBRIC = ""
"""Empty = the judge's own rubric."""


class TrajectoryScore(BaseModel):
    """The score of one trajectory."""

    trajectory_id: str
    explanation: str
    score: float


async def ruler(
    message_lists: Sequence[Sequence[Message]],
    judge_model: str | None = None,
    extra_litellm_params: Mapping[str, Any] | None = None,
    rubric: str = DEFAULT_RUBRIC,
    tools: Sequence[Message] | None = None,
    *,
    debug: bool = False,
) -> list[TrajectoryScore]:
    """One score per message list, in order. Raises `JudgeError` if one is missing."""
    judged = await core.ruler(
        message_lists, judge_model, extra_litellm_params, rubric or None, tools, debug=debug, alone="scored"
    )
    scores: list[TrajectoryScore] = []
    for number, each in enumerate(judged, start=1):
        if each.score is None:
            raise JudgeError(f"the judge gave trajectory {number} no score: {each.reason}")
        scores.append(TrajectoryScore(trajectory_id=str(number), explanation=each.explanation, score=each.score))
    return scores


async def ruler_score_group(
    group: TrajectoryGroup,
    judge_model: str | None = None,
    extra_litellm_params: Mapping[str, Any] | None = None,
    rubric: str = DEFAULT_RUBRIC,
    *,
    swallow_exceptions: bool = False,
    debug: bool = False,
) -> TrajectoryGroup | None:
    """A scored copy of the group; None if the judge failed and `swallow_exceptions` is set.

    `judge_model`: any of LiteLLM's; by default `GAVEL_JUDGE_MODEL`, else Gavel's own default.
    """
    try:
        if group.pending:
            await group
        group = group.model_copy(update={"trajectories": [*map(_failed_if_empty, group)]})
        judged = await core.ruler_score_group(
            group, judge_model, extra_litellm_params, rubric or None, debug=debug, alone="scored"
        )
        return _scored_alone(judged)
    except Exception as error:
        if not swallow_exceptions:
            raise
        print(f"[art_ruler] Swallowed exception: {error}")
        return None


def _failed_if_empty(member: Trajectory) -> Trajectory:
    """Marks an empty trajectory as failed: scripts catch an episode's error and return the trajectory as it was."""
    if any(history.messages_and_choices for history in member.histories()):
        return member
    return member.model_copy(update={"status": "failed", "status_reason": "it has no messages"})


def _scored_alone(judged: TrajectoryGroup) -> TrajectoryGroup:
    """The group with its scored members only. Raises `JudgeError` if there are members, and none has a score."""
    scored = [member for member in judged if member.reward is not None]
    missing = [member.judgement.reason if member.judgement else "" for member in judged if member.reward is None]
    if missing and not scored:
        raise JudgeError(f"the judge scored none of {len(missing)} trajectories: {missing[0]}")
    unscored = [RolloutError(type="Unscored", message=reason or "no score") for reason in missing]
    return judged.model_copy(update={"trajectories": scored, "exceptions": [*judged.exceptions, *unscored]})
