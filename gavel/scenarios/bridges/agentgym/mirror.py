"""A scenario that `gavel serve-env` serves, played from here as if it were here.

The agent is sampled here, and its turns are sent as they are; tools, world, simulated user, limits and success are the
server's. System prompt, tools, task texts and results are those of the scenario in process, so the same turns give the
same tokens and the same rewards. What the server says beside AgentGym's protocol makes that possible; no other server
says it.
"""

import json
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from gavel.base.network import is_on_this_machine
from gavel.llm.types import Message, text_of
from gavel.scenarios.bridges.agentgym.address import Address
from gavel.scenarios.bridges.agentgym.connection import AgentGymError, Connection
from gavel.scenarios.bridges.agentgym.kinds import Kind
from gavel.scenarios.bridges.agentgym.sessions import EnvServer, Session
from gavel.scenarios.bridges.agentgym.wire import RefusedError, Stepped
from gavel.scenarios.environment import REWARD, SUCCESS
from gavel.scenarios.episode import Episode
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.task import Task
from gavel.scenarios.tool_world import ToolWorld
from gavel.scenarios.tools import ToolResult, done
from gavel.scenarios.trajectory import Trajectory, to_messages

_KIND = Kind("gavel", ("data_idx",))
_ITEM = "served_item"
_OWN = ("turns", "tool_errors")
"""Metrics that are counted here."""
_PAGE = 1000
_SECONDS = 60.0


class _Counts(BaseModel):
    train: int
    held_out: int


class _Described(BaseModel):
    """What the server says of its scenario."""

    model_config = ConfigDict(extra="ignore")
    scenario: str
    system: str
    rubric: str | None
    max_turns: int
    max_steps: int | None
    call_seconds: float
    tasks: _Counts
    success: bool
    hand_reward: bool
    measures: list[str]


def mirrored(address: Address, metadata: Mapping[str, Any], headers: Mapping[str, str]) -> Scenario:
    """Raises `ScenarioError` for a description or tasks that cannot be read."""
    try:
        described = _Described.model_validate(metadata)
    except ValidationError as error:
        raise ScenarioError(
            f"{address.url}/metadata describes no scenario: {error}", "Serve it with the same version of Gavel."
        ) from error
    counts = described.tasks
    train, held_out = address.splits(range(counts.train), range(counts.train, counts.train + counts.held_out))
    tasks = _tasks(address.url, headers, counts.train + counts.held_out)
    if outside := [each[-1] for each in (train, held_out) if each and each[-1] not in tasks]:
        raise ScenarioError(
            f"{address.url} has no item {outside[0]}: its items are 0 to {len(tasks) - 1}.", "Leave tasks= out."
        )
    connection = Connection(
        address.url, max(address.timeout, 2 * described.call_seconds + 60), address.concurrency, headers
    )
    lacking = {
        name: None for name, has in (("success", described.success), ("reward", described.hand_reward)) if not has
    }
    world = type("MirroredWorld", (MirrorWorld,), lacking)
    return Scenario(
        described.scenario,
        system=described.system,
        environment=partial(world, EnvServer(connection, _KIND, dialect="a"), described.system, described.measures),
        tasks=[tasks[item] for item in train],
        held_out=[tasks[item] for item in held_out],
        max_turns=described.max_turns,
        max_steps=described.max_steps,
        call_seconds=2 * connection.seconds,
        rubric=described.rubric,
        measures={name: partial(_metric, name) for name in described.measures},
    )


def _metric(name: str, trajectory: Trajectory) -> float:
    return trajectory.metrics[name]


def _tasks(url: str, headers: Mapping[str, str], count: int) -> dict[int, Task]:
    """All items of the server, by number."""
    found: dict[int, Task] = {}
    with httpx.Client(timeout=_SECONDS, headers=dict(headers), trust_env=not is_on_this_machine(url)) as client:
        try:
            for start in range(0, count, _PAGE):
                answer = client.get(f"{url}/tasks", params={"start": start, "stop": start + _PAGE})
                for fields in answer.json():
                    item = int(fields.pop("item"))
                    found[item] = Task.model_validate(fields | {"data": {_ITEM: item}})
        except (httpx.HTTPError, ValueError, TypeError, AttributeError, KeyError) as error:
            raise ScenarioError(f"{url}/tasks gives no tasks: {error}", "Start gavel serve-env anew.") from error
    if len(found) != count:
        raise ScenarioError(f"{url} lists {len(found)} of {count} tasks.", "Start gavel serve-env anew.")
    return found


