"""Environments behind an OpenEnv server as scenarios.

The agent calls `act`, one tool for each alternative of the action, or the tools that the server lists; what the server
refuses is a tool error. An agent without tool calls plays `react:openenv:URL`.

Tasks are those that the server lists (splits `train` and `test`), or seeds. Training tasks are never held out. The
third consecutive failure of the environment, a lost server and a missing response fail the episode with the reason. An
action that violates the schema is the agent's fault, and never fails it. Rewards are kept among the metrics, for
comparison only: `raw_return` and `environment_reward` are their sum, `raw_reward` is the last one.
"""

import functools
import json
import os
import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote, urlsplit

import httpx
from pydantic import Field, ValidationError

from gavel.base.network import is_on_this_machine, server_address
from gavel.integrations.openenv.client import (
    AGENTS,
    CLOSED,
    OpenEnvError,
    OpenEnvServer,
    RefusedError,
    Session,
    Stepped,
)
from gavel.llm.types import Message
from gavel.prompts import render
from gavel.scenarios.environment import ToolWorld
from gavel.scenarios.episode import Episode
from gavel.scenarios.packaged_world import SeedOptions, parsed
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.task import Task
from gavel.scenarios.tool_results import text_of_result
from gavel.scenarios.tools import ToolResult, no_such_tool, parse_arguments, tool_error
from gavel.scenarios.trajectory import Trajectory

_TURNS, _ASK_SECONDS = 20, 20.0
_MOST_CHARACTERS = 200_000
"""Max characters of a tool's result that the agent is shown."""
_RANGE = 1000
"""Tasks per request."""
_LONGEST_NAME, _REFUSALS_IN_A_ROW = 64, 3


class Options(SeedOptions):
    """The query of an address. `tasks` and `held_out`: max number of seeds, or of the server's tasks if it lists
    some."""

    turns: int | None = Field(default=None, ge=1)
    """Max turns of the agent; by default the server's limit, or 20."""
    success: float | None = None
    """Min sum of rewards of a successful episode."""
    seconds: float = Field(default=60.0, gt=0)
    """Timeout in seconds of one response."""
    wait: float = Field(default=1800.0, gt=0)
    """Max seconds that an episode waits for a free session."""
    sessions: int = Field(default=256, ge=1)
    """Max open sessions; fewer if the server says so."""
    token: str | None = None
    """Environment variable whose value is sent as a bearer token."""

    def headers(self) -> dict[str, str]:
        """The request headers. Raises `ScenarioError` if the variable that `token` names is not set."""
        if self.token is None:
            return {}
        if not (value := os.environ.get(self.token)):
            raise ScenarioError(
                f"token={self.token} names an environment variable that is not set", f"export {self.token}=…"
            )
        return {"Authorization": f"Bearer {value}"}


def scenario_at(address: str) -> Scenario:
    """The scenario of `openenv:address`. Raises `ScenarioError` if no OpenEnv server is there."""
    given, options, _ = parsed("openenv", address, Options, all_known=True)
    try:
        url = server_address(re.sub(r"^ws(s?)://", r"http\1://", given).rstrip("/").removesuffix("/ws"))
    except ValueError as error:
        raise ScenarioError(
            f"openenv: {error}.", "Write its URL: openenv:http://localhost:8000?tasks=200&seed=1"
        ) from error
    trust, headers = not is_on_this_machine(url), options.headers()
    with httpx.Client(base_url=url, headers=headers, timeout=_ASK_SECONDS, trust_env=trust) as client:
        ask = functools.partial(_ask, client, url)
        schema: Any = ask("/schema", needed=True)
        action = cast(Message, schema).get("action") if isinstance(schema, dict) else None
        if not isinstance(action, dict):
            raise ScenarioError(
                f"{url}/schema has no schema of actions: {schema!s:.200}",
                "Check the address: is it a server of OpenEnv?",
            )
        about: Any = ask("/metadata")
        train, held_out = _make_tasks(ask, url, options)
    action, told = cast(Message, action), cast(Message, about) if isinstance(about, dict) else {}
    name, description = str(told.get("name") or urlsplit(url).netloc), str(told.get("description") or "")
    server = OpenEnvServer(url, headers, options.seconds, options.wait, options.sessions)
    least = options.success
    plain = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "environment"
    return Scenario(
        f"openenv-{plain}",
        system=render("scenarios/openenv_system.j2", called=name, description=description, mcp=is_mcp(action)).strip(),
        environment=functools.partial(OpenEnvWorld, server, action),
        tasks=train,
        held_out=held_out,
        max_turns=options.turns or told.get("max_turns") or _TURNS,
        max_tool_characters=_MOST_CHARACTERS,
        call_seconds=options.wait + options.seconds + 60,
        rubric=render("scenarios/openenv_rubric.j2").strip(),
        success=None if least is None else lambda trajectory: trajectory.metrics.get("raw_return", 0.0) >= least,
    )


