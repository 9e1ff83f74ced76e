"""Sessions with an OpenEnv server, one per episode.

A session is a separate WebSocket. A server that has only HTTP keeps one environment, so its episodes run sequentially.
Every response has a deadline; a session that missed one is never reused, since a late response would be taken for that
of the next request. A full server is retried until `wait` has passed.
"""

import asyncio
import json
import math
import os
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, cast
from weakref import WeakKeyDictionary

import aiohttp
from anyio import CapacityLimiter
from pydantic import Field, model_validator

from gavel.base.errors import GavelError
from gavel.base.network import server_address
from gavel.llm.types import Message
from gavel.scenarios.packaged_world import SeedOptions
from gavel.scenarios.packaged_world import parsed as parsed_address
from gavel.scenarios.scenario import ScenarioError
from gavel.scenarios.tool_results import text_of_result

_MOST_BYTES = 100 * 2**20
"""Max bytes of a message, as in OpenEnv's own client."""
_CONNECT_SECONDS, _CLOSE_SECONDS = 15.0, 3.0
_MORE_SESSIONS = "Start the server with more sessions (max_concurrent_envs), or raise wait=."


class Options(SeedOptions):
    """The query of an address. `tasks` and `held_out`: max number of seeds, or of the server's tasks if it lists
    some."""

    turns: int | None = Field(default=None, ge=1)
    """Max turns of the agent; by default the server's limit, or 20."""
    style: Literal["tools", "text"] = "tools"
    """tools: the agent calls tools. text: its words are the action, for an action with one text field."""
    show: str | None = None
    """Observation fields shown to the agent, separated by commas; by default all non-empty ones."""
    success: float | None = None
    """Min sum of rewards of a successful episode."""
    low: float | None = None
    high: float | None = None
    """Range of the sum of rewards: `environment_reward` is then normalised to 0..1."""
    seconds: float = Field(default=60.0, gt=0)
    """Timeout in seconds of one response."""
    wait: float = Field(default=1800.0, gt=0)
    """Max seconds that an episode waits for a free session."""
    sessions: int = Field(default=256, ge=1)
    """Max open sessions; fewer if the server says so."""
    token: str | None = None
    """Environment variable whose value is sent as a bearer token."""

    @model_validator(mode="after")
    def _range(self) -> "Options":
        if (self.low is None) != (self.high is None):
            raise ValueError("low and high belong together")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ValueError("low must be below high")
        return self

    def headers(self) -> dict[str, str]:
        """The request headers. Raises `ScenarioError` if the variable that `token` names is not set."""
        if self.token is None:
            return {}
        if not (value := os.environ.get(self.token)):
            raise ScenarioError(
                f"token={self.token} names an environment variable that is not set", f"export {self.token}=…"
            )
        return {"Authorization": f"Bearer {value}"}


def parsed(address: str) -> tuple[str, Options]:
    """The server's URL, without a trailing slash, and the options. Raises `ScenarioError`."""
    name, options, _ = parsed_address("openenv", address, Options, all_known=True)
    name = f"http{name.removeprefix('ws')}" if name.startswith("ws") else name
    try:
        return server_address(name.rstrip("/").removesuffix("/ws")), options
    except ValueError as error:
        raise ScenarioError(
            f"openenv: {error}.", "Write its URL: openenv:http://localhost:8000?tasks=200&seed=1"
        ) from error


class OpenEnvError(GavelError):
    """An OpenEnv server cannot be reached, is lost, or speaks another protocol."""


class RefusedError(OpenEnvError):
    """The server answered with an error, and the session continues."""

    is_agents = False
    """Whether the action is to blame: it is invalid by the server's schema."""


class CapacityError(OpenEnvError):
    """The server has no free session."""

    sessions: int | None = None
    """The server's number of sessions, if it reports it."""


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


def text_of(observation: Message, fields: Sequence[str] | None = None) -> str:
    """The observation as text for the agent: its single non-empty field if that is a text, else all fields as JSON.

    `fields`: the ones to show.
    """
    names = observation if fields is None else [name for name in fields if name in observation]
    shown = {name: observation[name] for name in names if observation[name] not in (None, "", [], {})}
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


def _error(data: Message) -> OpenEnvError:
    """The error of a message about one."""
    code, message = str(data.get("code", "")), str(data.get("message") or "no reason is given")
    if code == "CAPACITY_REACHED":
        full, sessions = CapacityError(message, _MORE_SESSIONS), data.get("max_sessions")
        full.sessions = sessions if isinstance(sessions, int) and sessions > 0 else None
        return full
    problems: list[str] = []
    for each in cast("list[Any]", data["errors"])[:5] if isinstance(data.get("errors"), list) else []:
        match each:
            case {"loc": [*where], "msg": str(text)}:
                problems.append(f"{'.'.join(map(str, where)) or 'action'}: {text}")
            case _:
                problems.append(f"{each!r:.200}")
    told = f"the server answered {code or 'with an error'}: {('; '.join(problems) or message)[:500]}"
    if code in ("FACTORY_ERROR", "SESSION_ERROR"):  # after which the server closes the connection
        return OpenEnvError(told)
    refused = RefusedError(told)
    refused.is_agents = code in ("VALIDATION_ERROR", "HTTP 400", "HTTP 422")
    return refused


