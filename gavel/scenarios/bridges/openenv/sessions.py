"""Sessions with a server of OpenEnv, one for each episode.

A session is a WebSocket of its own. A server that has only HTTP keeps one environment, so its episodes run one after
another. Every answer has a deadline; a session whose answer did not come is never used again, since a late answer would
be taken for that of the next question. A server that is full is asked again until `wait` is over.
"""

import asyncio
import json
import random
import time
from contextlib import suppress
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary

import aiohttp
from anyio import CapacityLimiter

from gavel.llm.types import Message
from gavel.scenarios.bridges.openenv.address import Options
from gavel.scenarios.bridges.openenv.wire import CapacityError, OpenEnvError, RefusedError, Stepped, checked, stepped

_MOST_BYTES = 100 * 2**20
"""Of one message: what OpenEnv's own client takes."""
_CONNECT_SECONDS = 15.0
_CLOSE_SECONDS = 3.0
_BACKOFF_SECONDS = 0.05, 2.0
"""Between two questions whether a full server has a session, at first and at most."""
_NO_WEBSOCKET = (200, 400, 403, 404, 405, 426, 501)
"""Answers to a handshake by servers that have no WebSocket there."""


class Session(Protocol):
    """An episode's place on a server."""

    async def reset(self, data: Message) -> Stepped: ...

    async def step(self, action: Message) -> Stepped: ...

    async def tools(self) -> list[Message]:
        """Tools as MCP lists them."""
        ...

    async def state(self) -> Message: ...

    async def close(self) -> None: ...


class OpenEnvServer:
    """A server, and how many sessions it holds."""

    def __init__(self, url: str, options: Options) -> None:
        self.url = url
        self._seconds = options.seconds
        self._wait = options.wait
        self._sessions = options.sessions
        self._headers = options.headers()
        self._has_websocket: bool | None = None
        self._first: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._limiters: WeakKeyDictionary[asyncio.AbstractEventLoop, CapacityLimiter] = WeakKeyDictionary()

    def __str__(self) -> str:
        return self.url

    async def begin(self, data: Message) -> tuple[Session, Stepped]:
        """A session that is reset with `data`, and its first observation. Waits while the server is full.

        Raises `OpenEnvError`.
        """
        await self._find_transport()
        until = time.monotonic() + self._wait
        pause, longest = _BACKOFF_SECONDS
        while True:
            try:
                return await self._begun(data, until - time.monotonic())
            except CapacityError as full:
                limiter = self._limiter()
                if full.sessions is not None and full.sessions < limiter.total_tokens:
                    limiter.total_tokens = self._sessions = full.sessions
                left = until - time.monotonic()
                if left <= pause:
                    raise
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, longest)

    async def _begun(self, data: Message, wait: float) -> tuple[Session, Stepped]:
        limiter, borrower = self._limiter(), object()
        try:
            async with asyncio.timeout(max(wait, 0.0)):
                await limiter.acquire_on_behalf_of(borrower)
        except TimeoutError as error:
            raise OpenEnvError(
                f"no session of {self.url} became free within {self._wait:g} s",
                "Start the server with more sessions, or raise wait=.",
            ) from error
        session = None
        try:
            session = await self._opened(limiter, borrower)
            return session, await session.reset(data)
        except BaseException:
            if session is None:
                limiter.release_on_behalf_of(borrower)
            else:
                await session.close()
            raise

    async def _opened(self, limiter: CapacityLimiter, borrower: object) -> "Session":
        def free() -> None:
            limiter.release_on_behalf_of(borrower)

        if not self._has_websocket:
            return _HttpSession(self.url, self._seconds, self._headers, free)
        session = _WebSocketSession(self.url, self._seconds, free)
        await session.open(self._headers)
        return session

    async def _find_transport(self) -> None:
        """Whether the server has a WebSocket, asked once."""
        if self._has_websocket is not None:
            return
        loop = asyncio.get_running_loop()
        async with self._first.setdefault(loop, asyncio.Lock()):
            if self._has_websocket is not None:
                return
            session = _WebSocketSession(self.url, self._seconds, _nothing)
            try:
                await session.open(self._headers)
            except NoWebSocketError:
                self._has_websocket = False
                self._sessions = 1  # the one environment of the server
            else:
                self._has_websocket = True
                await session.close()

    def _limiter(self) -> CapacityLimiter:
        loop = asyncio.get_running_loop()
        if loop not in self._limiters:
            self._limiters[loop] = CapacityLimiter(self._sessions)
        return self._limiters[loop]


class NoWebSocketError(OpenEnvError):
    """The server has none there."""


