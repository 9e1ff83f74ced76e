"""A scenario behind OpenEnv's protocol: `/ws`, `/schema`, `/metadata`, `/health` and the task API.

    web.run_app(OpenEnvService(scenario).app(), host="127.0.0.1", port=8000)

A WebSocket is a session. The number of sessions is bounded, and an idle one is closed. Messages are validated, and an
error leaves the session unchanged.
"""

import json
import logging
import random
import re
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, cast
from weakref import WeakSet

from aiohttp import WSCloseCode, WSMsgType, web
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from gavel.base.errors import GavelError
from gavel.base.extras import installed_version
from gavel.base.fields import problem
from gavel.integrations._serving import guard
from gavel.integrations.openenv.worlds import GAVEL_ACTION
from gavel.llm.types import Message
from gavel.scenarios.scenario import Scenario, Split
from gavel.scenarios.stepped_episode import Moment, SteppedEpisode, outcome
from gavel.scenarios.task import Task

_MOST_BYTES = 4 * 2**20
"""Max bytes of a client's message."""
_MOST_TASKS = 10_000
"""Max tasks in one response of the task API."""
SPLITS: Mapping[str, Split] = {"train": "train", "test": "held_out", "held_out": "held_out"}
"""Wire names of the splits."""
_ERROR = re.compile(r'\{"error": "(?:[^"\\]|\\.)*"\}', re.DOTALL)
"""A tool message that is an error, as Gavel's tools write one."""
logger = logging.getLogger(__name__)


class Action(BaseModel):
    """turn: the agent's whole turn, an assistant's `message` of OpenAI; message: words, in `content`; call_tool: one
    tool, in `tool_name` and `arguments`; list_tools: the tools that can be called now."""

    model_config = ConfigDict(title=GAVEL_ACTION)
    type: Literal["turn", "message", "call_tool", "list_tools"]
    message: dict[str, JsonValue] | None = None
    finish_reason: Literal["stop", "tool_calls", "length"] | None = None
    content: str | None = None
    tool_name: str | None = None
    arguments: dict[str, JsonValue] = {}

    @model_validator(mode="after")
    def _complete(self) -> "Action":
        needed = {"turn": "message", "message": "content", "call_tool": "tool_name"}.get(self.type)
        if needed and getattr(self, needed) is None:
            raise ValueError(f"an action of type {self.type} needs {needed}")
        return self


class Observation(BaseModel):
    """What the agent is to read, as text and as OpenAI's messages, and after reset its tools."""

    text: str
    messages: list[Message]
    tool_schemas: list[Message] = []
    metadata: Message = {}


class State(BaseModel):
    episode_id: str | None = None
    step_count: int = 0
    task_id: str | None = None
    over: bool = False


class Query(BaseModel):
    """What `reset` and the task API take."""

    split: Literal["train", "test", "held_out"] = "train"
    index: int | None = Field(default=None, ge=0)
    task_id: str | None = None
    seed: int | None = Field(default=None, ge=0)
    """Seed of the episode; without a task it also selects one."""
    episode_id: str | None = Field(default=None, max_length=255)
    start: int | None = None
    stop: int | None = None


