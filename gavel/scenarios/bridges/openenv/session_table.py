"""The open sessions of a server: bounded in number, closed when nobody uses them."""

import asyncio
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager

from gavel.scenarios.bridges.openenv.served import ServedError, ServedSession
from gavel.scenarios.scenario import Scenario

_CHECK_SECONDS = 30.0
"""Between two looks for idle sessions, at most."""


class FullError(Exception):
    """No further session can be opened."""

    def __init__(self, active: int, most: int) -> None:
        super().__init__(f"Server at capacity: {active}/{most} sessions active")
        self.counts = {"active_sessions": active, "max_sessions": most}


class SessionTable:
    def __init__(self, scenario: Scenario, most: int, idle_seconds: float) -> None:
        self._scenario = scenario
        self._most = most
        self._idle_seconds = idle_seconds
        self._sessions: dict[str, ServedSession] = {}
        self._used: dict[str, float] = {}
        self._attached: set[str] = set()

    def begin(self) -> str:
        """The id of a new session. Raises `FullError`."""
        if len(self._sessions) >= self._most:
            raise FullError(len(self._sessions), self._most)
        name = str(uuid.uuid4())
        self._sessions[name] = ServedSession(self._scenario)
        self._used[name] = time.monotonic()
        return name

    def get(self, name: str) -> ServedSession:
        """Raises `ServedError` for a session that is not open."""
        if name not in self._sessions:
            raise ServedError(f"Unknown session_id: {name or 'none is given'}")
        self._used[name] = time.monotonic()
        return self._sessions[name]

    @contextmanager
    def attached(self, name: str) -> Generator[None]:
        """The session belongs to one WebSocket for as long. Raises `ServedError` when it has one, or is not open."""
        self.get(name)
        if name in self._attached:
            raise ServedError(f"Session {name} already has an attached WebSocket")
        self._attached.add(name)
        try:
            yield
        finally:
            self._attached.discard(name)

    def is_attached(self, name: str) -> bool:
        return name in self._attached

    async def end(self, name: str) -> None:
        """Closes a session. Raises `ServedError` for one that is not open."""
        session = self.get(name)
        try:
            await session.close()
        finally:
            self._sessions.pop(name, None)
            self._used.pop(name, None)

    async def end_all(self) -> None:
        for name in list(self._sessions):
            await self.end(name)

    async def expire(self) -> None:
        """Closes idle sessions, for ever."""
        while True:
            await asyncio.sleep(min(self._idle_seconds / 4, _CHECK_SECONDS))
            now = time.monotonic()
            for name, used in list(self._used.items()):
                if name in self._sessions and name not in self._attached and now - used > self._idle_seconds:
                    await self.end(name)
