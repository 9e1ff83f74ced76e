"""One call in flight: its share of the endpoint's concurrency, and its deadline.

The share is given back while the call sleeps between attempts. Where a cassette keeps the reply, it is held until that
is written, so that a process that is killed loses no more replies than calls may run. The deadline's clock stops while
the call waits for a limit, since the model is not the cause of that delay.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import nullcontext
from typing import TypeVar

from tenacity import RetryCallState

from gavel.llm.activity import Activity
from gavel.llm.prompt_cache import NO_PREFIX, CachedPrefix
from gavel.llm.rate_limits import EndpointLimits, Limits
from gavel.llm.retry import is_rate_limit

_T = TypeVar("_T")


class Call:
    """Between `acquire` and `release` the call counts as running; its attempts run within `deadline`."""

    def __init__(
        self, endpoint: EndpointLimits, limits: Limits, activity: Activity, prefix: CachedPrefix = NO_PREFIX
    ) -> None:
        self.endpoint = endpoint
        self.prefix = prefix
        self.deadline = asyncio.timeout(None)
        self.may_be_paid = False
        """Whether an attempt failed for which the server may charge."""
        self._limits = limits
        self._activity = activity
        self._running = False
        self._is_rate_limited = False

    async def acquire(self) -> None:
        """Waits until the concurrency limit has room for the call."""
        await self.endpoint.concurrency.acquire(self, self._limits.concurrency)
        self._running = True

    def release(self) -> None:
        """Ends the call's share of the concurrency, if it holds one."""
        if self._running:
            self._running = False
            self.endpoint.concurrency.release(self, self._limits.concurrency)

    def start_deadline(self) -> None:
        self.deadline.reschedule(_now() + self._limits.deadline)

    async def sleep(self, seconds: float) -> None:
        """Sleeps between attempts without counting as running."""
        self.release()
        with self._activity.rate_limited(seconds) if self._is_rate_limited else nullcontext():
            await asyncio.sleep(seconds)
        await self.off_the_clock(self.acquire())

    async def off_the_clock(self, wait: Awaitable[_T]) -> _T:
        """Waits for a limit with the deadline's clock stopped."""
        left = self._seconds_left
        self.deadline.reschedule(None)
        try:
            return await wait
        finally:
            self.deadline.reschedule(_now() + left)

    def before_sleep(self, state: RetryCallState) -> None:
        """Notes why the call is about to sleep."""
        self._is_rate_limited = is_rate_limit(state.outcome.exception() if state.outcome else None)

    def is_over(self, state: RetryCallState) -> bool:
        """Whether there is no further attempt, or no time for it."""
        return state.attempt_number >= self._limits.attempts or state.upcoming_sleep >= self._seconds_left

    @property
    def _seconds_left(self) -> float:
        when = self.deadline.when()
        assert when is not None
        return when - _now()


def _now() -> float:
    return asyncio.get_running_loop().time()
