"""One call in flight: its share of the endpoint's concurrency, and its deadline.

The share is given back while the call sleeps between attempts. The deadline's clock stops while the call waits for a
limit, since the model is not the cause of that delay.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from tenacity import RetryCallState

from gavel.llm.prompt_cache import NO_PREFIX, CachedPrefix
from gavel.llm.rate_limits import EndpointLimits, Limits

_T = TypeVar("_T")


class Call:
    """Between `acquire` and `release` the call counts as running; its attempts run within `deadline`."""

    def __init__(self, endpoint: EndpointLimits, limits: Limits, prefix: CachedPrefix = NO_PREFIX) -> None:
        self.endpoint = endpoint
        self.prefix = prefix
        self.deadline = asyncio.timeout(None)
        self._limits = limits
        self._running = False

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
