"""Sessions with a server of OpenEnv, one for each episode.

A session is a WebSocket of its own. A server that has only HTTP keeps one environment, so its episodes run one after
another. Every answer has a deadline; a session whose answer did not come is never used again, since a late answer would
be taken for that of the next question. A server that is full is asked again until `wait` is over.
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
from urllib.parse import parse_qsl, urlsplit, urlunsplit
from weakref import WeakKeyDictionary

import aiohttp
from anyio import CapacityLimiter
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gavel.base.errors import GavelError
from gavel.llm.types import Message
from gavel.scenarios.scenario import ScenarioError
from gavel.scenarios.tool_results import text_of_result

SEED_BLOCK = 1_000_000
"""Seeds of one list of tasks: the first half is trained on, the second held out."""


class Options(BaseModel):
    """The query of an address."""

    model_config = ConfigDict(extra="forbid")

    tasks: int = Field(default=200, ge=1, le=SEED_BLOCK // 2)
    """Tasks to train on, at most: seeds, or tasks of the server where it lists some."""
    held_out: int = Field(default=50, ge=0, le=SEED_BLOCK // 2)
    """Tasks held out, at most."""
    seed: int = Field(default=0, ge=0, lt=2**31 // SEED_BLOCK)
    """Another number gives other seeds, none of them in both lists of any other."""
    turns: int | None = Field(default=None, ge=1)
    """Turns of the agent, at most; by default what the server says, or 20."""
    style: Literal["auto", "tools", "text"] = "auto"
    """tools: the agent calls tools. text: its words are the action, for an action of one text field. auto: text where
    the server has no tools and its action is one text field."""
    show: str | None = None
    """Fields of an observation that the agent is shown, separated by commas; by default all that say something."""
    success: float | None = None
    """A sum of rewards from which an episode counts as a success."""
    low: float | None = None
    high: float | None = None
    """Range of the sum of rewards: `environment_reward` is then normalised to 0..1."""
    seconds: float = Field(default=60.0, gt=0)
    """That one answer of the server may take."""
    wait: float = Field(default=1800.0, gt=0)
    """Seconds that an episode may wait for a free session."""
    sessions: int = Field(default=256, ge=1)
    """Open at a time; fewer where the server says so."""
    token: str | None = None
    """Environment variable whose value is sent as a bearer token."""

    @model_validator(mode="after")
    def _range(self) -> "Options":
        if (self.low is None) != (self.high is None):
            raise ValueError("low and high belong together")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ValueError("low must be below high")
        return self

    @property
    def fields(self) -> list[str] | None:
        return None if self.show is None else [name.strip() for name in self.show.split(",") if name.strip()]

    def headers(self) -> dict[str, str]:
        """Raises `ScenarioError` when the variable that `token` names is not set."""
        if self.token is None:
            return {}
        if not (value := os.environ.get(self.token)):
            raise ScenarioError(
                f"token={self.token} names an environment variable that is not set", f"export {self.token}=…"
            )
        return {"Authorization": f"Bearer {value}"}


def parsed(address: str) -> tuple[str, Options]:
    """The server's URL, without a slash at its end, and the options. Raises `ScenarioError`."""
    parts = urlsplit(address)
    schemes = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
    if parts.scheme not in schemes or not parts.hostname:
        raise ScenarioError(
            f"openenv:{address} names no server", "Write its URL: openenv:http://localhost:8000?tasks=200&seed=1"
        )
    path = parts.path.rstrip("/").removesuffix("/ws")
    given = parse_qsl(parts.query, keep_blank_values=True)
    try:
        options = Options.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "options"
        raise ScenarioError(
            f"openenv:{address}: {name}: {first['msg']}", f"Options are {', '.join(Options.model_fields)}."
        ) from error
    return urlunsplit((schemes[parts.scheme], parts.netloc, path, "", "")), options


_OUTER = ("done", "reward", "metadata")


class OpenEnvError(GavelError):
    """A server of OpenEnv cannot be reached, is lost, or does not speak the protocol."""


class RefusedError(OpenEnvError):
    """The server answered with an error, and the session goes on."""

    def __init__(self, message: str, *, is_agents: bool = False) -> None:
        super().__init__(message)
        self.is_agents = is_agents
        """Whether the action is to blame: it is none by the server's schema."""


