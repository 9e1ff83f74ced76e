"""Sessions with an OpenEnv server, one per episode: each is a WebSocket.

Every response has a deadline; a session that missed one is never reused, since a late response would be taken for that
of the next request. A full server is retried until `wait` has passed.
"""

import asyncio
import json
import math
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp

from gavel.base.errors import GavelError
from gavel.llm.types import Message

_MOST_BYTES = 100 * 2**20
"""Max bytes of a message, as in OpenEnv's own client."""
_CONNECT_SECONDS, _CLOSE_SECONDS = 15.0, 3.0
FULL, AGENTS, CLOSED = "CAPACITY_REACHED", "VALIDATION_ERROR", ("FACTORY_ERROR", "SESSION_ERROR")
"""Codes of errors: there is no free session; the action is to blame; the server closes the connection."""
_MORE_SESSIONS = "Start the server with more sessions (max_concurrent_envs), or raise wait=."


class OpenEnvError(GavelError):
    """An OpenEnv server cannot be reached, is lost, or speaks another protocol."""


class RefusedError(OpenEnvError):
    """The server answered with an error, of this `code` and with this `data`."""

    def __init__(self, data: Message) -> None:
        self.code, self.data = str(data.get("code", "")), data
        problems: list[str] = []
        for each in cast("list[Any]", data["errors"]) if isinstance(data.get("errors"), list) else []:
            match each:
                case {"loc": [*where], "msg": str(text)}:
                    problems.append(f"{'.'.join(map(str, where)) or 'action'}: {text}")
                case _:
                    problems.append(f"{each!r:.200}")
        told = "; ".join(problems) or str(data.get("message") or "no reason is given")
        remedy = _MORE_SESSIONS if self.code == FULL else ""
        super().__init__(f"the server answered {self.code or 'with an error'}: {told[:500]}", remedy)


@dataclass(frozen=True, slots=True)
class Stepped:
    """An observation of a server."""

    observation: Message
    reward: float | None = None
    done: bool = False
    metadata: Message = field(default_factory=dict[str, Any])


def parse_stepped(data: Message) -> Stepped:
    """Parses the response to `reset` or `step`. Raises `OpenEnvError` for an invalid one."""
    observed = data.get("observation")
    seen = {"text": observed} if isinstance(observed, str) else observed
    if not isinstance(seen, dict):
        raise OpenEnvError(f"the server's answer has no observation: {data!r:.200}")
    seen = cast(Message, seen)
    reward, done = data.get("reward", seen.get("reward")), data.get("done", seen.get("done", False))
    if not isinstance(reward, int | float | None) or (reward is not None and not math.isfinite(reward)):
        raise OpenEnvError(f"the server's reward is no finite number: {reward!r:.100}")
    if not isinstance(done, bool | None):
        raise OpenEnvError(f"the server's done is neither true nor false: {done!r:.100}")
    metadata = data.get("metadata") or seen.get("metadata")
    shown = {name: value for name, value in seen.items() if name not in ("done", "reward", "metadata")}
    told = cast(Message, metadata) if isinstance(metadata, dict) else {}
    return Stepped(shown, None if reward is None else float(reward), bool(done), told)


