"""The agent loop: a model works on a scenario's task, which yields a trajectory.

It never raises for mistakes of the agent, a tool or the world: an invalid tool call is answered with a tool error,
running out of turns, steps, tokens, context or seconds gives status `truncated`, and a model that cannot be reached, or
a world that fails, gives status `failed` with the reason. The world is always closed, and sessions with MCP servers end
with the episode.
"""

import asyncio
import inspect
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

from openai.types.chat.chat_completion import Choice

from gavel.base.errors import GavelError, contain_cancellation
from gavel.llm.types import Message
from gavel.scenarios.chat_model import ChatModel as ChatModel
from gavel.scenarios.deadline import Deadline, StuckError, name_of, unless_stuck
from gavel.scenarios.environment import NO_OUTCOME, OutcomeError, ToolWorld, World
from gavel.scenarios.episode import Episode, NoTurnError
from gavel.scenarios.mcp import McpServer
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.simulated_user import Person
from gavel.scenarios.task import Task
from gavel.scenarios.tools import (
    Toolbox,
    ToolDefinitionError,
    ToolResult,
    arguments_for,
    described,
    no_such_tool,
    tool_error,
)
from gavel.scenarios.trajectory import Trajectory

CHARACTERS_PER_TOKEN = 4
"""Approximate characters per token, for a conversation whose tokens the server does not count."""
Status = Literal["finished", "truncated", "failed"]


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
    episode = Episode(task, seed=seed, temperature=temperature, max_tokens=max_tokens, model=model, fields=fields or {})
    episode.call_seconds = scenario.call_seconds
    episode.trajectory.metadata = {"scenario": scenario.name, "task": task.model_dump(mode="json")}
    if scenario.rollout is not None:
        work = _play_own_rollout(model, scenario, episode)
    else:
        work = _Play(model, scenario, episode).play()
    try:
        whose = f"the scenario {scenario.name}"
        what = f"an episode of {whose}" if scenario.rollout is None else f"{name_of(scenario.rollout)} of {whose}"
        first, *further = await _run_contained(work, episode.trajectory, what)
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


class EpisodeTools:
    """The tools of an agent. `schemas`: as it is shown them."""

    def __init__(self, most: int | None = None) -> None:
        """`most`: max characters shown of a result (None: all)."""
        self.schemas: list[Message] = []
        self._most = most
        self._calls: dict[str, Callable[[str], Awaitable[ToolResult]]] = {}

    async def call(self, name: str, arguments: str) -> ToolResult:
        """Runs a tool with arguments as the agent wrote them. Raises `McpError` if its server is lost."""
        call = self._calls.get(name)
        result = no_such_tool(name, self._calls) if call is None else await call(arguments)
        whole = len(result.content)
        if self._most is None or whole <= self._most:
            return result
        left_out = f"{whole - self._most:,} of {whole:,} characters left out"
        return replace(result, content=f"{result.content[: self._most]}\n… {left_out}")

    async def answer(self, choice: Choice, trajectory: Trajectory) -> bool:
        """Runs the turn's tool calls and adds their results to the trajectory; returns whether one ended the
        episode."""
        over = False
        for call in choice.message.tool_calls or ():
            if call.type != "function":
                raise GavelError(f"tool calls of type {call.type} are not supported")
            result = await self.call(call.function.name, call.function.arguments)
            trajectory.metrics["tool_errors"] += result.error
            over = over or result.done
            answer = {"role": "tool", "tool_call_id": call.id, "content": result.content}
            trajectory.messages_and_choices.append(answer)
        return over

    def add(self, schema: Message, call: Callable[[str], Awaitable[ToolResult]]) -> None:
        name = schema["function"]["name"]
        if name in self._calls:
            raise ToolDefinitionError(
                f"two tools of an episode are called {name}",
                "Rename one, or leave one out: gavel.mcp(…, without=[…]), @gavel.not_a_tool.",
            )
        self._calls[name] = call
        self.schemas.append(schema)