class CapacityError(OpenEnvError):
    """The server has no free session."""

    def __init__(self, message: str, sessions: int | None) -> None:
        super().__init__(message, "Start the server with more sessions (max_concurrent_envs).")
        self.sessions = sessions
        """That it holds, if it says so."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """An observation of a server."""

    observation: Message
    reward: float | None = None
    done: bool = False
    metadata: Message = field(default_factory=dict[str, Any])


_AGENTS = ("VALIDATION_ERROR", "HTTP 400", "HTTP 422")
"""Codes of errors about an action that is none."""
_LASTING = ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR")
"""Codes of errors after which the server closes the connection."""


def checked(message: Any, wanted: str) -> Message:
    """The data of a message of the type that was wanted.

    Raises `CapacityError`, `RefusedError` for an error that leaves the session, `OpenEnvError` for anything else.
    """
    given = _object(message) or {}
    kind, data = given.get("type"), _object(given.get("data"))
    if kind == "error" and data is not None:
        raise _error(data)
    if kind != wanted or data is None:
        raise OpenEnvError(f"the server answered with no {wanted}: {_excerpt(message)}")
    return data


def stepped(data: Any) -> Stepped:
    """What `reset` and `step` answer. Raises `OpenEnvError` for what is none."""
    given = _object(data) or {}
    observed = given.get("observation")
    seen = {"text": observed} if isinstance(observed, str) else _object(observed)
    if seen is None:
        raise OpenEnvError(f"the server's answer has no observation: {_excerpt(data)}")
    reward = given.get("reward", seen.get("reward"))
    if not isinstance(reward, int | float | None) or (reward is not None and not math.isfinite(reward)):
        raise OpenEnvError(f"the server's reward is no finite number: {reward!r}")
    done = given.get("done", seen.get("done", False))
    if not isinstance(done, bool | None):
        raise OpenEnvError(f"the server's done is neither true nor false: {done!r:.100}")
    metadata = _object(given.get("metadata") or seen.get("metadata"))
    return Stepped(
        {name: value for name, value in seen.items() if name not in _OUTER},
        None if reward is None else float(reward),
        bool(done),
        metadata or {},
    )


def text_of(observation: Message, fields: Sequence[str] | None = None) -> str:
    """What an agent reads: the one field that says something where that is a text, else all of them as JSON.

    `fields`: those that are shown.
    """
    shown = {name: observation[name] for name in fields if name in observation} if fields is not None else observation
    shown = {name: value for name, value in shown.items() if value not in (None, "", [], {})}
    match list(shown.values()):
        case []:
            return ""
        case [str(text)]:
            return bounded(text_of_result(text))
        case _:
            return bounded(text_of_result(shown))


def tool_text(result: Any) -> tuple[str, bool]:
    """What an agent reads of an MCP tool's result, and whether the tool failed."""
    given = _object(result) or {}
    blocks: Any = given.get("content")
    if not isinstance(blocks, list):
        return bounded(text_of_result(result)), False
    texts = [_block(block) for block in cast("list[Any]", blocks)]
    return bounded("\n".join(texts)), bool(given.get("is_error") or given.get("isError"))


def bounded(text: str) -> str:
    more = len(text) - MOST_CHARACTERS
    return text if more <= 0 else f"{text[:MOST_CHARACTERS]}\n[{more:,} more characters]"


def _block(block: Any) -> str:
    match block:
        case {"type": "text", "text": str(text)}:
            return text_of_result(text)
        case {"type": "image" | "audio" as kind}:
            return f"[{kind}, not shown]"
        case _:
            return text_of_result(block)


def _error(data: Message) -> OpenEnvError:
    code, message = str(data.get("code", "")), str(data.get("message") or "no reason is given")
    if code == "CAPACITY_REACHED":
        sessions = data.get("max_sessions")
        return CapacityError(message, sessions if isinstance(sessions, int) and sessions > 0 else None)
    problems: Any = data.get("errors")
    if isinstance(problems, list):
        message = "; ".join(_problem(each) for each in cast("list[Any]", problems)[:5]) or message
    told = f"the server answered {code or 'with an error'}: {message[:500]}"
    return OpenEnvError(told) if code in _LASTING else RefusedError(told, is_agents=code in _AGENTS)


def _problem(error: Any) -> str:
    given = _object(error) or {}
    where, text = given.get("loc"), given.get("msg")
    if not isinstance(where, list) or not isinstance(text, str):
        return _excerpt(error)
    return f"{'.'.join(map(str, cast('list[Any]', where))) or 'action'}: {text}"


def _object(value: Any) -> Message | None:
    return cast(Message, value) if isinstance(value, dict) else None


def _excerpt(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


_MOST_BYTES = 100 * 2**20
"""Of one message: what OpenEnv's own client takes."""
_CONNECT_SECONDS = 15.0
_CLOSE_SECONDS = 3.0
_BACKOFF_SECONDS = 0.05, 2.0
"""Between two questions whether a full server has a session, at first and at most."""


class Session:
    """An episode's place on a server."""

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
            raise OpenEnvError(
                f"{address} is no WebSocket: HTTP {error.status}",
                "Is it a server of OpenEnv? Look at its log; token=NAME sends a bearer token.",
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


class OpenEnvServer:
    """A server, and how many sessions it holds."""

    def __init__(self, url: str, options: Options) -> None:
        self.url = url
        self._seconds = options.seconds
        self._wait = options.wait
        self._sessions = options.sessions
        self._headers = options.headers()
        self._limiters: WeakKeyDictionary[asyncio.AbstractEventLoop, CapacityLimiter] = WeakKeyDictionary()

    def __str__(self) -> str:
        return self.url

    async def begin(self, data: Message) -> tuple[Session, Stepped]:
        """A session that is reset with `data`, and its first observation. Waits while the server is full.

        Raises `OpenEnvError`.
        """
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

        session = Session(self.url, self._seconds, free)
        await session.open(self._headers)
        return session

    def _limiter(self) -> CapacityLimiter:
        loop = asyncio.get_running_loop()
        if loop not in self._limiters:
            self._limiters[loop] = CapacityLimiter(self._sessions)
        return self._limiters[loop]


def _tools(holder: Any, told: Any) -> list[Message]:
    """The tools that an answer lists. Raises `OpenEnvError` for one that lists none."""
    tools: Any = cast(Message, holder).get("tools") if isinstance(holder, dict) else None
    if not isinstance(tools, list):
        raise OpenEnvError(f"the server lists no tools: {told!s:.300}")
    return [cast(Message, tool) for tool in cast("list[Any]", tools) if isinstance(tool, dict)]


def _nothing() -> None:
    """A session is freed once."""


MOST_CHARACTERS = 200_000
"""Of an observation that an agent is shown."""
