"""A client of one environment server, and a pool of its environments, one per episode: create, reset, reuse, close.

Each request has a deadline. Requests that cannot have reached the server, and idempotent ones, are retried; a step is
sent once. A 503 is retried until the deadline.

An environment is used by one episode at a time. After a complete episode it is kept and reset for the next one, since
many servers cannot close environments and some take seconds to create one; after a failure it is never reused.
Remaining ones are closed at program exit, if the server can.
"""

import asyncio
import atexit
import json
import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import aiohttp
import httpx
from pydantic import JsonValue

from gavel.base.errors import GavelError
from gavel.base.network import is_on_this_machine
from gavel.integrations.agentgym.protocol import (
    AgentGymError,
    Created,
    Kind,
    RefusedError,
    Stepped,
    WireError,
    first_observation,
    parse_created,
    parse_stepped,
)

_CONCURRENCY = 64
"""Max concurrent requests to a server, per event loop."""
_KEEP_ALIVE = 4.0
"""Seconds that an idle connection is kept, less than the five after which uvicorn, which these servers use, closes
it."""
_PAUSES = (0.1, 0.3, 1.0)
"""Seconds before each retry of an undelivered request."""
_GONE = (
    "not valid",
    "deleted",
    "has finished",
    "not found",
    "no environment",
    "not initialized",
    "expired",
    "http 422",
)
"""Servers' messages about an environment that no longer exists."""
_EXIT_SECONDS = 5.0
"""Seconds to close all environments at program exit."""
logger = logging.getLogger(__name__)


class NoRouteError(AgentGymError):
    """A server lacks a path."""


@dataclass(slots=True)
class Session:
    """An environment in use by an episode."""

    http: aiohttp.ClientSession
    environment: Created
    first: str = ""
    """The first observation."""


