"""One episode in an OpenEnv environment, as Gavel's agent loop plays it.

    tools   the agent calls `act`, or the tools that the server lists; what the server refuses is a tool error
    text    the agent's words are the action

A scenario that another Gavel serves takes both: calls of its own tools, and words.

The third consecutive failure of the environment, a lost server and a missing response fail the episode with the reason.
An action that violates the schema is the agent's fault, and never fails it. Rewards are kept among the metrics, for
comparison only: `raw_return` is their sum, `raw_reward` the last one, and `environment_reward` the sum, normalised
where the range is known.
"""

import itertools
import json
import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast

from gavel.integrations.openenv.client import (
    OpenEnvError,
    OpenEnvServer,
    Options,
    RefusedError,
    Session,
    Stepped,
    text_of,
    tool_text,
)
from gavel.llm.types import Message
from gavel.prompts import render
from gavel.scenarios.environment import ToolWorld
from gavel.scenarios.episode import Episode
from gavel.scenarios.task import Task
from gavel.scenarios.tools import Done, ToolResult, done, no_such_tool, tool_error
from gavel.scenarios.trajectory import Trajectory

GAVEL_ACTION = "GavelAction"
"""Title of the action schema of scenarios that Gavel serves."""
_LONGEST_NAME, _REFUSALS_IN_A_ROW = 64, 3


@dataclass(frozen=True, slots=True)
class ActionTool:
    """A tool whose arguments, together with `fixed`, form an action; an MCP tool's are its `arguments`."""

    name: str
    description: str
    parameters: Message
    fixed: Message
    is_mcp: bool = False

    @property
    def schema(self) -> Message:
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    def action(self, arguments: Message) -> Message:
        return {**({"arguments": arguments} if self.is_mcp else arguments), **self.fixed}


def is_mcp(schema: Message) -> bool:
    """Whether actions of this JSON schema are calls of tools that the server lists."""
    own = _properties(schema)
    return not _alternatives(schema) and (not own or {"tool_name", "arguments"} <= own.keys())


def text_field(schema: Message) -> str | None:
    """The name of an action's single field, if that is a text."""
    own = _properties(schema)
    required = [name for name in cast("list[str]", schema.get("required") or []) if name in own] or list(own)
    if len(required) != 1 or own[required[0]].get("type") != "string" or "enum" in own[required[0]]:
        return None
    return required[0]


def action_tools(schema: Message) -> list[ActionTool]:
    """The tools of an environment whose actions have this JSON schema: `act`, or one for each of its alternatives."""
    found: list[ActionTool] = []
    alternatives = _alternatives(schema)
    for form in alternatives or [schema]:
        own, name = _properties(form), "act"
        fixed = {key: value["const"] for key, value in own.items() if "const" in value} if alternatives else {}
        if alternatives:
            name = next((str(value) for value in fixed.values()), str(form.get("title") or "act"))
        parameters: Message = {
            "type": "object",
            "properties": {key: deepcopy(value) for key, value in own.items() if key not in fixed},
            "required": [key for key in cast("list[str]", form.get("required") or []) if key in own.keys() - fixed],
            "$defs": deepcopy(schema.get("$defs")),
        }
        description = str(form.get("description") or "Carry out one action in the environment.").strip()
        given = {key: value for key, value in parameters.items() if value or key == "properties"}
        found.append(ActionTool(_plain(name, found), description, given, fixed))
    return found


def mcp_tools(listed: list[Message]) -> list[ActionTool]:
    """A server's tools, under names that every API accepts."""
    found: list[ActionTool] = []
    for tool in listed:
        if isinstance(name := tool.get("name"), str):
            form: Any = tool.get("input_schema") or tool.get("inputSchema") or {}
            parameters: Message = {"type": "object", "properties": {}, **form}
            fixed = {"type": "call_tool", "tool_name": name}
            description = str(tool.get("description") or "")
            found.append(ActionTool(_plain(name, found), description, parameters, fixed, is_mcp=True))
    return found


def _properties(schema: Message) -> dict[str, Message]:
    """The fields of an action, without the `metadata` of all actions."""
    given: Any = schema.get("properties")
    fields = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    return {name: value for name, value in fields.items() if name != "metadata" and isinstance(value, dict)}


def _alternatives(schema: Message) -> list[Message]:
    """The action's alternatives, if it is one of several objects."""
    given: Any = schema.get("oneOf") or schema.get("anyOf")
    defined: dict[str, Any] = schema.get("$defs") or {}
    found: list[Message] = []
    for part in cast("list[Any]", given if isinstance(given, list) else []):
        match part:
            case {"$ref": str(reference)}:
                named: Any = defined.get(reference.rpartition("/")[2])
            case _:
                named = part
        if isinstance(named, dict) and "properties" in named:
            found.append(cast(Message, named))
    return found