class Session:
    """An episode's session at a server, within `limiter`."""

    def __init__(self, url: str, seconds: float, limiter: CapacityLimiter) -> None:
        self._url = url
        self._seconds = seconds
        self._limiter = limiter
        self._client: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._is_whole = True

    async def open(self, headers: dict[str, str]) -> None:
        """Opens the session. Raises `OpenEnvError`; it must be closed even then."""
        address = "ws" + self._url.removeprefix("http") + "/ws"
        self._client = aiohttp.ClientSession()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                self._socket = await self._client.ws_connect(address, headers=headers, max_msg_size=_MOST_BYTES)
        except (aiohttp.ClientError, OSError) as error:
            raise OpenEnvError(
                f"{address} cannot be opened as a WebSocket: {type(error).__name__} {error}",
                "Start the server, or check the address; token=NAME sends a bearer token.",
            ) from error

    async def reset(self, data: Message) -> Stepped:
        return parse_stepped(await self._ask("reset", {"data": data}, "observation"))

    async def step(self, action: Message) -> Stepped:
        return parse_stepped(await self._ask("step", {"data": action}, "observation"))

    async def tools(self) -> list[Message]:
        """The server's tools. Raises `OpenEnvError` if it lists none."""
        call: Message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        match await self._ask("mcp", {"data": call}, "mcp"):
            case {"result": {"tools": [*tools]}}:
                return [cast(Message, tool) for tool in tools if isinstance(tool, dict)]
            case answer:
                raise OpenEnvError(f"the server lists no tools: {answer.get('error') or answer!s:.300}")

    async def _ask(self, kind: str, more: Message, wanted: str) -> Message:
        """The data of the response, of the type `wanted`.

        Raises `CapacityError`, `RefusedError` for an error that leaves the session, `OpenEnvError` for anything else.
        """
        assert self._socket is not None
        if not self._is_whole:
            raise OpenEnvError(f"the session with {self._url} was given up after an answer that did not come")
        self._is_whole = False
        try:
            async with asyncio.timeout(self._seconds):
                with suppress(aiohttp.ClientError, OSError):  # messages sent before the close can still be read
                    await self._socket.send_json({"type": kind, **more})
                answer = await self._socket.receive()
        except TimeoutError as error:
            late = f"{self._url} did not answer {kind} within {self._seconds:g} s"
            raise OpenEnvError(late, "Raise seconds=, or look at the server.") from error
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            raise OpenEnvError(f"the connection to {self._url} is lost: {error}") from error
        if answer.type is not aiohttp.WSMsgType.TEXT:
            why = f"{answer.extra or self._socket.exception() or answer.type.name}"
            raise OpenEnvError(f"the connection to {self._url} was closed when {kind} was asked: {why:.200}")
        try:
            message: Any = json.loads(answer.data)
        except (ValueError, RecursionError) as error:
            raise OpenEnvError(f"{self._url} answered {kind} with what is no JSON: {answer.data[:200]!r}") from error
        self._is_whole = True
        match message:
            case {"type": "error", "data": {**data}}:
                raise _error(cast(Message, data))
            case {"type": found, "data": {**data}} if found == wanted:
                return cast(Message, data)
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
            self._limiter.release_on_behalf_of(self)
            if self._client is not None:
                await self._client.close()


class OpenEnvServer:
    """A server, and its number of sessions."""

    def __init__(self, url: str, options: Options) -> None:
        self.url = url
        self._options = options
        self._sessions = options.sessions
        self._headers = options.headers()
        self._limiters: WeakKeyDictionary[asyncio.AbstractEventLoop, CapacityLimiter] = WeakKeyDictionary()

    async def begin(self, data: Message) -> tuple[Session, Stepped]:
        """A session reset with `data`, and its first observation. Waits while the server is full.

        Raises `OpenEnvError`.
        """
        until = time.monotonic() + self._options.wait
        limiter = self._limiters.setdefault(asyncio.get_running_loop(), CapacityLimiter(self._sessions))
        pause = 0.05
        while True:
            session = Session(self.url, self._options.seconds, limiter)
            try:
                async with asyncio.timeout(max(until - time.monotonic(), 0.0)):
                    await limiter.acquire_on_behalf_of(session)
            except TimeoutError as error:
                late = f"no session of {self.url} became free within {self._options.wait:g} s"
                raise OpenEnvError(late, _MORE_SESSIONS) from error
            try:
                await session.open(self._headers)
                return session, await session.reset(data)
            except BaseException as error:
                await session.close()
                if not isinstance(error, CapacityError) or until - time.monotonic() <= pause:
                    raise
                if error.sessions is not None and error.sessions < limiter.total_tokens:
                    limiter.total_tokens = self._sessions = error.sessions
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, 2.0)
