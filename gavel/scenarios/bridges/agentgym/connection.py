"""Requests to one environment server: pooled, bounded in number, each with a deadline.

What cannot have reached the server is sent again, and so is what may safely be; a step is sent once. A server that
answers 503 is asked again until the deadline.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import aiohttp

from gavel.base.errors import GavelError
from gavel.base.network import is_on_this_machine
from gavel.scenarios.bridges.agentgym.wire import RefusedError, WireError

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
            raise RefusedError(f"HTTP {status}: {_excerpt(content).strip() or 'without a reason'}")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise WireError(f"{url} answered what is no JSON: {_excerpt(content)!r}") from error


def _excerpt(content: bytes) -> str:
    return content[:_DETAIL].decode("utf-8", "replace")
