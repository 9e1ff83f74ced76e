"""How hard a judge model may be asked: calls at once, requests and tokens in a minute, seconds to wait.

Limits belong to the model, not to who asks: all clients of an endpoint share its places and its minute. The minute
is a sliding one, so that no 60 seconds, wherever they begin, hold more than is allowed.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from gavel.llm.errors import LlmError, NotAskedError

MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """How hard and how long a judge model may be asked. Times are in seconds."""

    concurrency: int = 16
    """Calls to one model at the same time, over all judges of an event loop."""
    timeout: float = 180.0
    """For one attempt."""
    deadline: float = 600.0
    """For a call with all its attempts, from the moment when it has a slot; waiting for a limit does not count."""
    attempts: int = 6
    requests_per_minute: int | None = None
    """To one model, over all judges of a process; every attempt counts. None = no limit."""
    tokens_per_minute: int | None = None
    """Of prompts and replies: estimated when a request leaves, corrected when its reply is there."""

    def __post_init__(self) -> None:
        if not (self.concurrency >= 1 and self.attempts >= 1 and self.timeout > 0 and self.deadline > 0):
            raise LlmError(f"a judge needs time, attempts and concurrency above 0: {self}.")
        if any(most is not None and most < 1 for most in (self.requests_per_minute, self.tokens_per_minute)):
            raise LlmError(f"a judge that may be asked nothing in a minute cannot judge: {self}.")


class Places:
    """Places among the running calls, given out in the order of asking."""

    def __init__(self) -> None:
        self._taken = 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, limit: int) -> None:
        """Returns when fewer than `limit` places are taken, and then takes one."""
        turn = asyncio.get_running_loop().create_future()
        self._queue.append((limit, turn))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._admit()
            else:
                self.give_back()
            raise

    def give_back(self) -> None:
        self._taken -= 1
        self._admit()

    @asynccontextmanager
    async def one_of(self, limit: int) -> AsyncIterator[None]:
        """Within, a place is held."""
        await self.take(limit)
        try:
            yield
        finally:
            self.give_back()

    def _admit(self) -> None:
        while self._queue:
            limit, turn = self._queue[0]
            if not turn.done():
                if self._taken >= limit:
                    return
                self._taken += 1
                turn.set_result(None)
            self._queue.popleft()


@dataclass(slots=True)
class Sent:
    """A request that left: when (in the clock's seconds), and its tokens so far as they are known."""

    at: float
    tokens: int
    counts: bool = True
    """Whether it is still in the last minute."""


class Minute:
    """The requests of the last 60 seconds."""

    def __init__(self) -> None:
        self._sent: deque[Sent] = deque()
        self._tokens = 0

    def wait(self, now: float, tokens: int, limits: Limits) -> float:
        """Seconds until a request of so many tokens may leave; 0 = now.

        Raises `NotAskedError` for a request that no minute has room for.
        """
        while self._sent and self._sent[0].at <= now - MINUTE:
            gone = self._sent.popleft()
            gone.counts = False
            self._tokens -= gone.tokens
        most_tokens = limits.tokens_per_minute
        if most_tokens is not None and tokens > most_tokens:
            raise NotAskedError(
                f"a request of about {tokens:,} tokens does not fit in {most_tokens:,} tokens per minute.",
                "Raise tokens_per_minute, or judge smaller groups.",
            )
        count, total, until = len(self._sent), self._tokens, now
        for sent in self._sent:
            enough_requests = limits.requests_per_minute is None or count < limits.requests_per_minute
            if enough_requests and (most_tokens is None or total + tokens <= most_tokens):
                break
            count, total, until = count - 1, total - sent.tokens, sent.at + MINUTE
        return until - now

    def leave(self, now: float, tokens: int) -> Sent:
        """Notes that a request leaves."""
        sent = Sent(now, tokens)
        self._sent.append(sent)
        self._tokens += tokens
        return sent

    def correct(self, sent: Sent, tokens: int) -> None:
        """Notes what the request came to."""
        if sent.counts:
            self._tokens += tokens - sent.tokens
        sent.tokens = tokens


class Lane:
    """The way to one endpoint, for one event loop."""

    def __init__(self, minute: Minute) -> None:
        self.places = Places()
        self.minute = minute
        self._first = asyncio.Lock()

    async def pace(self, tokens: int, limits: Limits) -> Sent:
        """Returns when a request of so many tokens may leave, in the order of asking."""
        async with self._first:
            while True:
                now = time.monotonic()
                wait = self.minute.wait(now, tokens, limits)
                if wait == 0:
                    return self.minute.leave(now, tokens)
                await asyncio.sleep(wait)


def lane(endpoint: Hashable) -> Lane:
    """The lane of this event loop to an endpoint; the minute is shared with all other loops."""
    of_loop = _lanes.setdefault(asyncio.get_running_loop(), {})
    if endpoint not in of_loop:
        of_loop[endpoint] = Lane(_minutes.setdefault(endpoint, Minute()))
    return of_loop[endpoint]


_lanes: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, Lane]] = WeakKeyDictionary()
_minutes: dict[Hashable, Minute] = {}