class ServedSession:
    """One client's episode, for sequential messages."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._episode: SteppedEpisode | None = None
        self._tools: list[Message] = []
        self._state = State()

    async def answer(self, text: str) -> Message | None:
        """The response to a message; None for one that ends the session."""
        try:
            message: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            return _error(f"Invalid JSON: {error}", "INVALID_JSON")
        given = cast(Message, message) if isinstance(message, dict) else {}
        try:
            match given.get("type"):
                case "close":
                    return None
                case "reset":
                    data = await self._reset(Query.model_validate(given.get("data") or {}))
                    return {"type": "observation", "data": data}
                case "step":
                    return {"type": "observation", "data": await self._step(Action.model_validate(given.get("data")))}
                case "mcp":
                    return {"type": "mcp", "data": {"result": {"tools": self._listed_tools()}}}
                case "state":
                    if self._episode is not None:
                        self._state.step_count, self._state.over = self._episode.turns, self._episode.over
                    return {"type": "state", "data": self._state.model_dump()}
                case kind:
                    return _error(f"Unknown message type: {kind}", "UNKNOWN_TYPE")
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            return _error("Invalid message", "VALIDATION_ERROR", errors=problems)
        except GavelError as error:
            return _error(error.message, "EXECUTION_ERROR")
        except Exception as error:
            logger.exception("an episode of %s failed", self._scenario.name)
            return _error(f"{type(error).__name__}: {error}", "EXECUTION_ERROR")

    async def close(self) -> None:
        if self._episode is not None:
            await self._episode.close()
            self._episode = None

    async def _reset(self, given: Query) -> Message:
        """Starts another episode; returns its first observation. Raises `GavelError` for an unknown task."""
        task = self._chosen(given)
        await self.close()
        self._episode = SteppedEpisode(self._scenario, task, seed=given.seed)
        self._state = State(episode_id=given.episode_id or uuid.uuid4().hex, task_id=task.id)
        moment = await self._episode.start()
        return self._observation(moment, {"tool_schemas": moment.tools})

    async def _step(self, action: Action) -> Message:
        """Takes an action; returns its result."""
        if self._episode is None:
            raise GavelError("the episode has not begun", "Send reset first.")
        match action.type:
            case "list_tools":
                observation: Message = {"metadata": {}, "tools": self._listed_tools()}
                return {"observation": observation, "reward": None, "done": self._episode.over}
            case "turn":
                turn: Message = dict(action.message or {})
                return self._observation(await self._episode.act(turn, finish_reason=action.finish_reason))
            case "message":
                return self._observation(await self._episode.act({"content": action.content}))
            case "call_tool":
                function = {"name": action.tool_name, "arguments": json.dumps(action.arguments)}
                call = {"id": f"call_{self._episode.turns}", "type": "function", "function": function}
                moment = await self._episode.act({"content": "", "tool_calls": [call]})
                text = next((str(each.get("content") or "") for each in moment.new if each.get("role") == "tool"), "")
                content, failed = [{"type": "text", "text": text}], _ERROR.fullmatch(text) is not None
                result = {"content": content, "data": text, "structured_content": None, "is_error": failed}
                # the form of OpenEnv's MCP environments
                return self._observation(moment, {"tool_name": action.tool_name, "result": result, "error": None})

    def _listed_tools(self) -> list[Message]:
        """The tools that can be called now, as MCP lists them."""
        tools: list[Message] = []
        for schema in self._tools:
            function = cast(Message, schema["function"])
            form, told = function.get("parameters") or {"type": "object"}, function.get("description") or ""
            tools.append({"name": function["name"], "description": told, "input_schema": form})
        return tools

    def _chosen(self, given: Query) -> Task:
        tasks = self._scenario.tasks(SPLITS[given.split])
        if not tasks:
            raise GavelError(f"the scenario {self._scenario.name} has no {given.split} tasks")
        if given.task_id is not None:
            everyone = (task for split in ("train", "test") for task in self._scenario.tasks(SPLITS[split]))
            found = next((task for task in everyone if task.id == given.task_id), None)
            if found is None:
                raise GavelError(f"there is no task {given.task_id!r}")
            return found
        dice = random.SystemRandom() if given.seed is None else random.Random(f"{given.split} {given.seed}")
        return task_at(tasks, dice.randrange(len(tasks)) if given.index is None else given.index)

    def _observation(self, moment: Moment, more: Message | None = None) -> Message:
        assert self._episode is not None
        if moment.tools:
            self._tools = moment.tools
        known = {"role": "system", "content": self._scenario.system}  # clients get these from /metadata
        text = "\n\n".join(str(each.get("content") or "") for each in moment.new if each != known)
        observation: Message = {"metadata": {}, "text": text, "messages": moment.new, **(more or {})}
        if not moment.over:
            return {"observation": observation, "reward": None, "done": False}
        trajectory = self._episode.trajectory
        found = outcome(self._scenario, trajectory)
        metadata: Message = {
            "status": trajectory.status,
            "status_reason": trajectory.status_reason,
            **{name: found[name] for name in ("success", "hand_reward") if name in found},
            "measures": {name: found[name] for name in self._scenario.measures if name in found},
        }
        reward = found.get("hand_reward", found.get("success"))
        return {
            "observation": {**observation, "metadata": metadata},
            "reward": reward,
            "done": True,
            "metadata": metadata,
        }


def task_at(tasks: Sequence[Task], index: int) -> Task:
    """The task of a number. Raises `GavelError` for an unknown one."""
    if not 0 <= index < len(tasks):
        raise GavelError(f"there is no task {index}: the split has {len(tasks)}")
    return tasks[index]


def _error(message: str, code: str, **more: Any) -> Message:
    return {"type": "error", "data": {"message": message, "code": code, **more}}


def _read_only(scenario: Scenario) -> dict[str, Any]:
    """Responses of the read-only routes, by path."""
    observation = Observation.model_json_schema()
    splits = [{"name": name, "type": name} for name in ("train", "test") if scenario.tasks(SPLITS[name])]
    return {
        "/health": {"status": "healthy"},
        "/metadata": {
            **dict.fromkeys(("readme_content", "author", "documentation_url")),
            "name": scenario.name,
            "description": scenario.system.strip() or f"The scenario {scenario.name} of Gavel.",
            "version": installed_version("gavel-rl"),
            "max_turns": scenario.max_turns,
        },
        "/schema": {
            "action": Action.model_json_schema(),
            "observation": observation,
            "reset_observation": observation,
            "state": State.model_json_schema(),
        },
        "/list_environments": [scenario.name],
        f"/{scenario.name}/splits": splits,
    }


def _answer_tasks(scenario: Scenario, what: str, query: Query) -> Message:
    """A response of the task API. Tasks are listed with the judge's information, and without their hidden data."""
    tasks = scenario.tasks(SPLITS[query.split])

    def told(index: int) -> Message:
        task = task_at(tasks, index)
        found = task.model_dump(mode="json", include={"rubric", "reference", "criteria"})
        found["rubric"] = found["rubric"] or scenario.rubric
        return {"id": task.id, "index": index, **{name: value for name, value in found.items() if value}}

    match what:
        case "num_tasks":
            return {"num_tasks": len(tasks)}
        case "task":
            return {"task": told(query.index or 0)}
        case "task_range":
            return {"tasks": [told(index) for index in range(len(tasks))[query.start : query.stop][:_MOST_TASKS]]}
        case _:
            return {"tasks": [told(index) for index in range(len(tasks))[:_MOST_TASKS]], "env_name": scenario.name}


