"""Limits and delays of a call: concurrency, rates, its deadline, pauses after failures, and a circuit breaker.

Limits belong to the endpoint, not to the caller: all clients of an endpoint share its concurrency (per event loop) and
its minute (per process). The minute is a sliding window, so no 60 seconds exceed the limit.
"""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Hashable
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakKeyDictionary

from anyio import CapacityLimiter, WouldBlock

from gavel.llm.errors import LlmError, NotAskedError
from gavel.llm.failures import is_rate_limit, may_pass, pause, shorten_words
from gavel.llm.types import CachedPrefix, Reply

MINUTE = 60.0
_WORTH_TELLING, _SILENT = 1.0, 20.0
"""Min seconds of a wait, and of a request without a reply, that are shown."""
_RATE_LIMITED = "rate limited"
_WORDS = 120
"""Characters of an error that are shown while it is waited for."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the calls to one model. Times are in seconds."""

    concurrency: int = 16
    """Max concurrent calls to one model, over all clients of an event loop; the smallest of their values applies."""
    timeout: float = 180.0
    """Timeout of one attempt."""
    deadline: float = 600.0
    """Time limit of a call: temporary failures, such as an outage, are retried until then. Waiting for a limit does not
    count."""
    requests_per_minute: int | None = None
    """Rate limit of one model, over all clients of a process; every attempt counts. None = no limit."""
    tokens_per_minute: int | None = None
    """Tokens of prompts and replies: estimated when a request is sent, corrected when its reply arrives."""


class Activity:
    """Current waits of the calls of a set of clients, from any thread; for a live line."""

    def __init__(self) -> None:
        self._waits: dict[object, tuple[float, str]] = {}
        self._asked: dict[object, tuple[float, str]] = {}
        """Per waiting call, the `time.monotonic` at which it continues, and the reason; per unanswered request, that at
        which it was sent, and its model."""

    @contextmanager
    def asking(self, model: str) -> Generator[None]:
        """Registers an unanswered request to `model` while the block runs."""
        self._asked[key := object()] = time.monotonic(), model
        try:
            yield
        finally:
            del self._asked[key]

    async def sleep(self, seconds: float, reason: str) -> None:
        """Sleeps, registered as a call that waits for this reason."""
        self._waits[key := object()] = time.monotonic() + seconds, reason
        try:
            await asyncio.sleep(seconds)
        finally:
            del self._waits[key]

    @property
    def waiting(self) -> str:
        """The longest remaining wait in words: "rate limited, 20 s"; else the oldest request, from 20 s on: "openai/m
        has not answered for 25 s"; "" if nothing waits."""
        now = time.monotonic()
        until, reason = max(list(self._waits.values()), default=(0.0, ""))  # copied: other threads add to them
        sent, model = min(list(self._asked.values()), default=(now, ""))
        if until - now >= _WORTH_TELLING:
            return f"{reason}, {until - now:.0f} s"
        return f"{model} has not answered for {now - sent:.0f} s" if now - sent >= _SILENT else ""


class Breaker:
    """A circuit breaker of one client: after an error that other requests would hit too, such as a wrong key, an empty
    account or an unknown model, nothing more is sent.

    Once a minute one request may test whether it is fixed. A probe may be set to go before all others.
    """

    def __init__(self) -> None:
        self._error: LlmError | None = None
        self._opened = 0.0
        self._probing: Future[None] | None = None
        self._first = threading.Lock()

    @property
    def error(self) -> LlmError | None:
        """Reason why nothing is sent now."""
        return self._error if time.monotonic() < self._opened + MINUTE else None

    def open(self, error: LlmError) -> None:
        self._error, self._opened = error, time.monotonic()

    def close(self) -> None:
        self._error = None

    def check(self) -> None:
        """While open, raises `NotAskedError` with the message of the error that opened it."""
        if (error := self.error) is not None:
            raise NotAskedError(error.message, error.remedy) from error
        self._opened = time.monotonic()

    def await_probe(self) -> None:
        self._probing, self._first = Future(), threading.Lock()

    async def probed(self, probe: Callable[[], Awaitable[object]]) -> None:
        """Returns once the probe is done; the first caller runs it. Raises what `probe` raises, in that caller."""
        probing = self._probing
        if probing is None or probing.done():
            return
        if not self._first.acquire(blocking=False):
            await asyncio.wait([asyncio.wrap_future(probing)])
            return
        try:
            await probe()
        except LlmError as error:
            if not isinstance(error, NotAskedError):  # for example a spent budget
                self.open(error)
            raise
        finally:
            probing.set_result(None)


@dataclass(slots=True)
class SentRequest:
    """A sent request: its time (in the clock's seconds), and its tokens, first estimated, then as the reply reports."""

    at: float
    tokens: int


