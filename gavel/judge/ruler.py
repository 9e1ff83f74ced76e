"""The judge in one call, for a group or for plain message lists.

judged = await ruler_score_group(group, "openai/gpt-5-mini")
[judgement.score for judgement in await ruler([messages_a, messages_b], "openai/gpt-5-mini")]        [0.9, 0.3]
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.judge.panel.anchors import Anchor
from gavel.judge.panel.juror import Models, jury
from gavel.judge.panel.modes import ModeName
from gavel.judge.panel.noise import NoisePrior
from gavel.judge.rubric import Rubric
from gavel.llm.budget import Budget
from gavel.llm.cassette import Cassette
from gavel.llm.prices import Prices
from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judged import unscored
from gavel.scenarios.judgement import Judgement
from gavel.scenarios.trajectory import Trajectory


class JudgeOptions(TypedDict, total=False):
    """The options of `Judge` other than its models and rubric."""

    mode: ModeName
    anchors: Iterable[Anchor]
    orders: int
    quorum: float
    caps: Mapping[str, float] | None
    content_retries: int
    concurrency: int
    timeout: float
    deadline: float
    requests_per_minute: int | None
    tokens_per_minute: int | None
    budget: Budget | None
    cassette: Cassette | str | Path | None
    prices: Prices | None
    seed: int
    noise_prior: NoisePrior | None


async def ruler_score_group(
    group: TrajectoryGroup,
    judge_model: Models | None = None,
    extra_litellm_params: Mapping[str, Any] | None = None,
    rubric: Rubric | str | None = None,
    *,
    swallow_exceptions: bool = False,
    debug: bool = False,
    **options: Unpack[JudgeOptions],
) -> TrajectoryGroup:
    """A judged copy of the group.

    Raises `JudgeError` when the judge failed to score any member; with `swallow_exceptions` the members are then
    unscored, with the reason in `judgement`. A group of identical members is unscored without an error. `debug` writes
    each member's votes to its logs.
    """
    if group.pending:
        await group
    try:
        judge = Judge(_with_params(judge_model, extra_litellm_params), rubric=rubric, **options)
        judged = await judge.score(group)
    except JudgeError as error:
        if not swallow_exceptions:
            raise
        return unscored(group, error.message)
    whole = judged.judgement
    if whole and whole.status == "unscored" and whole.warnings and not swallow_exceptions:
        raise JudgeError(f"the judge scored none of {len(judged)} trajectories: {whole.reason}")
    if debug:
        _log_votes(judged)
    return judged


async def ruler(
    message_lists: Sequence[Sequence[Message]],
    judge_model: Models | None = None,
    extra_litellm_params: Mapping[str, Any] | None = None,
    rubric: Rubric | str | None = None,
    *,
    tools: Sequence[Message] | None = None,
    **options: Unpack[JudgeOptions],
) -> list[Judgement]:
    """Score and explanation of each message list, in order.

    Raises `JudgeError` when the judge failed. Identical lists have no score, only a reason.
    """
    shown = None if tools is None else list(tools)
    group = TrajectoryGroup(Trajectory(messages_and_choices=list(messages), tools=shown) for messages in message_lists)
    judged = await ruler_score_group(group, judge_model, extra_litellm_params, rubric, **options)
    return [trajectory.judgement or Judgement() for trajectory in judged]


def _with_params(models: Models | None, params: Mapping[str, Any] | None) -> Models:
    return [replace(juror, params={**juror.params, **(params or {})}) for juror in jury(models)]


def _log_votes(judged: TrajectoryGroup) -> None:
    for trajectory in judged:
        for vote in trajectory.judgement.votes if trajectory.judgement else ():
            trajectory.log(
                f"{vote.model}, order {vote.order}, place {vote.position}: {vote.score:g} {vote.explanation}"
            )