class OpenEnvService:
    """The routes of one scenario. `sessions`: max open sessions. `idle_seconds`: timeout of an idle one.

    `key`: a bearer token that every request needs, except for `/health`; without one only this machine is answered.
    """

    def __init__(
        self, scenario: Scenario, *, sessions: int = 256, idle_seconds: float = 1800.0, key: str | None = None
    ) -> None:
        self._scenario = scenario
        self._most = sessions
        self._idle_seconds = idle_seconds
        self._key = key
        self._open = 0
        self._sockets: WeakSet[web.WebSocketResponse] = WeakSet()

    def app(self) -> web.Application:
        app = web.Application(middlewares=[guard(self._key, "detail", "/health")], client_max_size=_MOST_BYTES)
        read_only = _read_only(self._scenario)

        async def tell(request: web.Request) -> web.Response:
            return web.json_response(read_only[request.path])

        for path in read_only:
            app.router.add_get(path, tell)
        for what in ("tasks", "num_tasks", "task", "task_range"):
            app.router.add_post(f"/{self._scenario.name}/{what}", self._list_tasks)
        app.router.add_get("/ws", self._serve_session)
        app.on_shutdown.append(self._leave)
        return app

    async def _leave(self, app: web.Application) -> None:
        """Ends the conversations, for which a stopping server waits."""
        for socket in list(self._sockets):
            await socket.close(code=WSCloseCode.GOING_AWAY)

    async def _list_tasks(self, request: web.Request) -> web.Response:
        try:
            query = Query.model_validate_json(await request.text())
            return web.json_response(_answer_tasks(self._scenario, request.path.rpartition("/")[2], query))
        except ValidationError as error:
            told = f"the body is no question about tasks: {problem(error)}"
        except GavelError as error:
            told = error.message
        return web.json_response({"detail": told}, status=400)

    async def _serve_session(self, request: web.Request) -> web.StreamResponse:
        """Answers a client's messages in a session of its own until it disconnects."""
        socket = web.WebSocketResponse(max_msg_size=_MOST_BYTES, receive_timeout=self._idle_seconds)
        await socket.prepare(request)
        if self._open >= self._most:
            counts = {"active_sessions": self._open, "max_sessions": self._most}
            told = f"Server at capacity: {self._open}/{self._most} sessions active"
            await socket.send_json(_error(told, "CAPACITY_REACHED", **counts))
            await socket.close()
            return socket
        self._open += 1
        self._sockets.add(socket)
        session = ServedSession(self._scenario)
        try:
            async for frame in socket:
                if frame.type is not WSMsgType.TEXT or (answer := await session.answer(frame.data)) is None:
                    break
                await socket.send_json(answer)
        except (ConnectionError, TimeoutError):
            pass  # the client is gone
        finally:
            self._open -= 1
            await session.close()
            with suppress(ConnectionError):
                await socket.close()
        return socket