class EnvServer:
    """One server and its environments. May be used by several event loops, in sequence or concurrently."""

    def __init__(
        self, url: str, kind: Kind, headers: Mapping[str, str], *, seconds: float = 60.0, wait_seconds: float = 600.0
    ) -> None:
        """`url`: without a trailing slash. `seconds`: timeout of a sent request. `wait_seconds`: max wait for an
        environment of a server with limited capacity."""
        self.url = url
        self.kind = kind
        self.seconds = seconds
        self._wait_seconds = wait_seconds
        self._common: dict[str, Any] = {"headers": dict(headers), "trust_env": not is_on_this_machine(url)}
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        self._idle: deque[Created] = deque()
        self._leased: set[int | str] = set()
        self._opening = 0
        self._most: int | None = None
        """Max environments of the server, once it has handed one out twice."""
        self._bare_create = False
        self.closes = True
        """Whether the server is known, or assumed, to close environments."""
        _open.add(self)

    async def begin(self, item: JsonValue) -> Session:
        """Acquires an environment, reset to the item; `end` must release it. Raises `AgentGymError`."""
        # Environment servers get thousands of requests a second; httpx would take twice as long for each.
        http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(keepalive_timeout=_KEEP_ALIVE),
            timeout=aiohttp.ClientTimeout(total=None),  # `_ask` sets a timeout per request
            **self._common,
        )
        try:
            while True:
                environment, is_kept = await self._acquire(http)
                try:
                    return await self._reset(http, environment, item)
                except GavelError as error:
                    if is_kept:  # it may have expired; the next one may be new
                        logger.debug("an environment that was kept is left: %s", error)
                        continue
                    if not isinstance(error, RefusedError | WireError):
                        raise
                    await self._close(http, environment)
                    raise AgentGymError(f"{self.url}/reset to item {item}: {error.message}") from error
        except BaseException:
            await http.close()
            raise

    async def step(self, session: Session, action: str) -> Stepped:
        """Takes a step. Raises `RefusedError` for an error about the action, `AgentGymError` if the environment is
        lost."""
        body = {session.environment.field: session.environment.id, "action": action}
        try:
            return parse_stepped(await self._ask(session.http, "POST", "/step", once=True, json=body))
        except RefusedError as error:
            if any(sign in error.message.casefold() for sign in _GONE):
                raise AgentGymError(f"{self.url}/step: {error.message}") from error
            raise

    async def look(self, session: Session, path: str) -> Any:
        """The response to a `GET` of the environment. Raises `AgentGymError`."""
        environment = session.environment
        try:
            return await self._ask(session.http, "GET", path, params={environment.field: environment.id})
        except RefusedError as error:
            raise AgentGymError(f"{self.url}{path}: {error.message}") from error

    async def end(self, session: Session, *, whole: bool) -> None:
        """Releases the environment. `whole`: no request of the episode failed or is in flight."""
        try:
            if whole:
                self._idle.append(session.environment)
            else:
                await self._close(session.http, session.environment)
        finally:
            self._leased.discard(session.environment.id)
            await session.http.close()

    def close(self) -> None:
        """Closes unused environments, if the server supports it, within a bounded time."""
        until = time.monotonic() + _EXIT_SECONDS
        with httpx.Client(timeout=_EXIT_SECONDS, **self._common) as client:
            while self._idle and self.closes and time.monotonic() < until:
                environment = self._idle.popleft()
                answer = client.post(f"{self.url}/close", json={environment.field: environment.id})
                self.closes = answer.status_code not in (404, 405)

    async def _acquire(self, http: aiohttp.ClientSession) -> tuple[Created, bool]:
        """A kept environment, a new one, or one that became free if the server has reached its capacity; and whether it
        was kept."""
        limit = time.monotonic() + self._wait_seconds
        while True:
            if self._idle:
                environment = self._idle.popleft()
                self._leased.add(environment.id)
                return environment, True
            if self._most is None or len(self._leased) + self._opening < self._most:
                self._opening += 1
                try:
                    environment = await self._create(http)
                finally:
                    self._opening -= 1
                if environment.id not in self._leased and environment not in self._idle:
                    self._leased.add(environment.id)
                    return environment, False
                self._most = max(1, len(self._leased) + len(self._idle))  # it gave one away twice: it is full
            if time.monotonic() > limit:
                raise AgentGymError(
                    f"no environment of {self.url} became free within {self._wait_seconds:g} s: it holds {self._most}",
                    "Run fewer episodes at once.",
                )
            await asyncio.sleep(0.05)

    async def _create(self, http: aiohttp.ClientSession) -> Created:
        """Creates an environment, with the item that some servers require, and without a body if the server rejects
        one."""
        given: dict[str, Any] = {} if self._bare_create else {"json": {"id": 0}}
        try:
            return parse_created(await self._ask(http, "POST", "/create", **given))
        except RefusedError as error:
            if not (given and error.message.startswith("HTTP 4")):
                raise AgentGymError(f"{self.url}/create: {error.message}", "Look at the server's log.") from error
        self._bare_create = True
        return await self._create(http)

    async def _reset(self, http: aiohttp.ClientSession, environment: Created, item: JsonValue) -> Session:
        session = Session(http, environment)
        fields = dict.fromkeys(self.kind.index, item) | dict(self.kind.reset) | {environment.field: environment.id}
        try:
            first = first_observation(await self._ask(http, "POST", "/reset", json=fields))
            session.first = first or first_observation(await self.look(session, "/observation")) or ""
        except BaseException:
            self._leased.discard(environment.id)
            raise
        return session

    async def _close(self, http: aiohttp.ClientSession, environment: Created) -> None:
        """Closes an environment, best effort: this program drops it in any case."""
        try:
            if self.closes:
                await self._ask(http, "POST", "/close", json={environment.field: environment.id})
        except NoRouteError:
            self.closes = False
        except (AgentGymError, RefusedError) as error:
            logger.debug("an environment was not closed: %s", error)

    async def _ask(
        self, http: aiohttp.ClientSession, method: str, path: str, *, once: bool = False, **given: Any
    ) -> Any:
        """The JSON of the server's response. `once`: a request that may have reached the server is not retried.

        Raises `RefusedError` for an error response, `NoRouteError` for an unknown path, `WireError` for invalid JSON,
        and `AgentGymError` if the server is lost, too slow, or requires another key.
        """
        url, pauses, busy = self.url + path, iter(_PAUSES), 0.1
        async with self._turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_CONCURRENCY)):
            try:
                async with asyncio.timeout(self.seconds):
                    while True:
                        try:
                            async with http.request(method, url, allow_redirects=False, **given) as answer:
                                content = await answer.read()
                        except aiohttp.ClientError as error:
                            pause = next(pauses, None)
                            if pause is None or (once and not isinstance(error, aiohttp.ClientConnectorError)):
                                raise
                        else:
                            if answer.status != 503:
                                return _parse_answer(answer.status, content, url)
                            pause, busy = busy, min(1.0, 2 * busy)
                        await asyncio.sleep(pause)
            except TimeoutError as error:
                raise AgentGymError(
                    f"{url} did not answer within {self.seconds:g} s", "Raise it: timeout=… in the address."
                ) from error
            except aiohttp.ClientError as error:
                raise AgentGymError(
                    f"the server at {self.url} is lost: {type(error).__name__} {error}".rstrip(),
                    "Start it, or mend the address.",
                ) from error


def _parse_answer(status: int, content: bytes, url: str) -> Any:
    start = content[:300].decode("utf-8", "replace")
    match status:
        case 200 | 201:
            pass
        case 401 | 403:
            raise AgentGymError(f"{url} wants another key.", "Set GAVEL_ENV_KEY to the server's key.")
        case 404 | 405:
            raise NoRouteError(f"{url} is not offered", "Check the address: some servers have a path, such as /maze.")
        case _ if 300 <= status < 400:
            raise AgentGymError(f"{url} leads elsewhere (HTTP {status})", "Give the address that it leads to.")
        case _:
            raise RefusedError(f"HTTP {status}: {start.strip() or 'without a reason'}")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise WireError(f"{url} answered what is no JSON: {start!r}") from error


_open: "WeakSet[EnvServer]" = WeakSet()


@atexit.register
def _close_all() -> None:
    for server in list(_open):
        try:
            server.close()
        except httpx.HTTPError as error:
            logger.debug("environments of %s were not closed: %s", server.url, error)