class MinuteWindow:
    """The requests of the last 60 seconds."""

    def __init__(self) -> None:
        self._sent: deque[SentRequest] = deque()
        self._lock = threading.Lock()
        """Event loops of other threads share the window."""

    def send(self, now: float, tokens: int, limits: Limits) -> SentRequest | float:
        """Records a request of `tokens` tokens that is sent now, or returns the seconds until it may be sent.

        Raises `NotAskedError` for a request with more tokens than a minute allows.
        """
        most_tokens, most_requests = limits.tokens_per_minute or math.inf, limits.requests_per_minute or math.inf
        if tokens > most_tokens:
            raise NotAskedError(
                f"a request of about {tokens:,} tokens does not fit in {most_tokens:,} tokens per minute.",
                "Raise tokens_per_minute, or judge smaller groups.",
            )
        with self._lock:
            while self._sent and self._sent[0].at <= now - MINUTE:
                self._sent.popleft()
            counted = self._sent if min(most_requests, most_tokens) < math.inf else ()
            count, total, until = len(counted), sum(sent.tokens for sent in counted), now
            for sent in counted:
                if count < most_requests and total + tokens <= most_tokens:
                    break
                count, total, until = count - 1, total - sent.tokens, sent.at + MINUTE
            if until > now:
                return until - now
            self._sent.append(request := SentRequest(now, tokens))
            return request


class EndpointLimits:
    """The state of one endpoint's limits, for one event loop."""

    def __init__(self, window: MinuteWindow) -> None:
        self.concurrency = CapacityLimiter(math.inf)
        self.window, self.turn = window, asyncio.Lock()


def endpoint_limits(endpoint: Hashable) -> EndpointLimits:
    """The limits of an endpoint in this event loop; all event loops share its minute window."""
    of_loop = _limits.setdefault(asyncio.get_running_loop(), {})
    if endpoint not in of_loop:
        of_loop[endpoint] = EndpointLimits(_windows.setdefault(endpoint, MinuteWindow()))
    return of_loop[endpoint]


_limits: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, EndpointLimits]] = WeakKeyDictionary()
_windows: dict[Hashable, MinuteWindow] = {}


class Call:
    """One call in flight: its slot of the endpoint's concurrency, and its deadline, which waiting for a limit extends,
    since the model is not the cause of that delay."""

    def __init__(
        self, endpoint: EndpointLimits, limits: Limits, activity: Activity, prefix: CachedPrefix, patience: float
    ) -> None:
        """`patience`: seconds after which nothing is retried, if sooner than the deadline."""
        self.prefix = prefix
        self.reply, self.attempts = Reply(""), 0
        self.may_be_paid = False
        """Whether a failed attempt may be charged by the server."""
        self._endpoint, self._limits, self._activity = endpoint, limits, activity
        self._deadline = time.monotonic() + limits.deadline
        self._reserved = max(0.0, limits.deadline - patience)
        self._running = False

    @property
    def attempt_seconds(self) -> float:
        """Max seconds of an attempt that starts now."""
        return max(0.0, min(self._limits.timeout, self._deadline - time.monotonic()))

    async def acquire(self) -> None:
        """Waits for a concurrency slot; the call counts as running until `release`."""
        limiter = self._endpoint.concurrency
        limiter.total_tokens = min(limiter.total_tokens, self._limits.concurrency)
        try:
            limiter.acquire_on_behalf_of_nowait(self)
        except WouldBlock:
            await self.off_the_clock(limiter.acquire_on_behalf_of(self))
        self._running = True

    def release(self) -> None:
        if self._running:
            self._running = False
            self._endpoint.concurrency.release_on_behalf_of(self)

    async def wait_for_rate(self, tokens: int) -> SentRequest:
        """Returns when a request of `tokens` tokens may be sent, first come first served; records it as sent."""
        since = time.monotonic()
        async with self._endpoint.turn:
            while not isinstance(
                sent := self._endpoint.window.send(time.monotonic(), tokens, self._limits), SentRequest
            ):
                await self._activity.sleep(sent, _RATE_LIMITED)
        self._deadline += time.monotonic() - since
        return sent

    async def off_the_clock(self, wait: Awaitable[_T]) -> _T:
        """Waits for a limit with the deadline's clock stopped."""
        since = time.monotonic()
        try:
            return await wait
        finally:
            self._deadline += time.monotonic() - since

    def pause_after(self, error: Exception) -> float | None:
        """Seconds until the retry; None = retrying is useless, or would come too late."""
        self.attempts += 1
        if not may_pass(error):
            return None
        seconds = pause(error, self.attempts)
        return seconds if seconds < self._deadline - self._reserved - time.monotonic() else None

    async def sleep(self, seconds: float, error: Exception) -> None:
        """Sleeps between attempts without occupying a slot."""
        self.release()
        words = shorten_words(str(error) or type(error).__name__, _WORDS)
        reason = _RATE_LIMITED if is_rate_limit(error) else f"the model fails ({words}) and is asked again"
        await self._activity.sleep(seconds, reason)
        await self.acquire()
