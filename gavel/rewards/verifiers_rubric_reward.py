"""verifiers before 0.2 (and its `verifiers.legacy` until 0.3): a group reward function of a `Rubric`.

    rubric = vf.Rubric(funcs=[gavel.rewards.verifiers_rubric("openai/gpt-5-mini", rubric="…")])
    env = vf.SingleTurnEnv(dataset=dataset, rubric=rubric)

Written against `Rubric.score_group` of verifiers 0.1.14. It makes 0.0 for all rollouts of what a function raises, so
nothing is raised here: a rollout without a score has an `error`, with which trainers leave it out.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel

from gavel.judge.errors import JudgeError
from gavel.judge.rubric import Rubric
from gavel.rewards.baseline import log_missing, with_mean
from gavel.rewards.members import Side, member, truth_metadata
from gavel.rewards.scorer import JudgeLike, Scorer
from gavel.rewards.unscored import checked, reason, rewards_of
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

State = Any
"""A `verifiers.types.State`."""


def verifiers_rubric(
    judge: JudgeLike | None = None,
    *,
    rubric: Rubric | str | None = None,
    name: str = "judge",
    unscored: Literal["group", "member"] = "group",
) -> Callable[[list[State]], Awaitable[list[float]]]:
    """A function for `vf.Rubric(funcs=[…])`, which scores the rollouts of an example; `name` is that of its metric.

    `judge`: a model, a judge or a service's address (see `scorer`). The example's `answer`, or `reference`, `rubric`
    and `criteria` in its `info`, are shown to the judge. `unscored`: "group" puts an `error` on all rollouts when one
    has no score, "member" on that one alone; such a rollout's number is the mean of the others, which leaves their
    advantages. Rollouts that failed before are not judged, and rollouts that are all alike have an `error`.
    """
    checked(unscored, Literal["group", "member"])
    reward = partial(_group_reward, Scorer(judge, rubric), unscored)  # which can be pickled, and named
    reward.__name__ = name  # type: ignore[attr-defined]
    return reward


async def _group_reward(scorer: Scorer, unscored: Literal["group", "member"], states: list[State]) -> list[float]:
    finished = [state for state in states if state.get("error") is None]
    if not finished:
        return [0.0] * len(states)
    try:
        judged = await scorer.score(_group(finished))
        rewards = rewards_of(judged, unscored)
        log_missing(judged, rewards)
        why: Exception = JudgeError(f"the judge gave no reward: {reason(judged)}.")
    except Exception as error:
        rewards, why = [None] * len(finished), error
    by_state = {id(state): reward for state, reward in zip(finished, rewards, strict=True)}
    for state in finished:
        if by_state[id(state)] is None:
            state["error"] = why
    return with_mean([by_state.get(id(state)) for state in states])


def _group(states: list[State]) -> TrajectoryGroup:
    return TrajectoryGroup(map(_member, states))


def _member(state: State) -> Trajectory:
    status = "truncated" if state.get("is_truncated") else "finished"
    info = state.get("info")
    truth = truth_metadata(info if isinstance(info, dict) else {}, state.get("answer"))  # pyright: ignore[reportUnknownArgumentType]
    return member(_side(state["prompt"]), _side(state.get("completion") or ""), status=status, metadata=truth)


def _side(said: Any) -> Side:
    if isinstance(said, str):
        return said
    return [each.model_dump(mode="json", exclude_none=True) if isinstance(each, BaseModel) else each for each in said]
