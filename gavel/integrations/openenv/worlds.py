"""One episode in an environment of OpenEnv, as Gavel's agent loop plays it.

    tools   the agent calls `act`, or the tools that the server lists; what the server refuses is a tool error
    text    the agent's words are the action

The third failure of the environment in a row, a lost server and an answer that does not come fail the episode with the
reason. An action that is none by the schema is the agent's fault, and never fails it. Rewards are kept among the
metrics, for comparison only: `raw_return` is their sum, `raw_reward` the last one, and `environment_reward` the sum,
normalised where the range is known.
"""

import json
import re
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, cast

from openai.types.chat.chat_completion import Choice

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

RETURN, LAST, ERRORS = "raw_return", "raw_reward", "environment_errors"
"""Among a trajectory's metrics: the sum of the rewards, the last of them, and actions that the server refused."""
Form = Literal["action", "mcp", "gavel"]
GAVEL_ACTION = "GavelAction"
"""Title of the action of scenarios that Gavel serves."""
_HIDDEN = "metadata"
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]+")
_LONGEST_NAME = 64


@dataclass(frozen=True, slots=True)
class ActionTool:
    """A tool whose arguments, together with `fixed`, are an action."""

    schema: Message
    fixed: Message


def form_of(schema: Message) -> Form:
    """What actions of this JSON schema are."""
    if schema.get("title") == GAVEL_ACTION:
        return "gavel"
    if _alternatives(schema):
        return "action"
    own = _own_properties(schema)
    return "mcp" if not own or {"tool_name", "arguments"} <= own.keys() else "action"


def text_field(schema: Message) -> str | None:
    """The name of the one field of an action, where that is a text."""
    own = _own_properties(schema)
    required = [name for name in cast("list[str]", schema.get("required") or []) if name in own] or list(own)
    if len(required) != 1 or own[required[0]].get("type") != "string" or "enum" in own[required[0]]:
        return None
    return required[0]


def action_tools(schema: Message) -> list[ActionTool]:
    """The tools of an environment whose actions have this JSON schema."""
    alternatives = _alternatives(schema)
    if not alternatives:
        return [_tool("act", schema, {}, schema)]
    found: list[ActionTool] = []
    for alternative in alternatives:
        own = _own_properties(alternative)
        fixed = {name: field["const"] for name, field in own.items() if "const" in field}
        name = next((str(value) for value in fixed.values()), str(alternative.get("title") or "act"))
        found.append(
            _tool(_plain(name, [tool.schema["function"]["name"] for tool in found]), alternative, fixed, schema)
        )
    return found


def mcp_tools(listed: list[Message]) -> dict[str, tuple[str, Message]]:
    """Tools that a server lists: by the name that the agent is shown, their own name and their OpenAI schema."""
    found: dict[str, tuple[str, Message]] = {}
    for tool in listed:
        name = tool.get("name")
        if not isinstance(name, str):
            continue
        parameters: Any = tool.get("input_schema") or tool.get("inputSchema") or {}
        shown = _plain(name, list(found))
        function: Message = {
            **{"name": shown, "description": str(tool.get("description") or "")},
            "parameters": {"type": "object", "properties": {}, **parameters},
        }
        found[shown] = name, {"type": "function", "function": function}
    return found


def _tool(name: str, schema: Message, fixed: Message, root: Message) -> ActionTool:
    properties = {key: value for key, value in _own_properties(schema).items() if key not in fixed}
    parameters: Message = {"type": "object", "properties": deepcopy(properties)}
    if required := [key for key in cast("list[str]", schema.get("required") or []) if key in properties]:
        parameters["required"] = required
    if definitions := root.get("$defs"):
        parameters["$defs"] = deepcopy(definitions)
    description = str(schema.get("description") or "Carry out one action in the environment.").strip()
    function: Message = {"name": name, "description": description, "parameters": parameters}
    return ActionTool({"type": "function", "function": function}, fixed)


def _own_properties(schema: Message) -> dict[str, Message]:
    properties: Any = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    fields = cast("dict[str, Any]", properties)
    return {name: value for name, value in fields.items() if name != _HIDDEN and isinstance(value, dict)}


def _alternatives(schema: Message) -> list[Message]:
    """What the action is one of, where it is one of several objects."""
    given: Any = schema.get("oneOf") or schema.get("anyOf") or ()
    found: list[Message] = []
    for each in cast("list[Any]", given):
        resolved = _resolved(each, schema)
        if isinstance(resolved, dict) and "properties" in resolved:
            found.append(cast(Message, resolved))
    return found


def _resolved(part: Any, root: Message) -> Any:
    match part:
        case {"$ref": str(reference)} if reference.startswith("#/"):
            found: Any = root
            for name in reference.removeprefix("#/").split("/"):
                found = cast(Message, found).get(name) if isinstance(found, dict) else None
            return found
        case _:
            return part


def _plain(name: str, taken: list[str]) -> str:
    """A name that every API takes, and that no other tool has."""
    plain = _NOT_IN_NAMES.sub("_", name)[:_LONGEST_NAME] or "tool"
    number, own = 2, plain
    while own in taken:
        own = f"{plain[: _LONGEST_NAME - 4]}_{number}"
        number += 1
    return own


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