def _make_tasks(ask: Callable[..., Any], url: str, options: Options) -> tuple[Sequence[Task], Sequence[Task]]:
    """The training tasks and the held-out tasks."""
    environment = next((name for name in _list(ask("/list_environments")) if isinstance(name, str)), None)
    path = f"/{quote(environment or '', safe='')}"
    by_kind: dict[str, str] = {}
    """The first split of each type; one of another type counts as training."""
    for split in [] if environment is None else _list(ask(f"{path}/splits")):
        match split:
            case {"name": str(name), "type": str(kind)}:
                by_kind.setdefault(kind, name)
            case _:
                pass
    if not by_kind:
        return options.drawn(lambda seed: Task(id=f"seed-{seed}", user="", data={"reset": {"seed": seed}}))
    test = by_kind.get("test", by_kind.get("validation"))
    train = by_kind.get("train", None if test else next(iter(by_kind.values())))
    trained = _list_tasks(ask, url, path, train, options.tasks)
    held_out = _list_tasks(ask, url, path, test, options.held_out)
    if not trained and not held_out:
        raise ScenarioError(f"the splits of {url} have no tasks", "Look at the server.")
    if not trained:  # a benchmark without training tasks
        return held_out, []
    ids = {task.id for task in trained}
    return trained, [task for task in held_out if task.id not in ids]


def _list_tasks(ask: Callable[..., Any], url: str, path: str, split: str | None, most: int) -> list[Task]:
    """The first tasks of a split; empty if it does not exist."""
    if split is None:
        return []
    match ask(f"{path}/num_tasks", {"split": split}, needed=True):
        case {"num_tasks": int(number)}:
            most = min(most, number)
        case answer:
            raise ScenarioError(f"{url} does not say how many tasks {split} has: {answer!s:.200}")
    found: list[Task] = []
    for start in range(0, most, _RANGE):
        stop = min(start + _RANGE, most)
        answer: Any = ask(f"{path}/task_range", {"split": split, "start": start, "stop": stop}, needed=True)
        given: Any = cast(Message, answer).get("tasks") if isinstance(answer, dict) else None
        tasks = _list(given) or [None] * (stop - start)
        found += [_task(split, start + i, each) for i, each in enumerate(tasks)]
    return found


