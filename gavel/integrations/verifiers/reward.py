"""verifiers, and prime-rl, which runs its environments: judges an episode's attempts against each other.

    judged = gavel.integrations.verifiers.finalize("openai/gpt-5-mini", rubric="…")

    class JudgedEnv(BestOfNEnv):                           # n attempts at one task in each episode
        async def finalize(self, task, episode):
            await judged(task, episode)

Written against `Env.finalize` of verifiers 0.4.0 and 0.3.1. A trace without a reward would count as 0.0 there
(`Trace.reward`), so one that the judge did not score is marked as failed, and trainers leave it out.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

from gavel.integrations._rewards import JudgeLike, Scored, Scorer, Unscored, truth_metadata
from gavel.integrations.verifiers.formats import trace_trajectory
from gavel.judge.errors import JudgeError
from gavel.judge.rubric import Rubric
from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

Trace = Any
"""A `verifiers.v1.Trace`."""


def finalize(
    judge: JudgeLike | None = None,
    *,
    rubric: Rubric | str | None = None,
    agents: Sequence[str] = (),
    name: str = "judge",
    weight: float = 1.0,
    unscored: Unscored = "group",
) -> Callable[[Any, Any], Awaitable[None]]:
    """The body of `Env.finalize(task, episode)`: records the reward `name` on the episode's traces.

    `judge`: a model, a judge or a service's address (see `Scorer`). `agents`: roles whose traces are judged, those of
    one role against each other; none = every trainable role. The task's data may hold a `rubric`, a `reference` or
    `answer`, and `criteria`. `unscored`: "group" marks all traces of a role as failed when one of them has no score,
    "member" that trace alone, "raise" fails the episode besides. Traces that failed before are not judged. Attempts
    that are all alike are marked, too: there is nothing to compare.

    The hook raises `JudgeError` when the judge cannot be asked. If it ends early for any reason, traces without the
    reward are marked as failed.
    """
    return partial(_finalize, Scorer(judge, rubric, unscored), agents, name, weight)


async def _finalize(scorer: Scorer, agents: Sequence[str], name: str, weight: float, task: Any, episode: Any) -> None:
    try:
        metadata = truth_metadata(task.data.model_dump())
        roles = _group_by_role(episode.traces, agents)
        groups = [TrajectoryGroup(map(_of_trace, traces), metadata=metadata) for traces in roles]
        for traces, judged in zip(roles, await scorer.score_all(groups), strict=True):
            _record(traces, judged, name, weight)
    except BaseException as error:
        why = error if isinstance(error, Exception) else JudgeError("the judge was not done in time.")
        concerned = (trace for trace in episode.traces if trace.agent.trainable or trace.agent.name in agents)
        _fail((trace for trace in concerned if trace.ok and name not in trace.rewards), why)
        raise


def _group_by_role(traces: Iterable[Trace], agents: Sequence[str]) -> list[list[Trace]]:
    """The finished traces of each judged role."""
    found: dict[str, list[Trace]] = defaultdict(list)
    for trace in traces:
        if trace.agent.name in agents if agents else trace.agent.trainable:
            found[trace.agent.name].append(trace)
    if missing := sorted(set(agents) - set(found)):
        raise JudgeError(
            f"the episode has no trace of {', '.join(missing)}.",
            f"Name roles of the environment in agents=: {', '.join(sorted({t.agent.name for t in traces})) or 'none'}.",
        )
    finished = [[trace for trace in role if trace.ok] for role in found.values()]
    for role in finished:
        _fail((trace for trace in role if not trace.nodes), JudgeError("the trace has no messages."))
    return [kept for role in finished if (kept := [trace for trace in role if trace.nodes])]


def _of_trace(trace: Trace) -> Trajectory:
    """The conversation alone: without tokens, and without the task's data, which may hold the answer."""
    nodes = [{"parent": node.parent, "message": node.message.model_dump(exclude_none=True)} for node in trace.nodes]
    tools = [tool.model_dump(exclude_none=True) for tool in trace.tools]
    part: Message = {"nodes": nodes, "tools": tools, "agent": {"name": trace.agent.name}}
    found = trace_trajectory(part, {}, "the trace")
    stopped = str(trace.stop_condition)
    if trace.is_truncated or stopped.endswith("_timeout"):
        found = found.model_copy(update={"status": "truncated", "status_reason": stopped})
    return found


def _record(traces: Sequence[Trace], scored: Sequence[Scored], name: str, weight: float) -> None:
    for trace, one in zip(traces, scored, strict=True):
        if one.reward is None:
            _fail([trace], JudgeError(f"the judge gave no reward: {one.reason}."))
            continue
        trace.record_reward(name, one.reward, weight)
        trace.info[name] = one.judgement.model_dump(mode="json", exclude={"votes"}, exclude_none=True)


def _fail(traces: Iterable[Trace], error: Exception) -> None:
    for trace in traces:
        trace.record_error(error)
