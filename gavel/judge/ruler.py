"""The judge in one call, for a group or for plain message lists.

judged = await ruler_score_group(group, "openai/gpt-5-mini")
[judgement.score for judgement in await ruler([messages_a, messages_b], "openai/gpt-5-mini")]        [0.9, 0.3]
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gavel.base.text import counted
from gavel.judge.errors import JudgeError, no_group
from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Models, jury
from gavel.judge.rubric import Rubric
from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup, unscored
from gavel.scenarios.judgement import Judgement
from gavel.scenarios.trajectory import Trajectory

DEFAULT_MODEL = "openai/gpt-5-mini"
"""Asked when neither an argument nor `GAVEL_JUDGE_MODEL` names a model."""


async def ruler_score_group(
    group: TrajectoryGroup,
    judge_model: Models | None = None,
    extra_litellm_params: Mapping[str, Any] | None = None,
    rubric: Rubric | str | None = None,
    *,
    swallow_exceptions: bool = False,
    debug: bool = False,
    **options: Any,
) -> TrajectoryGroup:
    """A judged copy of the group: each score is also in `metrics["ruler_score"]`, its explanation in the logs.

    `judge_model`: by default `GAVEL_JUDGE_MODEL`, else `DEFAULT_MODEL`. Raises `JudgeError` when the judge failed to
    score any member; with `swallow_exceptions` the members are then unscored, with the reason in `judgement`. A group
    of identical members, or of one, is unscored without an error, unless the option `alone="scored"` is given; an empty
    one is returned as it is. `debug` prints the votes, and writes them to the logs. `options`: keywords of `Judge`.
    """
    if not isinstance(group, TrajectoryGroup):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise no_group(group)
    if group.pending:
        await group
    if not group.trajectories:
        return unscored(group, f"the group has no trajectories ({counted(len(group.exceptions), 'rollout')} failed)")
    try:
        jurors = jury(judge_model or os.environ.get("GAVEL_JUDGE_MODEL") or DEFAULT_MODEL)
        extra = extra_litellm_params or {}
        judge = Judge([replace(each, params={**each.params, **extra}) for each in jurors], rubric=rubric, **options)
        judged = await judge.score(group)
    except JudgeError as error:
        if not swallow_exceptions:
            raise
        return unscored(group, error.message)
    whole = judged.judgement
    if whole and whole.status == "unscored" and whole.warnings and not swallow_exceptions:
        raise JudgeError(f"the judge scored none of {len(judged)} trajectories: {whole.reason}")
    for number, trajectory in enumerate(judged):
        _record(trajectory, number, debug=debug)
    return judged


async def ruler(
    message_lists: Sequence[Sequence[Message]],
    judge_model: Models | None = None,
    extra_litellm_params: Mapping[str, Any] | None = None,
    rubric: Rubric | str | None = None,
    tools: Sequence[Message] | None = None,
    *,
    debug: bool = False,
    **options: Any,
) -> list[Judgement]:
    """Score and explanation of each message list, in order; of no lists, none.

    Raises `JudgeError` when the judge failed. Identical lists, and a single one, have no score, only a reason, unless
    the option `alone="scored"` is given. The other parameters are those of `ruler_score_group`.
    """
    if not message_lists:
        return []
    shown = None if tools is None else list(tools)
    group = TrajectoryGroup(Trajectory(messages_and_choices=list(messages), tools=shown) for messages in message_lists)
    judged = await ruler_score_group(group, judge_model, extra_litellm_params, rubric, debug=debug, **options)
    return [trajectory.judgement or Judgement() for trajectory in judged]


def _record(trajectory: Trajectory, number: int, *, debug: bool) -> None:
    """Writes the score where code written for ART looks for it."""
    judgement = trajectory.judgement or Judgement()
    trajectory.metrics.pop("ruler_score", None)
    if judgement.score is not None:
        trajectory.metrics["ruler_score"] = judgement.score
        trajectory.log(f"RULER explanation: {judgement.explanation}")
    if debug:
        for vote in judgement.votes:
            line = f"{vote.model}, order {vote.order}, position {vote.position}: {vote.score:g} {vote.explanation}"
            trajectory.log(line)
            print(f"[RULER] trajectory {number + 1}: {line}")
        outcome = f"{judgement.score:g}" if judgement.score is not None else f"no score: {judgement.reason}"
        print(f"[RULER] trajectory {number + 1}: {outcome}")
