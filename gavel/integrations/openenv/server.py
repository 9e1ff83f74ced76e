"""A scenario behind OpenEnv's protocol: `/ws`, `/schema`, `/metadata`, `/health` and the task API.

    web.run_app(OpenEnvService(scenario).app(), host="127.0.0.1", port=8000)

A WebSocket is a session. The number of sessions is bounded, and an idle one is closed. Messages are validated, and an
error leaves the session unchanged.
"""

import hmac
import json
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, cast
from weakref import WeakSet

from aiohttp import WSCloseCode, WSMsgType, web
from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from gavel.base.errors import GavelError
from gavel.base.extras import installed_version
from gavel.base.fields import problem
from gavel.base.network import is_loopback
from gavel.integrations.openenv.worlds import GAVEL_ACTION, is_tool_error
from gavel.llm.types import Message
from gavel.scenarios.scenario import Scenario, Split
from gavel.scenarios.stepped_episode import Moment, SteppedEpisode, outcome
from gavel.scenarios.task import Task

MOST_BYTES = 4 * 2**20
"""Max bytes of a client's message."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
logger = logging.getLogger(__name__)


SPLITS: Mapping[str, Split] = {"train": "train", "test": "held_out", "held_out": "held_out"}
"""Wire names of the splits."""
_SPLITS: tuple[Split, ...] = ("train", "held_out")


class ServedError(GavelError):
    """A request that this session cannot fulfil."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Turn(_Part):
    """The agent's whole turn: an assistant's message of OpenAI, perhaps with tool calls."""

    type: Literal["turn"]
    message: dict[str, JsonValue]
    finish_reason: Literal["stop", "tool_calls", "length"] | None = None


class Words(_Part):
    """The agent answers in words."""

    type: Literal["message"]
    content: str


class ToolCall(_Part):
    """The agent calls one tool."""

    type: Literal["call_tool"]
    tool_name: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])


class ToolList(_Part):
    type: Literal["list_tools"]


Action = Annotated[Turn | Words | ToolCall | ToolList, Field(discriminator="type")]
_ACTION: TypeAdapter[Action] = TypeAdapter(Action)


class ResetData(_Part):
    """What `reset` takes."""

    split: Literal["train", "test", "held_out"] = "train"
    index: int | None = Field(default=None, ge=0)
    task_id: str | None = None
    seed: int | None = Field(default=None, ge=0)
    """Seed of the episode; without a task it also selects one."""
    episode_id: str | None = Field(default=None, max_length=255)


class TaskQuery(_Part):
    split: Literal["train", "test", "held_out"]
    index: int = 0
    start: int | None = None
    stop: int | None = None