class Session:
    """An episode's session at a server."""

    def __init__(self, server: "OpenEnvServer") -> None:
        self._server = server
        self._client = aiohttp.ClientSession()
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._is_whole = True

    async def open(self) -> None:
        """Opens the session. Raises `OpenEnvError`; it must be closed even then."""
        address, headers = f"ws{self._server.url.removeprefix('http')}/ws", self._server.headers
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                self._socket = await self._client.ws_connect(address, headers=headers, max_msg_size=_MOST_BYTES)
        except (aiohttp.ClientError, OSError) as error:
            raise OpenEnvError(
                f"{address} cannot be opened as a WebSocket: {type(error).__name__} {error}",
                "Start the server, or check the address; token=NAME sends a bearer token.",
            ) from error

    async def reset(self, data: Message) -> Stepped:
        return parse_stepped(await self._ask("reset", data, "observation"))

    async def step(self, action: Message) -> Stepped:
        return parse_stepped(await self._ask("step", action, "observation"))

    async def tools(self) -> list[Message]:
        """The server's tools. Raises `OpenEnvError` if it lists none."""
        call: Message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        match await self._ask("mcp", call, "mcp"):
            case {"result": {"tools": [*tools]}}:
                return [cast(Message, tool) for tool in tools if isinstance(tool, dict)]
            case answer:
                raise OpenEnvError(f"the server lists no tools: {answer.get('error') or answer!s:.300}")

    async def _ask(self, kind: str, data: Message, wanted: str) -> Message:
        """The data of the response, of the type `wanted`.

        Raises `RefusedError` for an error of the server, `OpenEnvError` for anything else.
        """
        assert self._socket is not None
        url, seconds = self._server.url, self._server.seconds
        if not self._is_whole:
            raise OpenEnvError(f"the session with {url} was given up after an answer that did not come")
        self._is_whole = False
        try:
            async with asyncio.timeout(seconds):
                with suppress(aiohttp.ClientError, OSError):  # messages sent before the close can still be read
                    await self._socket.send_json({"type": kind, "data": data})
                answer = await self._socket.receive()
        except TimeoutError as error:
            late = f"{url} did not answer {kind} within {seconds:g} s"
            raise OpenEnvError(late, "Raise seconds=, or look at the server.") from error
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            raise OpenEnvError(f"the connection to {url} is lost: {error}") from error
        if answer.type is not aiohttp.WSMsgType.TEXT:
            why = f"{answer.extra or self._socket.exception() or answer.type.name}"
            raise OpenEnvError(f"the connection to {url} was closed when {kind} was asked: {why:.200}")
        try:
            message: Any = json.loads(answer.data)
        except (ValueError, RecursionError) as error:
            raise OpenEnvError(f"{url} answered {kind} with what is no JSON: {answer.data[:200]!r}") from error
        self._is_whole = True
        match message:
            case {"type": "error", "data": {**told}}:
                raise RefusedError(cast(Message, told))
            case {"type": found, "data": {**told}} if found == wanted:
                return cast(Message, told)
            case _:
                raise OpenEnvError(f"the server answered with no {wanted}: {message!r:.200}")

    async def close(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                if self._socket is not None and not self._socket.closed:
                    if self._is_whole:
                        await self._socket.send_json({"type": "close"})
                    await self._socket.close()
        except (aiohttp.ClientError, OSError):
            pass  # the connection is gone
        finally:
            self._server.opened -= 1
            await self._client.close()


@dataclass(eq=False)
class OpenEnvServer:
    """A server, and the sessions that are open at it."""

    url: str
    headers: Mapping[str, str]
    seconds: float
    """Timeout of one response."""
    wait: float
    """Max seconds that an episode waits for a free session."""
    sessions: int
    """Max open sessions; fewer once the server has said so."""
    opened: int = 0

    async def begin(self, data: Message) -> tuple[Session, Stepped]:
        """A session reset with `data`, and its first observation. Waits while the server is full.

        Raises `OpenEnvError`.
        """
        until, pause = time.monotonic() + self.wait, 0.05
        full = OpenEnvError(f"no session of {self.url} became free within {self.wait:g} s", _MORE_SESSIONS)
        while True:
            if self.opened < self.sessions:
                self.opened += 1
                session = Session(self)
                try:
                    await session.open()
                    return session, await session.reset(data)
                except BaseException as error:
                    await session.close()
                    if not isinstance(error, RefusedError) or error.code != FULL:
                        raise
                    full, most = error, error.data.get("max_sessions")
                    self.sessions = min(self.sessions, most) if isinstance(most, int) and most > 0 else self.sessions
            if time.monotonic() + pause > until:
                raise full
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(1.5 * pause, 0.5)
