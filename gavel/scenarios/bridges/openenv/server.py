"""A scenario behind OpenEnv's protocol: `/ws`, `/mcp`, `/schema`, `/metadata`, `/health` and the task API.

    web.run_app(OpenEnvService(scenario).app(), host="127.0.0.1", port=8000)

Sessions are bounded in number, and one that nobody uses is closed. What a client sends is checked, and an error leaves
its session as it was.
"""

import asyncio
import hmac
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import nullcontext, suppress
from typing import Any, cast
from weakref import WeakSet

from aiohttp import WSCloseCode, WSMsgType, web
from pydantic import ValidationError

from gavel.base.errors import GavelError
from gavel.llm.types import Message
from gavel.scenarios.bridges.openenv.catalogue import Catalogue, own_version
from gavel.scenarios.bridges.openenv.served import ServedError
from gavel.scenarios.bridges.openenv.session_table import FullError, SessionTable
from gavel.scenarios.scenario import Scenario

PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMETERS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
SERVER_ERROR = -32000


class McpCalls:
    def __init__(self, sessions: SessionTable) -> None:
        self._sessions = sessions

    async def answer(self, call: Any, own: str | None) -> Message:
        """The answer to a call. `own`: the session of its connection; else the call names one."""
        given = cast(Message, call) if isinstance(call, dict) else {}
        number, method = given.get("id"), given.get("method")
        parameters: Any = given.get("params") or {}
        if given.get("jsonrpc") != "2.0" or not isinstance(method, str):
            return rpc_error(None, INVALID_REQUEST, "Invalid request: jsonrpc and method are needed")
        if not isinstance(parameters, dict):
            return rpc_error(number, INVALID_PARAMETERS, "Params must be an object")
        options = cast(Message, parameters)
        try:
            result = await self._result(method, options, own)
        except FullError as full:
            return rpc_error(number, SERVER_ERROR, str(full), full.counts)
        except ValidationError as error:
            return rpc_error(number, INVALID_PARAMETERS, "Invalid params", problems(error))
        except GavelError as error:
            return rpc_error(number, INVALID_PARAMETERS, error.message)
        except Exception as error:
            logger.exception("the call %s failed", method)
            return rpc_error(number, INTERNAL_ERROR, f"{type(error).__name__}: {error}")
        if result is None:
            return rpc_error(number, NO_METHOD, f"Method not found: {method}")
        return {"jsonrpc": "2.0", "id": number, "result": result}

    async def _result(self, method: str, options: Message, own: str | None) -> Message | None:
        named = str(options.get("session_id") or "")
        match method:
            case "openenv/session/create":
                return {"session_id": own or self._sessions.begin()}
            case "openenv/session/close" if named != own and not self._sessions.is_attached(named):
                await self._sessions.end(named)
                return {"session_id": named, "closed": True}
            case "openenv/session/close":
                raise GavelError("a session that a WebSocket has cannot be closed here")
            case "tools/list":
                return {"tools": await self._sessions.get(own or named).tools()}
            case "tools/call":
                action: Message = {"type": "call_tool", "tool_name": options.get("name")}
                action["arguments"] = options.get("arguments") or {}
                step = await self._sessions.get(own or named).step(action)
                return step["observation"]["result"]
            case _:
                return None


