"""Requests to one environment server, and its environments, one for each episode: created, reset, used again, closed.

Requests are pooled, bounded in number, each with a deadline. What cannot have reached the server is sent again, and so
is what may safely be; a step is sent once. A server that answers 503 is asked again until the deadline.

An environment is used by one episode at a time. After a whole episode it is kept and reset for the next one, since many
servers cannot close any and some take seconds to make one; after a failure it is never used again. Those that are left
are closed when the program ends, where the server can.
"""

import asyncio
import atexit
import json
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import aiohttp
import httpx
from pydantic import JsonValue

from gavel.base.errors import GavelError
from gavel.base.network import is_on_this_machine
from gavel.integrations.agentgym.protocol import (
    Created,
    Kind,
    RefusedError,
    SessionId,
    Stepped,
    WireError,
    created,
    first_observation,
    stepped,
)

_KEEP_ALIVE = 4.0
"""Seconds. Less than the five after which uvicorn, which these servers run on, closes an idle connection."""
_PAUSES = (0.1, 0.3, 1.0)
"""Seconds before what was not delivered is sent again."""
_BUSY = 0.1
"""Seconds before a busy server is asked again; they double up to one second."""
_UNAVAILABLE = 503
_DETAIL = 300
"""Characters of an answer that an error shows."""


class AgentGymError(GavelError):
    """A server of environments is lost, or cannot be spoken to."""


class NoRouteError(AgentGymError):
    """A server does not offer a path."""


@dataclass(slots=True)
class _OfLoop:
    """What belongs to one event loop."""

    session: aiohttp.ClientSession
    turn: asyncio.Semaphore
    users: int = 0


