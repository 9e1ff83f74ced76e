"""Per-endpoint concurrency and rate limits: concurrent calls, requests and tokens per minute, timeouts.

Limits belong to the endpoint, not to the caller: all clients of an endpoint share its concurrency (per event loop) and
its minute (per process). The minute is a sliding window, so no 60 seconds hold more than is allowed.
"""

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from anyio import CapacityLimiter

from gavel.llm.activity import Activity
from gavel.llm.errors import LlmError, NotAskedError

MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the calls to one model. Times are in seconds."""

    concurrency: int = 16
    """Max concurrent calls to one model, over all clients of an event loop."""
    timeout: float = 180.0
    """For one attempt."""
    deadline: float = 600.0
    """For a call with all its attempts, from the moment when it holds a token of the concurrency limit; waiting for a
    limit does not count."""
    attempts: int = 6
    requests_per_minute: int | None = None
    """To one model, over all clients of a process; every attempt counts. None = no limit."""
    tokens_per_minute: int | None = None
    """Of prompts and replies: estimated when a request is sent, corrected when its reply arrives."""

    def __post_init__(self) -> None:
        if not (self.concurrency >= 1 and self.attempts >= 1 and self.timeout > 0 and self.deadline > 0):
            raise LlmError(f"a model needs time, attempts and concurrency above 0: {self}.")
        if any(most is not None and most < 1 for most in (self.requests_per_minute, self.tokens_per_minute)):
            raise LlmError(f"a limit per minute must allow at least 1: {self}.")


class Concurrency:
    """A capacity limiter whose capacity is the smallest limit of the calls that wait or run. First in, first out."""

    def __init__(self) -> None:
        self._limiter = CapacityLimiter(1)
        self._limits: Counter[int] = Counter()
        """Calls that wait or run, by their limit."""

    async def acquire(self, call: object, limit: int) -> None:
        """Returns once `call` may run; at most `limit` calls then do."""
        self._add(limit, 1)
        try:
            await self._limiter.acquire_on_behalf_of(call)
        except BaseException:
            self._add(limit, -1)
            raise

    def release(self, call: object, limit: int) -> None:
        self._limiter.release_on_behalf_of(call)
        self._add(limit, -1)

    def _add(self, limit: int, calls: int) -> None:
        self._limits[limit] += calls
        if not self._limits[limit]:
            del self._limits[limit]
        capacity = min(self._limits, default=1)
        if capacity != self._limiter.total_tokens:
            self._limiter.total_tokens = capacity


@dataclass(slots=True)
class SentRequest:
    """A request that was sent: when (in the clock's seconds), and its tokens as far as they are known."""

    at: float
    tokens: int
    in_window: bool = True
    """Whether it was sent in the last minute."""


class MinuteWindow:
    """The requests of the last 60 seconds."""

    def __init__(self) -> None:
        self._sent: deque[SentRequest] = deque()
        self._tokens = 0
        self.lock = threading.Lock()
        """Held from a look at the window to the request that it allows: event loops of other threads share it."""

    def seconds_until(self, now: float, tokens: int, limits: Limits) -> float:
        """Seconds until a request of `tokens` tokens may be sent; 0 = now.

        Raises `NotAskedError` for a request with more tokens than a minute allows.
        """
        while self._sent and self._sent[0].at <= now - MINUTE:
            expired = self._sent.popleft()
            expired.in_window = False
            self._tokens -= expired.tokens
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

    def add(self, now: float, tokens: int) -> SentRequest:
        """Records a request that is sent now."""
        sent = SentRequest(now, tokens)
        self._sent.append(sent)
        self._tokens += tokens
        return sent

    def correct(self, sent: SentRequest, tokens: int) -> None:
        """Replaces the estimated tokens of a request by the actual ones."""
        if sent.in_window:
            self._tokens += tokens - sent.tokens
        sent.tokens = tokens


class EndpointLimits:
    """The state of one endpoint's limits, for one event loop."""

    def __init__(self, window: MinuteWindow) -> None:
        self.concurrency = Concurrency()
        self.window = window
        self._turn = asyncio.Lock()

    async def wait_for_rate(self, tokens: int, limits: Limits, activity: Activity) -> SentRequest:
        """Returns when a request of `tokens` tokens may be sent, first come first served; records it as sent."""
        async with self._turn:
            while True:
                now = time.monotonic()
                with self.window.lock:
                    wait = self.window.seconds_until(now, tokens, limits)
                    if wait == 0:
                        return self.window.add(now, tokens)
                with activity.rate_limited(wait):
                    await asyncio.sleep(wait)


def endpoint_limits(endpoint: Hashable) -> EndpointLimits:
    """The limits of an endpoint in this event loop; all event loops share its minute."""
    of_loop = _limits.setdefault(asyncio.get_running_loop(), {})
    if endpoint not in of_loop:
        of_loop[endpoint] = EndpointLimits(_windows.setdefault(endpoint, MinuteWindow()))
    return of_loop[endpoint]


_limits: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, EndpointLimits]] = WeakKeyDictionary()
_windows: dict[Hashable, MinuteWindow] = {}
