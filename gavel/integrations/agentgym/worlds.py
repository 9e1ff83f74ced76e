"""One episode in an environment of AgentGym, as Gavel's agent loop plays it, in two agent styles.

    ReactWorld   the agent writes `Thought: … Action: get 1 oak log`, and the environment reads the action
    ActWorld     the agent calls one tool, act(action)

A server that is lost fails the episode with the reason. An error about one action is told to the agent; the third in a
row fails the episode. `success` and `reward` are the environment's, for comparison only. Replies are data: nothing in
them is ever evaluated.
"""

import json
import re
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from gavel.base.network import is_on_this_machine
from gavel.integrations.agentgym.client import AgentGymError, Connection, EnvServer, Session
from gavel.integrations.agentgym.protocol import Address, Form, Kind, RefusedError, Stepped, texts
from gavel.llm.types import Message, text_of
from gavel.prompts import render
from gavel.scenarios.environment import REWARD, SUCCESS
from gavel.scenarios.episode import Episode
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.task import Task
from gavel.scenarios.tool_world import ToolWorld
from gavel.scenarios.tools import ToolResult, done, tool_error
from gavel.scenarios.trajectory import Trajectory, to_messages

_ACTION = re.compile(r"^[^\S\n]*\**Action\**[^\S\n]*:\**[^\S\n]*", re.IGNORECASE | re.MULTILINE)
_INLINE = re.compile(r"\bAction:[^\S\n]*")
"""Behind a thought on the same line."""
_SQL = re.compile(r"```(?:sql)?\s*(.*?)```", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"^```[\w-]*\n(.*?)\n?```$", re.DOTALL)
_NEXT = re.compile(r"^\s*(?:Thought|Observation)\s*:", re.IGNORECASE | re.MULTILINE)
_END = "</s>"


def action_of(reply: str, form: Form) -> str | None:
    """What is sent to the environment; None for a reply without an action, or with several.

    Text after the action that plays the environment's part (`Observation: …`) is cut off.
    """
    said = reply.strip().removesuffix(_END).strip()
    if form == "reply":
        return said or None
    marks = list(_ACTION.finditer(said)) or list(_INLINE.finditer(said))
    if form == "sql":
        fences = _SQL.findall(said[marks[-1].end() :] if marks else said)
        return (fences[-1].strip() or None) if fences else _after(said, marks)
    action = _after(said, marks)
    if form == "call" and action is not None:
        return f"Action: {action}"
    return action


def sent(action: str, form: Form) -> str:
    """An action that came as a tool's argument, in the form that the environment reads."""
    action = action.strip()
    if form == "call":
        return f"Action: {_ACTION.sub('', action, count=1)}"
    return action_of(action, "sql") or action if form == "sql" and "```" in action else action


def _after(said: str, marks: list[re.Match[str]]) -> str | None:
    if len(marks) != 1:
        return None
    action = said[marks[0].end() :]
    if (further := _NEXT.search(action)) is not None:
        action = action[: further.start()]
    action = action.strip()
    fenced = _FENCE.match(action)
    return (fenced[1].strip() if fenced else action) or None


RAW, RETURN, ERRORS = "raw_reward", "raw_return", "environment_errors"
"""Among a trajectory's metrics: the reward as the server gave it last, the sum over the steps, and errors of the
environment about an action."""
_ERRORS_IN_A_ROW = 3
_ACT: Message = {
    "type": "function",
    "function": {
        "name": "act",
        "description": "Carry out one action in the environment.",
        "parameters": {
            "type": "object",
            "properties": {"action": {"type": "string", "description": "The action, as the environment reads it."}},
            "required": ["action"],
            "additionalProperties": False,
        },
    },
}


class _World:
    """An episode of one item."""

    def __init__(self, server: EnvServer) -> None:
        self._server = server
        self._kind = server.kind
        self._session: Session | None = None
        self._asking = self._is_done = False
        self._raw = self._sum = 0.0
        self._errors = self._in_a_row = 0

    async def reset(self, task: Task, episode: Episode) -> str:
        self._metrics = episode.trajectory.metrics
        self._session = await self._server.begin(task.data["item"])
        first = self._session.first
        if self._kind.words is not None:
            words = texts(await self._server.look(self._session, f"/{self._kind.words}"))
            first = f"{first}\n\nAllowed words: {', '.join(words)}"
        return first

    def success(self, trajectory: Trajectory) -> bool:
        return self._kind.succeeded(self._raw, self._is_done)

    def reward(self, trajectory: Trajectory) -> float:
        return self._kind.normalised(self._raw, self._is_done)

    async def close(self) -> None:
        if self._session is not None:
            await self._server.end(self._session, whole=not self._asking)

    async def _act(self, action: str) -> tuple[str, bool]:
        """What the environment says, and whether the episode is over. Raises `AgentGymError`."""
        assert self._session is not None
        self._asking = True  # until it is answered: after a failure the environment is not used again
        try:
            step = await self._server.step(self._session, action)
        except RefusedError as error:
            self._errors, self._in_a_row = self._errors + 1, self._in_a_row + 1
            self._metrics[ERRORS] = self._errors
            if self._in_a_row == _ERRORS_IN_A_ROW:
                raise AgentGymError(
                    f"the environment answered {self._in_a_row} actions in a row with an error: {error.message}",
                    "Look at the server's log.",
                ) from error
            self._asking = False
            return f"Error: {error.message}", False
        self._asking = False
        self._in_a_row = 0
        self._sum += step.reward
        self._raw = step.reward if step.score is None or not self._kind.scored else step.score
        self._is_done = step.done
        self._metrics |= {RAW: self._raw, RETURN: self._sum}
        return step.observation, step.done


class ReactWorld(_World):
    """The agent writes its actions."""

    async def observe(self, action: str) -> Any:
        found = action_of(action, self._kind.form)
        if found is None:
            return render("scenarios/agentgym_form.j2", form=self._kind.form, style="react").strip()
        observation, is_over = await self._act(found)
        return done(observation or None) if is_over else observation


class ActWorld(_World, ToolWorld):
    """The agent calls `act`."""

    def __init__(self, server: EnvServer) -> None:
        super().__init__(server)
        self.schemas = [_ACT]

    async def observe(self, action: str) -> str:
        return render("scenarios/agentgym_form.j2", form=self._kind.form, style="tools").strip()

    async def call(self, name: str, arguments: str) -> ToolResult:
        if name != "act":
            return tool_error(f"there is no tool {name!r}; the tools are act")
        try:
            given: Any = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            return tool_error(f"the arguments of act are not valid JSON: {error}")
        match given:
            case {"action": str(action), **rest} if not rest and action.strip():
                observation, is_over = await self._act(sent(action, self._kind.form))
                return ToolResult(observation, done=is_over)
            case _:
                return tool_error('act: give one text, {"action": "…"}')


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