@dataclass(slots=True, eq=False)
class Connection:
    """The way to one server. May be used by several event loops, one after another or at once."""

    url: str
    """Without a slash at its end."""
    seconds: float
    """That a request may take, once it is sent."""
    concurrency: int
    """Requests at once, for each event loop."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    _of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop] = field(
        default_factory=WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop]
    )

    @asynccontextmanager
    async def used(self) -> AsyncGenerator[None]:
        """Keeps connections open while any block of this kind is entered on the event loop."""
        await self.hold()
        try:
            yield
        finally:
            await self.let_go()

    async def hold(self) -> None:
        loop = asyncio.get_running_loop()
        here = self._of_loops.get(loop)
        if here is None:
            here = self._of_loops[loop] = _OfLoop(self._session(), asyncio.Semaphore(self.concurrency))
        here.users += 1

    async def let_go(self) -> None:
        loop = asyncio.get_running_loop()
        here = self._of_loops[loop]
        here.users -= 1
        if not here.users:
            del self._of_loops[loop]
            await here.session.close()

    def _session(self) -> aiohttp.ClientSession:
        # A server of environments is asked for thousands of steps a second: httpx would take twice the time of each.
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE),  # 0: the semaphore is the limit
            headers=dict(self.headers),
            timeout=aiohttp.ClientTimeout(total=None),  # `ask` has a deadline for each request
            trust_env=not is_on_this_machine(self.url),
        )

    async def ask(self, method: str, path: str, *, once: bool = False, **given: Any) -> Any:
        """The JSON that the server answers. `once`: what may have reached the server is not sent again.

        Raises `RefusedError` for an answer that is an error, `NoRouteError` for a path that it has not, `WireError` for
        one that is no JSON, and `AgentGymError` for a server that is lost, too slow, or that wants another key.
        """
        here = self._of_loops[asyncio.get_running_loop()]
        async with here.turn:
            try:
                async with asyncio.timeout(self.seconds):
                    status, content = await self._delivered(here.session, method, path, once, given)
            except TimeoutError as error:
                raise AgentGymError(
                    f"{self.url}{path} did not answer within {self.seconds:g} s", "Raise it: timeout=… in the address."
                ) from error
            except aiohttp.ClientError as error:
                raise AgentGymError(
                    f"the server at {self.url} is lost: {type(error).__name__} {error}".rstrip(),
                    "Start it, or mend the address.",
                ) from error
        return _value(status, content, f"{self.url}{path}")

    async def _delivered(
        self, session: aiohttp.ClientSession, method: str, path: str, once: bool, given: Mapping[str, Any]
    ) -> tuple[int, bytes]:
        """The status and what it brought."""
        pauses, busy = iter(_PAUSES), _BUSY
        while True:
            try:
                async with session.request(method, self.url + path, allow_redirects=False, **given) as answer:
                    status, content = answer.status, await answer.read()
            except aiohttp.ClientError as error:
                pause = next(pauses, None)
                if pause is None or (once and not isinstance(error, aiohttp.ClientConnectorError)):
                    raise
                await asyncio.sleep(pause)
                continue
            if status != _UNAVAILABLE:
                return status, content
            await asyncio.sleep(busy)
            busy = min(1.0, 2 * busy)


def _value(status: int, content: bytes, url: str) -> Any:
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
            raise RefusedError(f"HTTP {status}: {_start(content).strip() or 'without a reason'}")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise WireError(f"{url} answered what is no JSON: {_start(content)!r}") from error


def _start(content: bytes) -> str:
    return content[:_DETAIL].decode("utf-8", "replace")


_GONE = ("not valid", "deleted", "has finished", "not found", "no environment", "not initialized", "expired")
"""What servers say of an environment that is not there any more."""
_CLIENT_ERROR = "HTTP 4"
_EXIT_SECONDS = 5.0
"""For all environments that are closed when the program ends."""
_POLL = 0.05
logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Session:
    """An environment while an episode has it."""

    environment: Created
    first: str
    """The first observation."""


class EnvServer:
    """The environments of one server."""

    def __init__(self, connection: Connection, kind: Kind, *, wait_seconds: float = 600.0) -> None:
        """`wait_seconds`: for an environment of a server that holds only so many."""
        self.connection = connection
        self.kind = kind
        self._wait_seconds = wait_seconds
        self._idle: deque[Created] = deque()
        self._leased: set[SessionId] = set()
        self._opening = 0
        self._most = kind.environments
        self._bare_create = False
        self.closes = True
        """Whether the server is known, or may be hoped, to close environments."""
        _open.add(self)

    async def begin(self, item: JsonValue) -> Session:
        """An environment that is reset to the item. To be ended by `end`.

        Raises `AgentGymError`.
        """
        await self.connection.hold()
        try:
            return await self._begin(item)
        except BaseException:
            await self.connection.let_go()
            raise

    async def step(self, session: Session, action: str) -> Stepped:
        """Raises `RefusedError` for an error about the action, `AgentGymError` when the environment is lost."""
        body = {session.environment.field: session.environment.id, "action": action}
        try:
            return stepped(await self.connection.ask("POST", "/step", once=True, json=body))
        except WireError as error:
            raise AgentGymError(f"{self.connection.url}: {error.message}") from error
        except RefusedError as error:
            if any(sign in error.message.casefold() for sign in _GONE) or "HTTP 422" in error.message:
                raise AgentGymError(f"{self.connection.url}/step: {error.message}") from error
            raise

    async def look(self, session: Session, path: str) -> Any:
        """What a `GET` of the environment answers. Raises `AgentGymError`."""
        environment = session.environment
        try:
            return await self.connection.ask("GET", path, params={environment.field: environment.id})
        except (RefusedError, WireError) as error:
            raise AgentGymError(f"{self.connection.url}{path}: {error.message}") from error

    async def end(self, session: Session, *, whole: bool) -> None:
        """Gives the environment back. `whole`: nothing failed, and no request of the episode is under way."""
        environment = session.environment
        try:
            if whole:
                self._idle.append(environment)
            else:
                await self._close(environment)
        finally:
            self._leased.discard(environment.id)
            await self.connection.let_go()

    async def _begin(self, item: JsonValue) -> Session:
        if (kept := self._kept()) is not None:
            try:
                return await self._reset(kept, item)
            except (RefusedError, WireError, AgentGymError) as error:  # it may have expired, or the server begun anew
                logger.debug("an environment that was kept is left: %s", error)
                self._leased.discard(kept.id)
                if isinstance(error, RefusedError):
                    self._idle.clear()  # they are of a server that has begun anew
            except BaseException:
                self._leased.discard(kept.id)
                raise
        environment = await self._new()
        try:
            return await self._reset(environment, item)
        except BaseException as error:
            self._leased.discard(environment.id)
            if isinstance(error, RefusedError | WireError):
                await self._close(environment)
                raise AgentGymError(f"{self.connection.url}/reset to item {item}: {error.message}") from error
            raise

    def _kept(self) -> Created | None:
        if not self._idle:
            return None
        environment = self._idle.popleft()
        self._leased.add(environment.id)
        return environment

    async def _new(self) -> Created:
        """A new environment, or one that became free where the server holds no more."""
        limit = asyncio.get_running_loop().time() + self._wait_seconds
        while True:
            if self._most is not None and (kept := self._kept()) is not None:
                return kept
            if self._most is None or len(self._leased) + self._opening < self._most:
                self._opening += 1
                try:
                    environment = await self._create()
                finally:
                    self._opening -= 1
                if environment.id not in self._leased and environment not in self._idle:
                    self._leased.add(environment.id)
                    return environment
                self._most = max(1, len(self._leased) + len(self._idle))  # it gave one away twice: it is full
            if asyncio.get_running_loop().time() > limit:
                raise AgentGymError(
                    f"no environment of {self.connection.url} became free within {self._wait_seconds:g} s: "
                    f"it holds {self._most}",
                    "Run fewer episodes at once.",
                )
            await asyncio.sleep(_POLL)

    async def _create(self) -> Created:
        given = {} if self._bare_create else {"json": {"id": 0}}  # the item of servers that want one; else ignored
        try:
            return created(await self._asked_to_create(given))
        except (RefusedError, WireError) as error:
            raise AgentGymError(f"{self.connection.url}: {error.message}", "Look at the server's log.") from error

    async def _asked_to_create(self, given: Mapping[str, Any]) -> Any:
        try:
            return await self.connection.ask("POST", "/create", **given)
        except RefusedError as error:
            if not given or not error.message.startswith(_CLIENT_ERROR):
                raise
        answer = await self.connection.ask("POST", "/create")
        self._bare_create = True
        return answer

    async def _reset(self, environment: Created, item: JsonValue) -> Session:
        fields = dict.fromkeys(self.kind.index, item) | dict(self.kind.reset)
        body = {**fields, environment.field: environment.id}
        answer = await self.connection.ask("POST", "/reset", json=body)
        first = first_observation(answer)
        session = Session(environment, first or "")
        if first is None:
            session.first = first_observation(await self.look(session, "/observation")) or ""
        return session

    async def _close(self, environment: Created) -> None:
        """Best effort: it is lost to this program in any case."""
        if not self.closes:
            return
        try:
            await self.connection.ask("POST", "/close", json={environment.field: environment.id})
        except NoRouteError:
            self.closes = False
        except (AgentGymError, RefusedError, WireError) as error:
            logger.debug("an environment was not closed: %s", error)

    async def close(self) -> None:
        """Closes the environments that no episode has, where the server can."""
        async with self.connection.used():
            while self._idle:
                await self._close(self._idle.popleft())

    def close_at_exit(self) -> None:
        """The same without an event loop, within a bounded time."""
        if not self._idle or not self.closes:
            return
        url, until = self.connection.url, time.monotonic() + _EXIT_SECONDS
        with httpx.Client(
            timeout=_EXIT_SECONDS, headers=dict(self.connection.headers), trust_env=not is_on_this_machine(url)
        ) as client:
            while self._idle and self.closes and time.monotonic() < until:
                environment = self._idle.popleft()
                answer = client.post(f"{url}/close", json={environment.field: environment.id})
                self.closes = answer.status_code not in (404, 405)


_open: "WeakSet[EnvServer]" = WeakSet()


@atexit.register
def _close_all() -> None:
    for server in list(_open):
        try:
            server.close_at_exit()
        except httpx.HTTPError as error:
            logger.debug("environments of %s were not closed: %s", server.connection.url, error)