def _task(split: str, index: int, listed: Any) -> Task:
    """A task in the server's list, with its information for the judge."""
    spec: Message = cast(Message, listed) if isinstance(listed, dict) else {}
    name = spec.get("id") or spec.get("task_id") or f"{split}-{index}"
    told = {key: spec[key] for key in ("rubric", "reference", "criteria") if spec.get(key)}
    own: Message = {"id": str(name), "user": "", "data": {"reset": {"split": split, "index": index}}}
    try:
        return Task.model_validate({**own, **told})
    except ValidationError:  # information in another form than ours
        return Task.model_validate(own)


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _ask(client: httpx.Client, url: str, path: str, body: Message | None = None, *, needed: bool = False) -> Any:
    """The JSON of a response; None for an unknown optional route. Raises `ScenarioError`."""
    try:
        answer = client.request("GET" if body is None else "POST", path, json=body)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ScenarioError(
            f"{url}{path} cannot be reached: {type(error).__name__}: {error}",
            "Start the server, or check the address: openenv:http://HOST:PORT",
        ) from error
    if answer.status_code in (401, 403):
        raise ScenarioError(
            f"{url}{path} answered HTTP {answer.status_code}",
            "Name the variable that holds its token: openenv:URL?token=NAME",
        )
    try:
        content: Any = answer.json() if answer.is_success else None
    except json.JSONDecodeError:
        content = None
    if content is None and needed:
        raise ScenarioError(
            f"{url}{path} answered HTTP {answer.status_code}: {answer.text[:200]}",
            "Check the address: is it a server of OpenEnv?",
        )
    return content


@dataclass(frozen=True, slots=True)
class ActionTool:
    """A tool whose arguments, together with `fixed`, form an action; an MCP tool's are its `arguments`."""

    name: str
    schema: Message
    fixed: Message
    is_mcp: bool

    def action(self, arguments: Message) -> Message:
        return {**({"arguments": arguments} if self.is_mcp else arguments), **self.fixed}


def is_mcp(schema: Message) -> bool:
    """Whether actions of this JSON schema are calls of tools that the server lists."""
    own = _properties(schema)
    return not _alternatives(schema) and (not own or {"tool_name", "arguments"} <= own.keys())


def action_tools(schema: Message) -> list[ActionTool]:
    """The tools of an environment whose actions have this JSON schema: `act`, or one for each of its alternatives."""
    found: list[ActionTool] = []
    alternatives = _alternatives(schema)
    for form in alternatives or [schema]:
        own, name = _properties(form), "act"
        fixed: Message = {}
        if alternatives:
            fixed = {key: value["const"] for key, value in own.items() if "const" in value}
            name = next((str(value) for value in fixed.values()), str(form.get("title") or "act"))
        parameters: Message = {
            "type": "object",
            "properties": {key: deepcopy(value) for key, value in own.items() if key not in fixed},
            "required": [key for key in _list(form.get("required")) if key in own.keys() - fixed],
            "$defs": deepcopy(schema.get("$defs")),
        }
        description = str(form.get("description") or "Carry out one action in the environment.").strip()
        given = {key: value for key, value in parameters.items() if value or key == "properties"}
        _add_tool(found, name, description, given, fixed)
    return found


def mcp_tools(listed: list[Message]) -> list[ActionTool]:
    """A server's tools, under names that every API accepts."""
    found: list[ActionTool] = []
    for tool in listed:
        if isinstance(name := tool.get("name"), str):
            form: Any = tool.get("input_schema") or tool.get("inputSchema") or {}
            parameters: Message = {"type": "object", "properties": {}, **form}
            fixed = {"type": "call_tool", "tool_name": name}
            _add_tool(found, name, str(tool.get("description") or ""), parameters, fixed, is_mcp=True)
    return found


def _add_tool(
    found: list[ActionTool], name: str, description: str, parameters: Message, fixed: Message, *, is_mcp: bool = False
) -> None:
    """Adds a tool under a unique name that every API accepts."""
    own = plain = re.sub(r"[^a-zA-Z0-9_-]+", "_", name)[:_LONGEST_NAME] or "tool"
    number = 1
    while any(tool.name == own for tool in found):
        number += 1
        own = f"{plain[: _LONGEST_NAME - 4]}_{number}"
    function = {"name": own, "description": description, "parameters": parameters}
    found.append(ActionTool(own, {"type": "function", "function": function}, fixed, is_mcp))


def _properties(schema: Message) -> dict[str, Message]:
    """The fields of an action, without the `metadata` of all actions."""
    given: Any = schema.get("properties")
    fields = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    return {name: value for name, value in fields.items() if name != "metadata" and isinstance(value, dict)}