@asynccontextmanager
async def episode_tools(
    toolbox: Toolbox,
    servers: Sequence[McpServer],
    world: World | None,
    episode: Episode,
    seconds: float,
    most_characters: int | None = None,
) -> AsyncGenerator[EpisodeTools]:
    """The tools of an episode whose world exists. A call longer than `seconds` is a tool error, and `most_characters`
    of a result are shown.

    Raises `McpError` for a server without a session, `ToolDefinitionError` for two tools of one name.
    """
    tools = EpisodeTools(most_characters)
    for tool in toolbox:
        tools.add(tool.schema, partial(tool.call, episode=episode, seconds=seconds))
    if world is not None:
        for tool in world.tools:
            call = partial(
                tool.call, episode=episode, environment=world.environment, on_loop=world.on_loop, seconds=seconds
            )
            tools.add(tool.schema, call)
        for schema in world.schemas:
            tools.add(schema, partial(_within, world.environment, schema["function"]["name"], seconds))
    async with AsyncExitStack() as sessions:
        for server in servers:
            session = await sessions.enter_async_context(server.session())
            for schema in session.schemas:
                tools.add(schema, partial(session.call, schema["function"]["name"]))
        yield tools


async def _within(world: ToolWorld, name: str, seconds: float, arguments: str) -> ToolResult:
    """The answer of a world's tool; a tool error if that takes longer than `seconds`, or raises."""
    limit = Deadline(seconds, f"the tool {name}")
    try:
        async with limit:
            return await contain_cancellation(world.call(name, arguments))
    except GavelError:
        raise
    except (Exception, SystemExit) as error:
        if limit.expired():
            return tool_error(f"{name} did not answer within {seconds:g} s")
        return tool_error(f"{name} failed: {described(error)}")


class _Play:
    """One episode of the agent loop."""

    def __init__(self, model: ChatModel, scenario: Scenario, episode: Episode) -> None:
        self._client = model.openai_client()
        self._name = model.get_inference_name()
        self._scenario = scenario
        self._episode = episode
        self._trajectory = episode.trajectory
        self._trajectory.metrics = {"turns": 0, "tool_errors": 0}
        make = scenario.environment
        self._world = None if make is None else World(make, episode, scenario.call_seconds)
        self._person: Person | None = None
        self._steps = 0
        self._tokens = 0

    async def play(self) -> list[Trajectory]:
        limit = Deadline(self._scenario.max_seconds, "the episode")
        try:
            try:
                async with limit:
                    await self._act()
            except TimeoutError:
                if not limit.expired():
                    raise
                self._end("truncated", f"the episode took longer than {self._scenario.max_seconds:g} s")
            if self._world is not None and self._trajectory.status != "failed":
                self._trajectory.metrics |= await self._world.outcome()
        except OutcomeError as error:
            self._trajectory.metrics[NO_OUTCOME] = True
            self._end("failed", error.message)
        except GavelError as error:  # raised by the world, or by a server of tools
            self._end("failed", error.message)
        finally:
            if self._world is not None and (problem := await self._world.close()) is not None:
                self._trajectory.log(f"the environment was not closed: {problem}")
        return [self._trajectory]

    async def _act(self) -> None:
        """Plays from the first message to the last."""
        observation = None if self._world is None else await self._world.reset()
        words = self._episode.task.user
        if self._scenario.user is not None:
            self._person = self._scenario.user.meet(self._episode)
            words = words or await self._person.open()
        opening = "\n\n".join(text for text in (words, observation) if text)
        messages: list[Message] = [{"role": "user", "content": opening}]
        if self._scenario.system:
            messages.insert(0, {"role": "system", "content": self._scenario.system})
        self._trajectory.messages_and_choices = [*messages]
        scenario = self._scenario
        async with episode_tools(
            scenario.toolbox,
            scenario.servers,
            self._world,
            self._episode,
            scenario.call_seconds,
            scenario.max_tool_characters,
        ) as tools:
            self._trajectory.tools = tools.schemas or None
            for turn in range(scenario.max_turns):
                choice = await self._turn(turn, tools)
                if choice is None or await self._is_over_after(choice, tools):
                    return
                if self._reached_limit():
                    return
        self._end("truncated", f"{scenario.max_turns} turns were used up")

    async def _turn(self, turn: int, tools: EpisodeTools) -> Choice | None:
        """The agent's next turn; None if the episode ended without one."""
        seed, messages = self._episode.seed, self._trajectory.messages()
        try:
            reply, choice = await self._episode.sample(
                self._client,
                self._name,
                messages,
                tools.schemas,
                seed=None if seed is None else seed + turn,
                fields=self._episode.fields,
            )
        except NoTurnError as error:
            if turn and error.is_too_long:  # the episode up to here can be scored
                self._end("truncated", f"the conversation outgrew the model's context: {error.__cause__}")
            else:
                self._end("failed", error.message)
            return None
        self._trajectory.messages_and_choices.append(choice)
        self._tokens = reply.usage.total_tokens if reply.usage else 0
        if not self._tokens and self._scenario.max_tokens is not None:  # some servers report no token counts
            self._tokens = len(json.dumps(self._trajectory.messages(), ensure_ascii=False)) // CHARACTERS_PER_TOKEN
        self._trajectory.metrics["turns"] = turn + 1
        self._trajectory.policy_version = (choice.model_extra or {}).get("policy_version")
        return choice

    async def _is_over_after(self, choice: Choice, tools: EpisodeTools) -> bool:
        """Runs the turn's tool calls, or lets the world answer its words; returns whether that ended the episode."""
        if choice.finish_reason == "length":
            self._end("truncated", "a turn reached its token limit")
            return True
        if not choice.message.tool_calls:
            return await self._is_over_after_words(choice.message.content or "")
        self._steps += len(choice.message.tool_calls)
        return await tools.answer(choice, self._trajectory)

    async def _is_over_after_words(self, words: str) -> bool:
        if self._person is not None:
            observation, over = await self._person.observe(words)
        elif self._world is not None and self._world.observes:
            observation, over = await self._world.observe(words)
        else:
            return True
        self._steps += 1
        if observation is not None:
            self._trajectory.messages_and_choices.append({"role": "user", "content": observation})
        return over

    def _reached_limit(self) -> bool:
        steps, tokens = self._scenario.max_steps, self._scenario.max_tokens
        if steps is not None and self._steps >= steps:
            self._end("truncated", f"{steps} steps of the world were used up")
        elif tokens is not None and self._tokens >= tokens:
            self._end("truncated", f"the conversation has {self._tokens:,} tokens, at most {tokens:,} are allowed")
        else:
            return False
        return True

    def _end(self, status: Status, reason: str) -> None:
        self._trajectory.status = status
        self._trajectory.status_reason = reason


