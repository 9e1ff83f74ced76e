"""AReaL: a workflow that runs its episodes in groups, judged against each other.

    class Judged(RolloutWorkflow):
        def __init__(self, **kwargs):
            self.one = RLVRWorkflow(**kwargs)
            self.judged = gavel.integrations.areal.arun_episode("openai/gpt-5-mini", rubric="…", group_size=8)

        async def arun_episode(self, engine, data):
            return await self.judged(self.one, engine, data)

Written against `RolloutWorkflow.arun_episode` of areal 1.0.4, with `gconfig.n_samples=1`, so that AReaL does not repeat
the group. AReaL rejects what a workflow returns None for; a masked episode has a number, the mean of the others.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from gavel.base.errors import run_all
from gavel.integrations import _rewards
from gavel.integrations._rewards import JudgeLike, Scored, Scorer, Unscored, member, part, truth_metadata, turns
from gavel.judge.errors import JudgeError
from gavel.judge.rubric import Rubric
from gavel.scenarios.trajectory import Trajectory

Episode = Mapping[str, Any]
"""Tensors of one episode: `input_ids` and `loss_mask` [1, T], `rewards` [1], and others."""


def arun_episode(
    judge: JudgeLike | None = None,
    *,
    group_size: int,
    rubric: Rubric | str | None = None,
    tokenizer: Any = None,
    unscored: Unscored = "group",
) -> Callable[[Any, Any, dict[str, Any]], Awaitable[dict[str, Any] | None]]:
    """The body of `RolloutWorkflow.arun_episode`: runs a workflow `group_size` times, with the scores as rewards.

    `judge`: a model, a judge or a service's address (see `Scorer`). `tokenizer`: None = the workflow's own. The row may
    hold a `rubric`, a `reference` or `answer`, and `criteria`; its `messages` are the prompt. `unscored`: "group"
    rejects the group when an episode has no score, "member" zeroes that episode's loss mask, "raise" raises. A group is
    rejected, too, when its episodes are all alike or the workflow rejected one of them. Evaluation runs one episode,
    with the workflow's own reward.
    """
    size = _rewards.group_size("group_size", group_size)
    return partial(_run_judged_episode, Scorer(judge, rubric, unscored), tokenizer, size)


__all__ = ["arun_episode"]


async def _run_judged_episode(
    scorer: Scorer, tokenizer: Any, size: int, workflow: Any, engine: Any, data: dict[str, Any]
) -> dict[str, Any] | None:
    if part("areal", "workflow_context").get().is_eval:
        return await workflow.arun_episode(engine, data)
    episodes = await run_all(workflow.arun_episode(engine, data) for _ in range(size))
    if any(episode is None for episode in episodes):
        return None
    scored = await scorer.score(_member(episode, data, tokenizer or workflow.tokenizer) for episode in episodes)
    if all(one.reward is None for one in scored):
        return None
    rewarded = [_rewarded(episode, one) for episode, one in zip(episodes, scored, strict=True)]
    return part("areal.utils.data", "concat_padded_tensors")(rewarded)


def _member(episode: Episode, data: Mapping[str, Any], tokenizer: Any) -> Trajectory:
    if "input_ids" not in episode or len(episode["input_ids"]) != 1:
        raise JudgeError(
            "the workflow gave no tensors of one episode.", "Give the judge a workflow such as RLVRWorkflow."
        )
    ids, sampled = episode["input_ids"][0].tolist(), episode["loss_mask"][0].tolist()
    prompt = data.get("messages")
    start = sampled.index(1) if prompt and 1 in sampled else 0
    said = turns(tokenizer, ids[start:], sampled[start:])
    return member(list(prompt or []), said, metadata=truth_metadata(data))


def _rewarded(episode: Episode, scored: Scored) -> dict[str, Any]:
    mask = episode["loss_mask"]
    rewards = episode["rewards"].new_full(episode["rewards"].shape, scored.number)
    return {**episode, "rewards": rewards, "loss_mask": mask * (scored.reward is not None)}
