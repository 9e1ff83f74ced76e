"""One episode in an environment of OpenEnv, as Gavel's agent loop plays it.

    tools   the agent calls `act`, or the tools that the server lists; what the server refuses is a tool error
    text    the agent's words are the action

The third failure of the environment in a row, a lost server and an answer that does not come fail the episode with the
reason. An action that is none by the schema is the agent's fault, and never fails it. Rewards are kept among the
metrics, for comparison only: `raw_return` is their sum, `raw_reward` the last one, and `environment_reward` the sum,
normalised where the range is known.
"""

import json
from typing import Any, cast

from gavel.llm.types import Message
from gavel.prompts import render
from gavel.scenarios.bridges.openenv.actions import ActionTool, Form, action_tools, form_of, mcp_tools
from gavel.scenarios.bridges.openenv.address import Options
from gavel.scenarios.bridges.openenv.sessions import OpenEnvServer, Session
from gavel.scenarios.bridges.openenv.wire import OpenEnvError, RefusedError, Stepped, text_of, tool_text
from gavel.scenarios.episode import Episode
from gavel.scenarios.task import Task
from gavel.scenarios.tool_world import ToolWorld
from gavel.scenarios.tools import Done, ToolResult, done, no_such_tool, tool_error
from gavel.scenarios.trajectory import Trajectory

RETURN, LAST, ERRORS = "raw_return", "raw_reward", "environment_errors"
"""Among a trajectory's metrics: the sum of the rewards, the last of them, and actions that the server refused."""
_REFUSALS_IN_A_ROW = 3
_BEGIN = "Begin."
"""The first message of an environment that says nothing at reset: a request needs one."""


class OpenEnvWorld(ToolWorld):
    """An episode of one task."""

    def __init__(self, server: OpenEnvServer, options: Options, action: Message, field: str | None = None) -> None:
        """`action`: the schema of its actions. `field`: the one that the agent's words are, in the style `text`."""
        self._server = server
        self._options = options
        self._form: Form = form_of(action)
        self._field = field
        self._made = action_tools(action) if self._form == "action" and field is None else []
        self._session: Session | None = None
        self._sum = 0.0
        self._is_done = False
        self._refusals = 0
        self.schemas: list[Message] = []
        self._actions: dict[str, ActionTool] = {}
        self._names: dict[str, str] = {}

    async def reset(self, task: Task, episode: Episode) -> str | None:
        self._metrics = episode.trajectory.metrics
        reset: Any = task.data.get("reset")
        data = cast(Message, reset) if isinstance(reset, dict) else {}
        self._session, first = await self._server.begin(data)
        self._reckon(first)
        if first.done:
            raise OpenEnvError(f"the environment of {self._server} is over when it begins")
        await self._offer(self._session)
        return self._shown(first) or text_of(first.metadata) or (None if task.user else _BEGIN)

    async def _offer(self, session: Session) -> None:
        """Finds the tools of this session."""
        if self._field is not None:
            return
        if self._form == "mcp":
            listed = mcp_tools(await session.tools())
            self._names = {shown: own for shown, (own, _) in listed.items()}
            self.schemas = [schema for _, schema in listed.values()]
        else:
            self._actions = {tool.schema["function"]["name"]: tool for tool in self._made}
            self.schemas = [tool.schema for tool in self._made]

    async def call(self, name: str, arguments: str) -> ToolResult:
        offered = [schema["function"]["name"] for schema in self.schemas]
        if name not in offered:
            return no_such_tool(name, offered)
        try:
            given: Any = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            return tool_error(f"the arguments of {name} are not valid JSON: {error}")
        if not isinstance(given, dict):
            return tool_error(f"the arguments of {name} must be a JSON object")
        if self._is_done:
            return tool_error("the environment's episode is over")
        if self._form == "mcp":
            action: Message = {"type": "call_tool", "tool_name": self._names[name], "arguments": given}
        else:
            action = {**cast(Message, given), **self._actions[name].fixed}
        try:
            answer = await self._step(action)
        except RefusedError as error:
            return tool_error(error.message)
        text, failed = self._result(answer)
        return ToolResult(text, error=failed, done=answer.done)

    async def observe(self, action: str) -> Done | str | None:
        if self._field is None:
            if self._form == "mcp":
                return None
            names = [schema["function"]["name"] for schema in self.schemas]
            return render("scenarios/openenv_reminder.j2", tools=names).strip()
        try:
            answer = await self._step({self._field: action})
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
        """What the server answers. Raises `RefusedError` for what the agent may mend, else `OpenEnvError`."""
        assert self._session is not None
        try:
            answer = await self._session.step(action)
        except RefusedError as error:
            self._refusals = 0 if error.is_agents else self._refusals + 1
            self._metrics[ERRORS] = self._metrics.get(ERRORS, 0) + 1
            if self._refusals == _REFUSALS_IN_A_ROW:
                raise OpenEnvError(
                    f"{self._server} refused {self._refusals} actions in a row: {error.message}",
                    "Look at the server's log.",
                ) from error
            raise
        self._refusals = 0
        self._reckon(answer)
        return answer

    def _reckon(self, answer: Stepped) -> None:
        self._is_done = answer.done
        if answer.reward is not None:
            self._sum += answer.reward
            self._metrics |= {LAST: answer.reward, RETURN: self._sum}

    def _shown(self, answer: Stepped) -> str:
        return text_of(answer.observation, self._options.fields)

    def _result(self, answer: Stepped) -> tuple[str, bool]:
        """What the agent reads of a step, and whether its tool failed."""
        match answer.observation:
            case {"tool_name": str(), "error": {"message": str(message)}}:
                return tool_error(message).content, True
            case {"tool_name": str(), "result": result}:
                return tool_text(result)
            case _:
                return self._shown(answer), False


class ThresholdWorld(OpenEnvWorld):
    """Whose episode is a success from a sum of rewards on."""

    def success(self, trajectory: Trajectory) -> bool:
        assert self._options.success is not None
        return self._sum >= self._options.success
