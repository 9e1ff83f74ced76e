"""The agent loop: a model works on a scenario's task, which yields a trajectory.

It never raises for mistakes of the agent, a tool or the world: an invalid tool call is answered with a tool error,
running out of turns, steps, tokens, context or seconds gives status `truncated`, and a model that cannot be reached, or
a world that fails, gives status `failed` with the reason. The world is always closed, and sessions with MCP servers end
with the episode.
"""

import asyncio
import inspect
import json
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, cast

from openai.types.chat.chat_completion import Choice

from gavel.base.errors import GavelError, contain_cancellation
from gavel.scenarios.chat_model import ChatModel as ChatModel
from gavel.scenarios.deadline import LateError, StuckError, in_time, name_of, unless_stuck
from gavel.scenarios.environment import NO_OUTCOME, OutcomeError, World
from gavel.scenarios.episode import Episode, NoTurnError
from gavel.scenarios.scenario import OwnRollout, Scenario
from gavel.scenarios.task import Task
from gavel.scenarios.tools import (
    Toolbox,
    arguments_for,
    described,
)
from gavel.scenarios.trajectory import Trajectory, to_messages

_CHARACTERS_PER_TOKEN = 4
"""Approximate characters per token, for a conversation whose tokens the server does not count."""


async def rollout(
    model: ChatModel,
    scenario: Scenario,
    task: Task,
    *,
    temperature: float = 1.0,
    max_tokens: int | None = None,
    seed: int | None = None,
    fields: Mapping[str, Any] | None = None,
    others: list[Trajectory] | None = None,
) -> Trajectory:
    """Lets `model` work on `task` until it answers without a tool call and the world is silent, a tool or the world
    ends the episode, or a limit is reached.

    `max_tokens` bounds each turn. With a `seed`, the sampled turns and the world's random numbers are reproducible for
    the same policy. `fields` are added to each request's body. A scenario's own rollout replaces the loop; if it
    returns one trajectory per agent, the first is returned, and the others are appended to `others`.
    """
    episode = Episode(
        task,
        seed=seed,
        temperature=temperature,
        max_tokens=max_tokens,
        model=model,
        fields=fields or {},
        call_seconds=scenario.call_seconds,
    )
    episode.trajectory.metadata = {"scenario": scenario.name, "task": task.model_dump(mode="json")}
    if scenario.rollout is None:
        work, what = _play(model, scenario, episode), "an episode"
    else:
        work, what = _play_own_rollout(scenario.rollout, scenario, episode), name_of(scenario.rollout)
    try:
        first, *further = await _run_contained(work, episode.trajectory, f"{what} of the scenario {scenario.name}")
    finally:
        episode.plain_calls.close()
    if others is not None:
        others.extend(further)
    return first


async def _run_contained(
    work: Coroutine[Any, Any, list[Trajectory]], trajectory: Trajectory, what: str
) -> list[Trajectory]:
    """Runs an episode in its own task: a world that cancels it, or cannot be cancelled, affects no other episode."""
    try:
        return await unless_stuck(work, what)
    except StuckError as error:
        reason = str(error)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        reason = "the episode was cancelled from within"
    # A snapshot: an episode that cannot be stopped may still write to the original.
    now = {"messages_and_choices": [*trajectory.messages_and_choices], "metrics": {**trajectory.metrics}}
    return [trajectory.model_copy(update={**now, "status": "failed", "status_reason": reason})]


class Conversation:
    """An agent's conversation in an episode, which grows by its turns and by what its tools answer."""

    def __init__(
        self, episode: Episode, model: ChatModel, trajectory: Trajectory, tools: Toolbox, *, trained: bool = True
    ) -> None:
        """`trained`: the turns are the policy's own; else they become plain messages."""
        self.client = model.openai_client()
        self.served_as = model.get_inference_name()
        self.tokens = 0
        """Of the conversation up to the latest turn, by its server; 0 = not counted."""
        self._episode = episode
        self._trajectory = trajectory
        self._tools = tools
        self._trained = trained
        trajectory.tools = tools.schemas or None
        trajectory.metrics.update(turns=0, tool_errors=0)

    async def take_turn(self, seed: int | None) -> Choice | None:
        """Samples the next turn; the `seed` of the first one counts up. None if the conversation has outgrown the
        model's context. That and a turn cut at its token limit make the trajectory truncated. Raises `NoTurnError`."""
        trajectory, turns = self._trajectory, int(self._trajectory.metrics["turns"])
        try:
            reply, choice = await self._episode.sample(
                self.client,
                self.served_as,
                trajectory.messages(),
                self._tools.schemas,
                seed=None if seed is None else seed + turns,
                fields=self._episode.fields if self._trained else None,
            )
        except NoTurnError as error:
            if not turns or not error.is_too_long:
                raise
            self.truncate(f"the conversation outgrew the model's context: {error.__cause__}")
            return None
        trajectory.messages_and_choices += [choice] if self._trained else to_messages([choice])
        trajectory.metrics["turns"] = turns + 1
        trajectory.policy_version = (choice.model_extra or {}).get("policy_version")
        self.tokens = reply.usage.total_tokens if reply.usage else 0
        if choice.finish_reason == "length":
            self.truncate("a turn reached its token limit")
        return choice

    async def answer_calls(self, choice: Choice) -> bool:
        """Runs the turn's tool calls and appends their results; returns whether one ended the episode."""
        over = False
        for call in choice.message.tool_calls or ():
            if call.type != "function":
                raise GavelError(f"tool calls of type {call.type} are not supported")
            result = await self._tools.call(call.function.name, call.function.arguments)
            self._trajectory.metrics["tool_errors"] += result.error
            over = over or result.done
            answer = {"role": "tool", "tool_call_id": call.id, "content": result.content}
            self._trajectory.messages_and_choices.append(answer)
        return over

    def truncate(self, reason: str) -> None:
        self._trajectory.status, self._trajectory.status_reason = "truncated", reason