class ServedSession:
    """One client's episode, for sequential messages."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._episode: SteppedEpisode | None = None
        self._tools: list[Message] = []
        self._id: str | None = None
        self._task: Task | None = None

    async def reset(self, data: Any) -> Message:
        """Starts another episode; returns its first observation.

        Raises pydantic's `ValidationError` for invalid data, `ServedError` for an unknown task.
        """
        given = ResetData.model_validate(data or {})
        task = self._chosen(given)
        await self.close()
        self._episode, self._task = SteppedEpisode(self._scenario, task, seed=given.seed), task
        self._id = given.episode_id or uuid.uuid4().hex
        moment = await self._episode.start()
        return self._observation(moment, {"tool_schemas": moment.tools})

    async def step(self, data: Any) -> Message:
        """Takes an action; returns its result. Raises as `reset` does."""
        action = _ACTION.validate_python(data)
        if self._episode is None:
            raise ServedError("the episode has not begun", "Send reset first.")
        match action:
            case ToolList():
                return _answer({"tools": self.tools()}, done=self._episode.over)
            case Turn(message=message, finish_reason=reason):
                return self._observation(await self._episode.act(message, finish_reason=reason))
            case Words(content=content):
                return self._observation(await self._episode.act({"content": content}))
            case ToolCall():
                moment = await self._episode.act(_turn(action, self._episode.turns))
                return self._observation(moment, _called(action, moment))

    def tools(self) -> list[Message]:
        """The tools that can be called now, as MCP lists them."""
        return [_listed(schema) for schema in self._tools]

    def state(self) -> Message:
        episode = self._episode
        return {
            "episode_id": self._id,
            "step_count": 0 if episode is None else episode.turns,
            "task_id": None if self._task is None else self._task.id,
            "over": episode is not None and episode.over,
        }

    async def close(self) -> None:
        if self._episode is not None:
            await self._episode.close()
            self._episode = None

    def _chosen(self, given: ResetData) -> Task:
        tasks = self._scenario.tasks(SPLITS[given.split])
        if not tasks:
            raise ServedError(f"the scenario {self._scenario.name} has no {given.split} tasks")
        if given.task_id is not None:
            everyone = (task for split in _SPLITS for task in self._scenario.tasks(split))
            found = next((task for task in everyone if task.id == given.task_id), None)
            if found is None:
                raise ServedError(f"there is no task {given.task_id!r}")
            return found
        dice = random.SystemRandom() if given.seed is None else random.Random(f"{given.split} {given.seed}")
        return task_at(tasks, dice.randrange(len(tasks)) if given.index is None else given.index)

    def _observation(self, moment: Moment, more: Message | None = None) -> Message:
        assert self._episode is not None
        if moment.tools:
            self._tools = moment.tools
        known = {"role": "system", "content": self._scenario.system}  # clients get these from /metadata
        text = "\n\n".join(str(each.get("content") or "") for each in moment.new if each != known)
        observation: Message = {"text": text, "messages": moment.new, **(more or {})}
        if not moment.over:
            return _answer(observation)
        trajectory = self._episode.trajectory
        found = outcome(self._scenario, trajectory)
        metadata: Message = {
            "status": trajectory.status,
            "status_reason": trajectory.status_reason,
            **{name: found[name] for name in ("success", "hand_reward") if name in found},
            "measures": {name: found[name] for name in self._scenario.measures if name in found},
        }
        reward = found.get("hand_reward", found.get("success"))
        return _answer({**observation, "metadata": metadata}, reward=reward, done=True, metadata=metadata)


def task_at(tasks: Sequence[Task], index: int) -> Task:
    """The task of a number. Raises `ServedError` for an unknown one."""
    if not 0 <= index < len(tasks):
        raise ServedError(f"there is no task {index}: the split has {len(tasks)}")
    return tasks[index]


_KINDS = {
    "turn": "the agent's whole turn, in `message`",
    "message": "words, in `content`",
    "call_tool": "one tool, in `tool_name` and `arguments`",
    "list_tools": "the tools that can be called now",
}
_ACTION_SCHEMA = {
    "title": GAVEL_ACTION,
    "type": "object",
    "description": "; ".join(f"{name}: {what}" for name, what in _KINDS.items()),
    "properties": {
        "type": {"type": "string", "enum": list(_KINDS)},
        "message": {"type": "object", "description": "An assistant's message of OpenAI's API."},
        "finish_reason": {"type": "string", "enum": ["stop", "tool_calls", "length"]},
        "content": {"type": "string"},
        "tool_name": {"type": "string"},
        "arguments": {"type": "object"},
    },
    "required": ["type"],
}
_OBSERVATION_SCHEMA = {
    "title": "GavelObservation",
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "What the agent is to read."},
        "messages": {"type": "array", "items": {"type": "object"}, "description": "The same as OpenAI's messages."},
        "tool_schemas": {"type": "array", "items": {"type": "object"}, "description": "After reset: OpenAI's tools."},
        "done": {"type": "boolean"},
        "reward": {"type": ["number", "null"]},
        "metadata": {"type": "object"},
    },
    "required": ["text", "messages"],
}


def _answer(
    observation: Message, *, reward: float | None = None, done: bool = False, metadata: Message | None = None
) -> Message:
    return {
        "observation": {"metadata": {}, **observation},
        "reward": reward,
        "done": done,
        **({"metadata": metadata} if metadata else {}),
    }


def _listed(schema: Message) -> Message:
    function = cast(Message, schema["function"])
    return {
        "name": function["name"],
        "description": function.get("description") or "",
        "input_schema": function.get("parameters") or {"type": "object"},
    }


def _turn(action: ToolCall, number: int) -> Message:
    function = {"name": action.tool_name, "arguments": json.dumps(action.arguments)}
    return {"content": "", "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}]}


def _called(action: ToolCall, moment: Moment) -> Message:
    """The result of a tool in the form of OpenEnv's MCP environments."""
    text = next((str(each.get("content") or "") for each in moment.new if each.get("role") == "tool"), "")
    content = [{"type": "text", "text": text}]
    result = {"content": content, "data": text, "structured_content": None, "is_error": is_tool_error(text)}
    return {"tool_name": action.tool_name, "result": result, "error": None}


_MOST_TASKS = 10_000
"""Max tasks in one response of the task API."""


def _told(scenario: Scenario) -> dict[str, Any]:
    """Responses of the read-only routes, by path."""
    state = {"episode_id": {"type": ["string", "null"]}, "step_count": {"type": "integer"}}
    return {
        "/health": {"status": "healthy"},
        "/metadata": {
            "name": scenario.name,
            "description": scenario.system.strip() or f"The scenario {scenario.name} of Gavel.",
            "readme_content": None,
            "version": installed_version("gavel-rl"),
            "author": None,
            "documentation_url": None,
            "max_turns": scenario.max_turns,
        },
        "/schema": {
            "action": _ACTION_SCHEMA,
            "observation": _OBSERVATION_SCHEMA,
            "reset_observation": _OBSERVATION_SCHEMA,
            "state": {"title": "GavelState", "type": "object", "properties": state},
        },
        "/list_environments": [scenario.name],
        f"/{scenario.name}/splits": [
            {"name": name, "type": name} for name in ("train", "test") if scenario.tasks(SPLITS[name])
        ],
    }