SERVED = "served/"
"""Before the names of the scenario's measures, among the trajectory's metrics."""


class MirrorWorld(ToolWorld):
    """An episode of one task."""

    def __init__(self, server: OpenEnvServer) -> None:
        self._server = server
        self._session: Session | None = None
        self._sent = 0
        self._results: list[ToolResult] = []
        self._words: str | None = None
        self._end: Stepped | None = None
        self.schemas: list[Message] = []

    async def reset(self, task: Task, episode: Episode) -> str | None:
        self._trajectory = episode.trajectory
        wanted = cast(Message, task.data["reset"])
        seed = {} if episode.seed is None else {"seed": episode.seed}
        self._session, first = await self._server.begin({**wanted, **seed})
        self._keep(first)
        if self._end is not None:
            raise OpenEnvError(f"the episode of {self._server} was over before the agent's first turn")
        schemas: Any = first.observation.get("tool_schemas") or []
        self.schemas = list(schemas)
        return str(first.observation.get("text") or "") or None

    async def call(self, name: str, arguments: str) -> ToolResult:
        position = self._answered()
        await self._send_turns()
        if position >= len(self._results):
            raise OpenEnvError(f"{self._server} gave no result for the call of {name}")
        return self._results[position]

    async def observe(self, action: str) -> Done | str | None:
        await self._send_turns()
        if self._end is None:
            return self._words or ""
        return None if self._words is None else Done(self._words)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def outcome(self) -> Message:
        """What the server says of the episode. One that was ended here is ended there first."""
        await self._send_turns()
        if self._end is None:
            await self._send({"content": ""}, "length")
        if self._end is None:
            raise OpenEnvError(f"{self._server} does not end an episode whose turn was cut off")
        return self._end.metadata

    def _answered(self) -> int:
        """Tool calls of the agent's last turn that have an answer."""
        count = 0
        for item in reversed(self._trajectory.messages_and_choices):
            if isinstance(item, Choice):
                break
            count += item.get("role") == "tool"
        return count

    async def _send_turns(self) -> None:
        """Sends the agent's turns that were not sent yet."""
        turns = [item for item in self._trajectory.messages_and_choices if isinstance(item, Choice)]
        for choice in turns[self._sent :]:
            self._sent += 1
            if self._end is None:
                message = choice.message.model_dump(mode="json", exclude_none=True, include={"content", "tool_calls"})
                await self._send(message, choice.finish_reason)

    async def _send(self, message: Message, reason: str) -> None:
        assert self._session is not None
        ended = reason if reason in ("stop", "tool_calls", "length") else None
        try:
            answer = await self._session.step({"type": "turn", "message": message, "finish_reason": ended})
        except RefusedError as error:
            raise OpenEnvError(error.message) from error
        self._keep(answer)

    def _keep(self, answer: Stepped) -> None:
        messages: Any = answer.observation.get("messages")
        if not isinstance(messages, list) or not all(isinstance(each, dict) for each in cast("list[Any]", messages)):
            raise OpenEnvError(f"{self._server} gave no messages: it is another version of Gavel")
        new = cast("list[Message]", messages)
        contents = [str(each.get("content") or "") for each in new if each.get("role") == "tool"]
        self._results = [ToolResult(text, error=is_tool_error(text), done=answer.done) for text in contents]
        said = [str(each.get("content") or "") for each in new if each.get("role") == "user"]
        self._words = "\n\n".join(said) if said else None
        if not answer.done:
            return
        self._end = answer
        told, trajectory = answer.metadata, self._trajectory
        if told.get("status") == "failed":
            raise OpenEnvError(f"the episode failed on {self._server}: {told.get('status_reason')}")
        if told.get("status") == "truncated":
            trajectory.status, trajectory.status_reason = "truncated", str(told.get("status_reason"))
        measures: Any = told.get("measures") or {}
        trajectory.metrics |= {f"{SERVED}{name}": float(value) for name, value in cast(Message, measures).items()}


class TellingWorld(MirrorWorld):
    """Whose scenario can tell success."""

    async def success(self, trajectory: Trajectory) -> float:
        return float((await self.outcome())["success"])


class RatingWorld(MirrorWorld):
    """Whose scenario has a hand reward."""

    async def reward(self, trajectory: Trajectory) -> float:
        return float((await self.outcome())["hand_reward"])


class TellingAndRatingWorld(TellingWorld, RatingWorld):
    """Whose scenario has both."""


def mirror_kind(*, success: bool, hand_reward: bool) -> type[MirrorWorld]:
    """The world for a scenario that can tell so much of its episodes."""
    kinds = {
        (False, False): MirrorWorld,
        (True, False): TellingWorld,
        (False, True): RatingWorld,
        (True, True): TellingAndRatingWorld,
    }
    return kinds[success, hand_reward]


def is_tool_error(content: str) -> bool:
    """Whether a tool message is an error, as Gavel's tools write one."""
    if not content.startswith('{"error"'):
        return False
    try:
        found: Any = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and list(cast(Message, found)) == ["error"]