async def _play(model: ChatModel, scenario: Scenario, episode: Episode) -> list[Trajectory]:
    """One episode of the agent loop."""
    trajectory, make = episode.trajectory, scenario.environment
    trajectory.metrics = {"turns": 0, "tool_errors": 0}
    world = None if make is None else World(make, episode)
    try:
        try:
            await in_time(_act(model, scenario, episode, world), scenario.max_seconds, "the episode")
        except LateError as error:
            trajectory.status, trajectory.status_reason = "truncated", str(error)
        if world is not None and trajectory.status != "failed":
            trajectory.metrics |= await world.outcome()
    except GavelError as error:  # raised by the model's server, by the world, or by a server of tools
        if isinstance(error, OutcomeError):
            trajectory.metrics[NO_OUTCOME] = True
        trajectory.status, trajectory.status_reason = "failed", error.message
    finally:
        if world is not None and (problem := await world.close()) is not None:
            trajectory.log(f"the environment was not closed: {problem}")
    return [trajectory]


async def _act(model: ChatModel, scenario: Scenario, episode: Episode, world: World | None) -> None:
    """Plays from the first message to the last."""
    observation = None if world is None else await world.reset()
    person = None if scenario.user is None else scenario.user.meet(episode)
    words = episode.task.user or (person and (await person.observe(None))[0])
    system = [{"role": "system", "content": scenario.system}] if scenario.system else []
    opening = {"role": "user", "content": "\n\n".join(filter(None, (words, observation)))}
    episode.trajectory.messages_and_choices = [*system, opening]
    responder = person or (world if world is not None and world.observes else None)
    tools = Toolbox(scenario.toolbox, episode, scenario.max_tool_characters)
    if world is not None:
        world.add_tools(tools)
    async with AsyncExitStack() as sessions:
        for server in scenario.servers:
            session = await sessions.enter_async_context(server.session())
            for schema in session.schemas:
                tools.add(schema, partial(session.call, schema["function"]["name"]))
        conversation, steps = Conversation(episode, model, episode.trajectory, tools), 0
        for _ in range(scenario.max_turns):
            choice = await conversation.take_turn(episode.seed)
            if choice is None or choice.finish_reason == "length":
                return
            tokens, most_tokens = conversation.tokens, scenario.max_tokens
            if not tokens and most_tokens is not None:  # some servers report no counts
                conversed = json.dumps(episode.trajectory.messages(), ensure_ascii=False)
                tokens = len(conversed) // _CHARACTERS_PER_TOKEN
            if calls := choice.message.tool_calls:
                steps += len(calls)
                over = await conversation.answer_calls(choice)
            elif responder is None:
                return
            else:
                steps += 1
                observation, over = await responder.observe(choice.message.content or "")
                if observation is not None:
                    episode.trajectory.messages_and_choices.append({"role": "user", "content": observation})
            if over:
                return
            if scenario.max_steps is not None and steps >= scenario.max_steps:
                return conversation.truncate(f"{scenario.max_steps} steps of the world were used up")
            if most_tokens is not None and tokens >= most_tokens:
                return conversation.truncate(
                    f"the conversation has {tokens:,} tokens, at most {most_tokens:,} are allowed"
                )
        conversation.truncate(f"{scenario.max_turns} turns were used up")


async def _play_own_rollout(play: OwnRollout, scenario: Scenario, episode: Episode) -> list[Trajectory]:
    """The trajectories of the scenario's own rollout, at least one; an exception becomes one with status `failed`."""
    known = {Episode: episode, Task: episode.task, Scenario: scenario}
    try:
        work: object = play(**arguments_for(play, (episode.model, episode.task), known))
        if not inspect.isawaitable(work):
            raise TypeError("a rollout must be asynchronous: begin it with `async def`")
        trajectories = _check_returned(await in_time(contain_cancellation(work), scenario.max_seconds, "the rollout"))
    except (Exception, SystemExit) as error:
        failed = episode.trajectory
        failed.status_reason = str(error) if isinstance(error, LateError) else described(error)
        failed.status = "failed"
        return [failed]
    for trajectory in trajectories:
        trajectory.metadata = episode.trajectory.metadata | trajectory.metadata
        if trajectory.policy_version is None:
            versions = [(choice.model_extra or {}).get("policy_version") for choice in trajectory.choices()]
            trajectory.policy_version = versions[-1] if versions else None
    trajectories[0].metrics = episode.trajectory.metrics | trajectories[0].metrics  # cost of other models' turns
    return trajectories


def _check_returned(returned: object) -> list[Trajectory]:
    """The trajectories that a rollout returned; of several agents, those in which the policy acted."""
    if isinstance(returned, Trajectory):
        return [returned]
    members = cast("list[Trajectory]", returned if isinstance(returned, list | tuple) else [returned])
    if wrong := [type(each).__name__ for each in members if not isinstance(each, Trajectory)]:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"a rollout must return a Trajectory, or a list of them; this one returned {wrong[0]}")
    names = [each.agent for each in members]
    if len(set(names)) < len(names):
        raise TypeError(f"several trajectories of a rollout need names: agent=…; these have {names}")
    if acting := [each for each in members if [*each.choices()]]:
        return acting
    raise ValueError("the policy had no turn in any trajectory that the rollout returned")