def _task_api(scenario: Scenario) -> list[web.RouteDef]:
    """The routes of the task API. Tasks are listed with the judge's information, and without their hidden data."""

    def listed(tasks: Sequence[Task], indices: range) -> list[Message]:
        return [task(index, tasks[index]) for index in indices[:_MOST_TASKS]]

    def task(index: int, found: Task) -> Message:
        told = found.model_dump(mode="json", include={"rubric", "reference", "criteria"})
        told["rubric"] = told["rubric"] or scenario.rubric
        return {"id": found.id, "index": index, **{name: value for name, value in told.items() if value}}

    answers: dict[str, Callable[[Sequence[Task], TaskQuery], Message]] = {
        "tasks": lambda tasks, _: {"tasks": listed(tasks, range(len(tasks))), "env_name": scenario.name},
        "num_tasks": lambda tasks, _: {"num_tasks": len(tasks)},
        "task": lambda tasks, query: {"task": task(query.index, task_at(tasks, query.index))},
        "task_range": lambda tasks, query: {"tasks": listed(tasks, range(len(tasks))[query.start : query.stop])},
    }

    async def handle(request: web.Request) -> web.Response:
        try:
            query = TaskQuery.model_validate_json(await request.text())
        except ValidationError as error:
            raise ServedError(f"the body is no question about tasks: {problem(error)}") from error
        answer = answers[request.path.rpartition("/")[2]]
        return web.json_response(answer(scenario.tasks(SPLITS[query.split]), query))

    return [web.post(f"/{scenario.name}/{name}", handle) for name in answers]


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
        app = web.Application(middlewares=[self._guard], client_max_size=MOST_BYTES)
        read = [web.get(path, _answering(answer)) for path, answer in _told(self._scenario).items()]
        app.add_routes([*read, *_task_api(self._scenario), web.get("/ws", self._serve_session)])
        app.on_shutdown.append(self._leave)
        return app

    async def _leave(self, app: web.Application) -> None:
        """Ends the conversations, for which a stopping server waits."""
        for socket in list(self._sockets):
            await socket.close(code=WSCloseCode.GOING_AWAY)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._key is None and (not is_loopback(request.url.host or "") or "Origin" in request.headers):
            # a cross-site page in a browser on this machine
            return web.json_response({"detail": "this server answers programs on its own machine alone"}, status=403)
        if self._key is not None and request.path != "/health":
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(errors="surrogateescape"), self._key.encode()):
                return web.json_response({"detail": "the bearer token is missing or wrong"}, status=401)
        try:
            return await handler(request)
        except GavelError as error:
            return web.json_response({"detail": error.message}, status=400)

    async def _serve_session(self, request: web.Request) -> web.StreamResponse:
        """Answers a client's messages in a session of its own until it disconnects."""
        socket = web.WebSocketResponse(max_msg_size=MOST_BYTES, receive_timeout=self._idle_seconds)
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
                if frame.type is not WSMsgType.TEXT:
                    break
                answer = await self._reply(frame.data, session)
                if answer is None:
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

    async def _reply(self, text: str, session: ServedSession) -> Message | None:
        """The response to a message; None for one that ends the session."""
        try:
            message: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            return _error(f"Invalid JSON: {error}", "INVALID_JSON")
        given = cast(Message, message) if isinstance(message, dict) else {}
        kind, data = given.get("type"), given.get("data")
        try:
            match kind:
                case "close":
                    return None
                case "reset":
                    return {"type": "observation", "data": await session.reset(data)}
                case "step":
                    return {"type": "observation", "data": await session.step(data)}
                case "mcp":
                    return {"type": "mcp", "data": {"result": {"tools": session.tools()}}}
                case "state":
                    return {"type": "state", "data": session.state()}
                case _:
                    return _error(f"Unknown message type: {kind}", "UNKNOWN_TYPE")
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            return _error("Invalid message", "VALIDATION_ERROR", errors=problems)
        except GavelError as error:
            return _error(error.message, "EXECUTION_ERROR")
        except Exception as error:
            logger.exception("an episode of %s failed", self._scenario.name)
            return _error(f"{type(error).__name__}: {error}", "EXECUTION_ERROR")


def _answering(answer: Any) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.json_response(answer)

    return handle


def _error(message: str, code: str, **more: Any) -> Message:
    return {"type": "error", "data": {"message": message, "code": code, **more}}