async def _play_own_rollout(model: ChatModel, scenario: Scenario, episode: Episode) -> list[Trajectory]:
    """The trajectories of the scenario's own rollout, at least one; an exception becomes one with status `failed`."""
    assert scenario.rollout is not None
    known = {Episode: episode, Task: episode.task, Scenario: scenario}
    limit = Deadline(scenario.max_seconds, "the rollout")
    try:
        arguments = arguments_for(scenario.rollout, (model, episode.task), known)
        async with limit:
            work: object = scenario.rollout(**arguments)
            if not inspect.isawaitable(work):
                raise TypeError("a rollout must be asynchronous: begin it with `async def`")
            trajectories = _check_returned(await contain_cancellation(work))
    except (Exception, SystemExit) as error:
        reason = described(error)
        if limit.expired():
            reason = f"the rollout took longer than {scenario.max_seconds:g} s"
        failed = episode.trajectory
        failed.status, failed.status_reason = "failed", reason
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
    found = list(cast("list[object]", returned)) if isinstance(returned, list | tuple) else [returned]
    members = [each for each in found if isinstance(each, Trajectory)]
    if len(members) < len(found):
        wrong = next(type(each).__name__ for each in found if not isinstance(each, Trajectory))
        raise TypeError(f"a rollout must return a Trajectory, or a list of them; this one returned {wrong}")
    names = [each.agent for each in members]
    if len(set(names)) < len(names):
        raise TypeError(f"several trajectories of a rollout need names: agent=…; these have {names}")
    if acting := [each for each in members if any(True for _ in each.choices())]:
        return acting
    raise ValueError("the policy had no turn in any trajectory that the rollout returned")
