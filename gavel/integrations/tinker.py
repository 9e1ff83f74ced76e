"""Tinker cookbook: the trajectories of an `EnvGroupBuilder` are judged against each other.

    judged = gavel.integrations.tinker.compute_group_rewards("openai/gpt-5-mini", rubric="…")

    class JudgedGroup(ProblemGroupBuilder):
        async def compute_group_rewards(self, trajectory_group, env_group):
            return await judged(trajectory_group, env_group)

Written against tinker-cookbook 0.6.1. Its rewards are numbers that are added to those of the steps, and an advantage is
the total minus the group's mean (`compute_advantages`): a member whose total is that mean is not learned from.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from gavel.integrations._rewards import JudgeLike, Scored, Scorer, Unscored, member, part, truth_metadata, with_mean
from gavel.judge.errors import JudgeError
from gavel.judge.rubric import Rubric
from gavel.llm.types import Message

Conversation = Callable[[Any, Any], Sequence[Message]]
"""Extracts the messages of a cookbook `Trajectory` in its `Env`."""


def compute_group_rewards(
    judge: JudgeLike | None = None,
    *,
    rubric: Rubric | str | None = None,
    conversation: Conversation | None = None,
    unscored: Unscored = "raise",
) -> Callable[[list[Any], Sequence[Any]], Awaitable[list[tuple[float, dict[str, float]]]]]:
    """The body of `EnvGroupBuilder.compute_group_rewards(trajectory_group, env_group)`.

    `judge`: a model, a judge or a service's address (see `Scorer`). `conversation`: the messages of a trajectory in its
    environment; None = as `ProblemEnv` (with its reference answer) and `build_agent_tool_env` have them.
    `unscored`: "raise" leaves the group to the rollout strategy, which skips it (`RetryOnFailure`) or ends the run
    (`FailFast`, the default); "member" gives a member without a score the group's mean as its total reward, so that its
    advantage is zero; "group" gives all a total of 0.0 when one has no score, a constant group that
    `remove_constant_reward_groups` drops. So does a group whose attempts are all alike, in each case.

    The metrics are `judge/score` and `judge/standard_error`, or `judge/unscored`.
    """
    return partial(_group_rewards, Scorer(judge, rubric, unscored), conversation)


__all__ = ["compute_group_rewards"]


async def _group_rewards(
    scorer: Scorer, conversation: Conversation | None, trajectory_group: list[Any], env_group: Sequence[Any]
) -> list[tuple[float, dict[str, float]]]:
    members = [_member(one, env, conversation) for one, env in zip(trajectory_group, env_group, strict=True)]
    scored = await scorer.score(members)
    steps = [sum(transition.reward for transition in one.transitions) for one in trajectory_group]
    totals = [None if one.reward is None else step + one.reward for step, one in zip(steps, scored, strict=True)]
    finals = [
        total - step if one.reward is None else one.reward
        for one, step, total in zip(scored, steps, with_mean(totals), strict=True)
    ]
    return list(zip(finals, map(_metrics, scored), strict=True))


def _member(trajectory: Any, env: Any, conversation: Conversation | None) -> Any:
    messages, tools = (conversation(trajectory, env), None) if conversation else _conversation(trajectory, env)
    cut = any(transition.ac.stop_reason == "length" for transition in trajectory.transitions[-1:])
    why = trajectory.stop_reason or ("max_tokens" if cut else "completed")
    ended = {} if why in ("completed", "tool_stopped") else {"status": "truncated", "status_reason": str(why)}
    is_problem = isinstance(env, part("tinker_cookbook.rl.problem_env", "ProblemEnv"))
    truth = truth_metadata({}, env.get_reference_answer() if is_problem else None)
    return member(list(messages), [], tools=tools, metadata=truth, **ended)


def _conversation(trajectory: Any, env: Any) -> tuple[list[Message], list[Message] | None]:
    """Messages and tools of the cookbook's own environments."""
    inner: Any = getattr(env, "message_env", None)
    if isinstance(env, part("tinker_cookbook.rl.problem_env", "ProblemEnv")):
        shown, tools = [*env.convo_prefix, {"role": "user", "content": env.get_question()}], None
        unseen = trajectory.transitions
    elif isinstance(inner, part("tinker_cookbook.tool_use.agent_tool_message_env", "AgentToolMessageEnv")):
        shown, tools = inner.history, [tool.to_spec() for tool in inner.tools]
        answered = [message for message in shown[len(inner.initial_messages) :] if message["role"] == "assistant"]
        unseen = trajectory.transitions[len(answered) :]  # a truncated turn is not in the history
    else:
        raise JudgeError(
            f"what was said in a {type(env).__name__} is not known.",
            "Give compute_group_rewards(conversation=lambda trajectory, env: [{'role': …, 'content': …}, …]).",
        )
    said = [env.renderer.parse_response(transition.ac.tokens)[0] for transition in unseen if transition.ac.tokens]
    return [env.renderer.to_openai_message(message) for message in [*shown, *said]], tools


def _metrics(scored: Scored) -> dict[str, float]:
    score, error = scored.judgement.score, scored.judgement.standard_error
    metrics = {"judge/score": score, "judge/standard_error": error, "judge/unscored": float(score is None)}
    return {name: value for name, value in metrics.items() if value is not None}