class MirrorWorld(ToolWorld):
    """One episode on the server."""

    def __init__(self, server: EnvServer, system: str, measures: list[str]) -> None:
        self._server = server
        self._system = system
        self._measures = measures
        self._session: Session | None = None
        self._sent = 0
        """Turns of the agent that the server has."""
        self._results: deque[tuple[str, str]] = deque()
        """Tool and result of the last turn's calls that are not asked for yet, in order."""
        self._last: Stepped | None = None
        self._asking = False
        self.schemas = []

    async def reset(self, task: Task, episode: Episode) -> str | None:
        self._episode = episode
        more = {} if episode.seed is None else {"episode_seed": episode.seed}
        self._session = await self._server.begin(task.data[_ITEM], more)
        answer = cast("dict[str, Any]", self._session.answer)
        self.schemas = list(answer.get("tools") or ())
        opening = _told(answer, without=self._system)
        return opening.removeprefix(task.user).lstrip("\n") or None if task.user else opening

    async def call(self, name: str, arguments: str) -> ToolResult:
        await self._send_turns()
        assert self._last is not None
        while self._results:
            called, content = self._results.popleft()
            if called == name:  # calls of unknown tools are not asked for here
                return ToolResult(content, error=_is_error(content), done=self._last.done)
        raise AgentGymError(f"{self._server.connection.url} gave no result of {name}")

    async def observe(self, action: str) -> Any:
        await self._send_turns()
        assert self._last is not None
        said = _told(self._last.answer)
        return done(said or None) if self._last.done else said

    async def success(self, trajectory: Trajectory) -> float:
        """Of the whole episode, also of one that was cut off here."""
        return (await self._outcome())[SUCCESS]

    async def reward(self, trajectory: Trajectory) -> float:
        """The scenario's hand reward."""
        return (await self._outcome())["hand_reward"]

    async def close(self) -> None:
        if self._session is not None:
            await self._server.end(self._session, whole=not self._asking)

    async def _outcome(self) -> dict[str, float]:
        await self._send_turns()
        if self._last is None or not self._last.done:  # a limit of this side: the server's episode is cut off too
            await self._send({"role": "assistant", "content": ""}, "length")
        assert self._last is not None
        return {SUCCESS: 0.0, "hand_reward": 0.0, **self._last.answer["outcome"]}

    async def _send_turns(self) -> None:
        """Sends what the agent said since the last time."""
        choices = list(self._episode.trajectory.choices())
        for choice in choices[self._sent :]:
            self._sent += 1
            if self._last is not None and self._last.done:
                return
            (message,) = to_messages([choice])
            await self._send(message, choice.finish_reason)

    async def _send(self, message: Message, finish_reason: str) -> None:
        assert self._session is not None
        self._asking = True
        more: dict[str, Any] = {"message": message, "finish_reason": finish_reason}
        try:
            step = await self._server.step(self._session, "", more)
        except RefusedError as error:
            raise AgentGymError(f"{self._server.connection.url}: {error.message}") from error
        self._asking = False
        self._last = step
        results = [text_of(each) for each in _messages(step.answer) if each.get("role") == "tool"]
        names = [each["function"]["name"] for each in message.get("tool_calls") or ()]
        self._results = deque(zip(names, results, strict=False))
        if step.done:
            self._finish(step.answer)

    def _finish(self, answer: Mapping[str, Any]) -> None:
        """Takes over what the server says of the whole episode."""
        trajectory = self._episode.trajectory
        trajectory.status = "truncated" if answer.get("status") == "truncated" else "finished"
        trajectory.status_reason = answer.get("status_reason")
        known = {name: value for name, value in answer["metrics"].items() if name not in (*_OWN, SUCCESS, REWARD)}
        trajectory.metrics |= known
        trajectory.metrics |= {name: answer["outcome"][name] for name in self._measures if name in answer["outcome"]}


def _messages(answer: Mapping[str, Any]) -> list[Message]:
    return list(answer.get("messages") or ())


def _told(answer: Mapping[str, Any], without: str = "") -> str:
    """What the agent is told, but for results of tools, and a system prompt that it has."""
    said = [text_of(each) for each in _messages(answer) if each.get("role") not in ("assistant", "tool")]
    return "\n\n".join(each for each in said if each != without)


def _is_error(content: str) -> bool:
    """Whether a tool's result is a tool error: JSON with the one key `error`."""
    if not content.startswith('{"error"'):
        return False
    try:
        return json.loads(content).keys() == {"error"}
    except ValueError:
        return False