def _alternatives(schema: Message) -> list[Message]:
    """The action's alternatives, if it is one of several objects."""
    defined: dict[str, Any] = schema.get("$defs") or {}
    parts = [
        cast(Message, part) for part in _list(schema.get("oneOf") or schema.get("anyOf")) if isinstance(part, dict)
    ]
    named = [defined.get(str(part.get("$ref")).rpartition("/")[2], part) for part in parts]
    return [cast(Message, form) for form in named if isinstance(form, dict) and "properties" in form]


class OpenEnvWorld(ToolWorld):
    """An episode of one task."""

    def __init__(self, server: OpenEnvServer, action: Message) -> None:
        """`action`: the schema of its actions."""
        self._server = server
        self._is_mcp = is_mcp(action)
        self._tools = [] if self._is_mcp else action_tools(action)
        self._session: Session | None = None
        self._sum = 0.0
        self._is_done = False
        self._refusals = 0

    async def reset(self, task: Task, episode: Episode) -> str | None:
        self._metrics = episode.trajectory.metrics
        self._session, first = await self._server.begin(cast(Message, task.data["reset"]))
        self._reckon(first)
        if first.done:
            raise OpenEnvError(f"the environment of {self._server.url} is over when it begins")
        if self._is_mcp:
            self._tools = mcp_tools(await self._session.tools())
        self.schemas = [tool.schema for tool in self._tools]
        # A request needs a first message, also of an environment that is silent at reset.
        return text_of(first.observation) or text_of(first.metadata) or "Begin."

    async def call(self, name: str, arguments: str) -> ToolResult:
        tool = next((each for each in self._tools if each.name == name), None)
        if tool is None:
            return no_such_tool(name, [each.name for each in self._tools])
        given = parse_arguments(name, arguments)
        if isinstance(given, ToolResult):
            return given
        if self._is_done:
            return tool_error("the environment's episode is over")
        try:
            answer = await self._step(tool.action(given))
        except RefusedError as error:
            return tool_error(error.message)
        match answer.observation:
            case {"tool_name": str(), "error": {"message": str(message)}}:
                text, failed = tool_error(message).content, True
            case {"tool_name": str(), "result": result}:
                text, failed = tool_text(result)
            case _:
                text, failed = text_of(answer.observation), False
        return ToolResult(text, error=failed, done=answer.done)

    async def observe(self, action: str) -> str | None:
        names = [tool.name for tool in self._tools]
        return None if self._is_mcp else render("scenarios/openenv_reminder.j2", tools=names).strip()

    def reward(self, trajectory: Trajectory) -> float:
        return self._sum

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _step(self, action: Message) -> Stepped:
        """The server's response. Raises `RefusedError` for a mistake that the agent can fix, else `OpenEnvError`."""
        assert self._session is not None
        try:
            answer = await self._session.step(action)
        except RefusedError as error:
            if error.code in CLOSED:
                raise OpenEnvError(error.message) from error
            self._refusals = 0 if error.code == AGENTS else self._refusals + 1
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
        if answer.reward is not None:
            self._sum += answer.reward
            self._metrics |= {"raw_reward": answer.reward, "raw_return": self._sum}


def text_of(observation: Message) -> str:
    """The observation as text for the agent: its single non-empty field if that is a text, else all fields as JSON."""
    shown = {name: value for name, value in observation.items() if value not in (None, "", [], {})}
    if not shown:
        return ""
    (first, *more) = shown.values()
    return text_of_result(first if isinstance(first, str) and not more else shown)


def tool_text(result: Any) -> tuple[str, bool]:
    """An MCP tool's result as text for the agent, and whether the tool failed."""
    match result:
        case {"content": [*blocks], **more}:
            return "\n".join(map(_block, blocks)), bool(more.get("is_error") or more.get("isError"))
        case _:
            return text_of_result(result), False


def _block(block: Any) -> str:
    match block:
        case {"type": "image" | "audio" as kind}:
            return f"[{kind}, not shown]"
        case {"type": "text", "text": str(text)}:
            return text_of_result(text)
        case _:
            return text_of_result(block)