def problems(error: ValidationError) -> list[Message]:
    """What is wrong with a request, without what was sent."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [{"loc": list(each["loc"]), "msg": each["msg"], "type": each["type"]} for each in found]


def rpc_error(number: Any, code: int, message: str, data: Any = None) -> Message:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message, "data": data}}


MOST_BYTES = 4 * 2**20
"""Of one message of a client."""
_Reply = Callable[[Any, str], Awaitable[Message | None]]
"""The answer to a message in a session; None ends the conversation."""
logger = logging.getLogger(__name__)


class OpenEnvService:
    """The routes of one scenario. `sessions`: open at a time, at most. `idle_seconds`: that one may be left alone.

    `key`: a bearer token that every request needs, except for `/health`.
    """

    def __init__(
        self, scenario: Scenario, *, sessions: int = 256, idle_seconds: float = 1800.0, key: str | None = None
    ) -> None:
        self._scenario = scenario
        self._idle_seconds = idle_seconds
        self._key = key
        self._sessions = SessionTable(scenario, sessions, idle_seconds)
        self._calls = McpCalls(self._sessions)
        self._sockets: WeakSet[web.WebSocketResponse] = WeakSet()

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=MOST_BYTES)
        app.add_routes(Catalogue(self._scenario).routes())
        app.add_routes([web.get("/ws", self._ws), web.get("/mcp", self._mcp_ws), web.post("/mcp", self._mcp)])
        app.router.add_get("/openapi.json", self._openapi)
        app.cleanup_ctx.append(self._lifetime)
        app.on_shutdown.append(self._leave)
        return app

    async def _leave(self, app: web.Application) -> None:
        """Ends the conversations: a server that stops waits for them."""
        for socket in list(self._sockets):
            await socket.close(code=WSCloseCode.GOING_AWAY)

    async def _openapi(self, request: web.Request) -> web.StreamResponse:
        """The routes alone: OpenEnv's validator looks there for the version and for what is offered."""
        paths: dict[str, dict[str, Message]] = {}
        for route in request.app.router.routes():
            path = route.resource.canonical if route.resource is not None else ""
            if route.method in ("GET", "POST"):
                answers = {"200": {"description": "An answer."}}
                paths.setdefault(path, {})[route.method.lower()] = {"responses": answers}
        info = {"title": self._scenario.name, "version": own_version() or "0"}
        return web.json_response({"openapi": "3.1.0", "info": info, "paths": paths})

    async def _lifetime(self, app: web.Application) -> AsyncGenerator[None]:
        expiry = asyncio.create_task(self._sessions.expire())
        yield
        expiry.cancel()
        await self._sessions.end_all()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if self._key is not None and request.path != "/health":
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(errors="surrogateescape"), self._key.encode()):
                return web.json_response({"detail": "the bearer token is missing or wrong"}, status=401)
        try:
            return await handler(request)
        except GavelError as error:
            return web.json_response({"detail": error.message}, status=400)

    async def _ws(self, request: web.Request) -> web.StreamResponse:
        def refused(error: FullError | ServedError) -> Message:
            if isinstance(error, FullError):
                return _error(str(error), "CAPACITY_REACHED", **error.counts)
            return _error(error.message, "SESSION_ERROR")

        def unreadable(error: Exception) -> Message:
            return _error(f"Invalid JSON: {error}", "INVALID_JSON")

        return await self._conversation(request, self._reply, refused, unreadable)

    async def _mcp_ws(self, request: web.Request) -> web.StreamResponse:
        def refused(error: FullError | ServedError) -> Message:
            return rpc_error(None, SERVER_ERROR, str(error), error.counts if isinstance(error, FullError) else None)

        def unreadable(error: Exception) -> Message:
            return rpc_error(None, PARSE_ERROR, f"Parse error: {error}")

        return await self._conversation(request, self._calls.answer, refused, unreadable)

    async def _mcp(self, request: web.Request) -> web.StreamResponse:
        try:
            call: Any = json.loads(await request.text())
        except (ValueError, RecursionError) as error:
            return web.json_response(rpc_error(None, PARSE_ERROR, f"Parse error: {error}"))
        return web.json_response(await self._calls.answer(call, None))

    async def _conversation(
        self,
        request: web.Request,
        reply: _Reply,
        refused: Callable[[FullError | ServedError], Message],
        unreadable: Callable[[Exception], Message],
    ) -> web.StreamResponse:
        """Answers messages until the client leaves, in the session that it names or in one of its own."""
        socket = web.WebSocketResponse(max_msg_size=MOST_BYTES, receive_timeout=self._idle_seconds)
        await socket.prepare(request)
        self._sockets.add(socket)
        named = request.query.get("session_id")
        own: str | None = None
        try:
            name = named or (own := self._sessions.begin())
            with self._sessions.attached(named) if named else nullcontext():
                async for frame in socket:
                    if frame.type is not WSMsgType.TEXT:
                        break
                    try:
                        message: Any = json.loads(frame.data)
                    except (ValueError, RecursionError) as error:
                        await socket.send_json(unreadable(error))
                        continue
                    answer = await reply(message, name)
                    if answer is None:
                        break
                    await socket.send_json(answer)
        except (FullError, ServedError) as error:
            await socket.send_json(refused(error))
        except (ConnectionError, TimeoutError):
            pass  # the client is gone
        finally:
            if own is not None:
                with suppress(ServedError):  # it was closed when the server stopped
                    await self._sessions.end(own)
            with suppress(ConnectionError):
                await socket.close()
        return socket

    async def _reply(self, message: Any, name: str) -> Message | None:
        given = cast(Message, message) if isinstance(message, dict) else {}
        kind, data = given.get("type"), given.get("data")
        session = self._sessions.get(name)
        try:
            match kind:
                case "close":
                    return None
                case "reset":
                    return {"type": "observation", "data": await session.reset(data)}
                case "step":
                    return {"type": "observation", "data": await session.step(data)}
                case "state":
                    return {"type": "state", "data": session.state()}
                case "mcp":
                    return {"type": "mcp", "data": await self._calls.answer(data, name)}
                case _:
                    return _error(f"Unknown message type: {kind}", "UNKNOWN_TYPE")
        except ValidationError as error:
            return _error("Invalid message", "VALIDATION_ERROR", errors=problems(error))
        except GavelError as error:
            return _error(error.message, "EXECUTION_ERROR")
        except Exception as error:
            logger.exception("an episode of %s failed", self._scenario.name)
            return _error(f"{type(error).__name__}: {error}", "EXECUTION_ERROR")


def _error(message: str, code: str, **more: Any) -> Message:
    return {"type": "error", "data": {"message": message, "code": code, **more}}