def _plain(name: str, others: Sequence[ActionTool]) -> str:
    """A unique name that every API accepts."""
    plain = re.sub(r"[^a-zA-Z0-9_-]+", "_", name)[:_LONGEST_NAME] or "tool"
    numbered = (f"{plain[: _LONGEST_NAME - 4]}_{number}" for number in itertools.count(2))
    taken = {tool.name for tool in others}
    return next(own for own in itertools.chain([plain], numbered) if own not in taken)


class OpenEnvWorld(ToolWorld):
    """An episode of one task."""

    def __init__(self, server: OpenEnvServer, options: Options, action: Message, field: str | None = None) -> None:
        """`action`: the schema of its actions. `field`: the action field that holds the agent's words, if they are an
        action."""
        self._server = server
        self._options = options
        self._is_gavel = action.get("title") == GAVEL_ACTION
        self._is_mcp = is_mcp(action)
        self._field = field
        self._tools = action_tools(action) if not self._is_mcp and field is None else []
        self._session: Session | None = None
        self._sum = 0.0
        self._is_done = False
        self._refusals = 0

    async def reset(self, task: Task, episode: Episode) -> str | None:
        self._metrics = episode.trajectory.metrics
        reset: Any = task.data.get("reset")
        seed = {"seed": episode.seed} if self._is_gavel and episode.seed is not None else {}
        self._session, first = await self._server.begin({**(reset if isinstance(reset, dict) else {}), **seed})
        self._reckon(first)
        if first.done:
            raise OpenEnvError(f"the environment of {self._server.url} is over when it begins")
        if self._is_mcp:
            self._tools = mcp_tools(await self._session.tools())
        self.schemas = [tool.schema for tool in self._tools]
        # A request needs a first message, also of an environment that is silent at reset.
        return self._shown(first) or text_of(first.metadata) or (None if task.user else "Begin.")

    async def call(self, name: str, arguments: str) -> ToolResult:
        tool = next((each for each in self._tools if each.name == name), None)
        if tool is None:
            return no_such_tool(name, [each.name for each in self._tools])
        try:
            given: Any = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            return tool_error(f"the arguments of {name} are not valid JSON: {error}")
        if not isinstance(given, dict):
            return tool_error(f"the arguments of {name} must be a JSON object")
        if self._is_done:
            return tool_error("the environment's episode is over")
        try:
            answer = await self._step(tool.action(cast(Message, given)))
        except RefusedError as error:
            return tool_error(error.message)
        match answer.observation:
            case {"tool_name": str(), "error": {"message": str(message)}}:
                text, failed = tool_error(message).content, True
            case {"tool_name": str(), "result": result}:
                text, failed = tool_text(result)
            case _:
                text, failed = self._shown(answer), False
        return ToolResult(text, error=failed, done=answer.done)

    async def observe(self, action: str) -> Done | str | None:
        if self._field is None:
            names = [tool.name for tool in self._tools]
            return None if self._is_mcp else render("scenarios/openenv_reminder.j2", tools=names).strip()
        try:
            answer = await self._step({self._field: action, **({"type": "message"} if self._is_gavel else {})})
        except RefusedError as error:
            return f"Error: {error.message}"
        return done(self._shown(answer) or None) if answer.done else self._shown(answer)

    def reward(self, trajectory: Trajectory) -> float:
        low, high = self._options.low, self._options.high
        if low is None or high is None:
            return self._sum
        return min(max((self._sum - low) / (high - low), 0.0), 1.0)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _step(self, action: Message) -> Stepped:
        """The server's response. Raises `RefusedError` for a mistake that the agent can fix, else `OpenEnvError`."""
        assert self._session is not None
        try:
            answer = await self._session.step(action)
        except RefusedError as error:
            self._refusals = 0 if error.is_agents else self._refusals + 1
            self._metrics["environment_errors"] = self._metrics.get("environment_errors", 0) + 1
            if self._refusals == _REFUSALS_IN_A_ROW:
                raise OpenEnvError(
                    f"{self._server.url} refused {self._refusals} actions in a row: {error.message}",
                    "Look at the server's log.",
                ) from error
            raise
        self._refusals = 0
        self._reckon(answer)
        return answer

    def _reckon(self, answer: Stepped) -> None:
        self._is_done = answer.done
        if self._is_gavel and answer.metadata.get("status") == "failed":
            raise OpenEnvError(f"the episode failed on {self._server.url}: {answer.metadata.get('status_reason')}")
        if answer.reward is not None:
            self._sum += answer.reward
            self._metrics |= {"raw_reward": answer.reward, "raw_return": self._sum}

    def _shown(self, answer: Stepped) -> str:
        show = self._options.show
        names = None if show is None else [name.strip() for name in show.split(",")]
        return text_of(answer.observation, names)


class ThresholdWorld(OpenEnvWorld):
    """A world whose episode succeeds at a min sum of rewards."""

    def success(self, trajectory: Trajectory) -> bool:
        assert self._options.success is not None
        return self._sum >= self._options.success