class _WebSocketSession:
    def __init__(self, url: str, seconds: float, free: Any) -> None:
        self._url = url
        self._seconds = seconds
        self._free = free
        self._client = aiohttp.ClientSession()
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._is_whole = True

    async def open(self, headers: Message) -> None:
        address = "ws" + self._url.removeprefix("http") + "/ws"
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                self._socket = await self._client.ws_connect(
                    address, headers=headers, max_msg_size=_MOST_BYTES, autoclose=True
                )
        except aiohttp.WSServerHandshakeError as error:
            await self._client.close()
            if error.status in _NO_WEBSOCKET:
                raise NoWebSocketError(f"{address} is no WebSocket: HTTP {error.status}") from error
            raise OpenEnvError(
                f"{address} answered HTTP {error.status}", "Look at the server's log; token=NAME sends a bearer token."
            ) from error
        except TimeoutError as error:
            await self._client.close()
            raise OpenEnvError(f"{address} was not opened within {_CONNECT_SECONDS:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            await self._client.close()
            raise OpenEnvError(
                f"{address} cannot be opened: {error}", "Start the server, or check the address."
            ) from error
        except BaseException:
            await self._client.close()
            raise

    async def reset(self, data: Message) -> Stepped:
        return stepped(await self._ask("reset", {"data": data}, "observation"))

    async def step(self, action: Message) -> Stepped:
        return stepped(await self._ask("step", {"data": action}, "observation"))

    async def state(self) -> Message:
        return await self._ask("state", {}, "state")

    async def tools(self) -> list[Message]:
        call: Message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        answer = await self._ask("mcp", {"data": call}, "mcp")
        return _tools(answer.get("result"), answer.get("error") or answer)

    async def _ask(self, kind: str, more: Message, wanted: str) -> Message:
        assert self._socket is not None
        if not self._is_whole:
            raise OpenEnvError(f"the session with {self._url} was given up after an answer that did not come")
        self._is_whole = False
        try:
            async with asyncio.timeout(self._seconds):
                with suppress(aiohttp.ClientError, OSError):  # what it said before it closed can still be read
                    await self._socket.send_str(json.dumps({"type": kind, **more}))
                answer = await self._socket.receive()
        except TimeoutError as error:
            raise OpenEnvError(
                f"{self._url} did not answer {kind} within {self._seconds:g} s",
                "Raise seconds=, or look at the server.",
            ) from error
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            raise OpenEnvError(f"the connection to {self._url} is lost: {error}") from error
        if answer.type is not aiohttp.WSMsgType.TEXT:
            why = f"{answer.extra or self._socket.exception() or answer.type.name}"
            raise OpenEnvError(f"the connection to {self._url} was closed when {kind} was asked: {why:.200}")
        try:
            message: Any = json.loads(answer.data)
        except (ValueError, RecursionError) as error:
            raise OpenEnvError(f"{self._url} answered {kind} with what is no JSON: {answer.data[:200]!r}") from error
        try:
            return checked(message, wanted)
        finally:
            self._is_whole = True

    async def close(self) -> None:
        free, self._free = self._free, _nothing
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                if self._socket is not None and not self._socket.closed:
                    if self._is_whole:
                        await self._socket.send_str(json.dumps({"type": "close"}))
                    await self._socket.close()
        except (TimeoutError, aiohttp.ClientError, OSError):
            pass  # it is gone already
        finally:
            try:
                await self._client.close()
            finally:
                free()


class _HttpSession:
    """The one environment of a server without a WebSocket."""

    def __init__(self, url: str, seconds: float, headers: Message, free: Any) -> None:
        self._url = url
        self._seconds = seconds
        self._free = free
        self._client = aiohttp.ClientSession(headers=headers)

    async def reset(self, data: Message) -> Stepped:
        return stepped(await self._post("reset", data))

    async def step(self, action: Message) -> Stepped:
        return stepped(await self._post("step", {"action": action}))

    async def tools(self) -> list[Message]:
        listed = await self.step({"type": "list_tools"})
        return _tools(listed.observation, listed.observation)

    async def state(self) -> Message:
        return await self._answer("GET", "state", None)

    async def _post(self, path: str, body: Message) -> Message:
        return await self._answer("POST", path, body)

    async def _answer(self, method: str, path: str, body: Message | None) -> Message:
        try:
            async with (
                asyncio.timeout(self._seconds),
                self._client.request(method, f"{self._url}/{path}", json=body) as answer,
            ):
                status, text = answer.status, await answer.text(errors="replace")
        except TimeoutError as error:
            raise OpenEnvError(f"{self._url}/{path} did not answer within {self._seconds:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise OpenEnvError(f"{self._url}/{path} cannot be reached: {error}", "Start the server.") from error
        if status in (404, 405):
            raise OpenEnvError(
                f"{self._url} has neither a WebSocket /ws nor POST /{path}",
                "Check the address: is it an OpenEnv server?",
            )
        try:
            content: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            told = f"{self._url}/{path} answered HTTP {status} with what is no JSON: {text[:200]!r}"
            raise (RefusedError(told) if status >= 500 else OpenEnvError(told)) from error
        if status >= 400:
            detail: Any = cast(Message, content).get("detail", content) if isinstance(content, dict) else content
            errors: Message = {"errors": detail} if isinstance(detail, list) else {"message": str(detail)}
            return checked({"type": "error", "data": {"code": f"HTTP {status}", **errors}}, "observation")
        if not isinstance(content, dict):
            raise OpenEnvError(f"{self._url}/{path} answered with no object: {text[:200]!r}")
        return cast(Message, content)

    async def close(self) -> None:
        free, self._free = self._free, _nothing
        try:
            await self._client.close()
        finally:
            free()


def _tools(holder: Any, told: Any) -> list[Message]:
    """The tools that an answer lists. Raises `OpenEnvError` for one that lists none."""
    tools: Any = cast(Message, holder).get("tools") if isinstance(holder, dict) else None
    if not isinstance(tools, list):
        raise OpenEnvError(f"the server lists no tools: {told!s:.300}")
    return [cast(Message, tool) for tool in cast("list[Any]", tools) if isinstance(tool, dict)]


def _nothing() -> None:
    """A session is freed once."""
