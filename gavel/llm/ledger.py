"""What one piece of work asks language models, and what that costs, for whoever has to account for it.

with noted_calls() as ledger:
    await judge.score(group)                       also what tasks ask that begin in here
ledger.usd, ledger.unpriced, ledger.questions      counted also when the work failed or was cancelled
"""

import asyncio
import contextlib
from collections.abc import Generator
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(slots=True)
class Ledger:
    """The requests of one piece of work, in one event loop."""

    usd: float = 0.0
    """US dollars of the requests whose cost is known."""
    unpriced: int = 0
    """Requests that may be charged for, and whose cost is not known."""
    questions: set[str] = field(default_factory=set[str])
    """Keys under which a cassette may hold replies to what was asked."""
    is_closed: bool = False
    _in_flight: int = 0
    _is_idle: asyncio.Event = field(default_factory=asyncio.Event)

    async def close(self) -> None:
        """Lets no further request be sent: those that would send one wait until they are cancelled. Returns once what
        is in flight has ended."""
        self.is_closed = True
        if self._in_flight:
            await self._is_idle.wait()

    async def begin(self) -> None:
        """A request is about to be sent."""
        if self.is_closed:
            await asyncio.Event().wait()
        self._in_flight += 1

    def end(self, usd: float | None = None, *, is_free: bool = False) -> None:
        """It was answered (for so many US dollars, None = not known) or lost; `is_free`: it cost nothing."""
        self.unpriced += usd is None and not is_free
        self.usd += usd or 0.0
        self._in_flight -= 1
        if self.is_closed and not self._in_flight:
            self._is_idle.set()


_LEDGER: "ContextVar[Ledger | None]" = ContextVar("gavel_ledger", default=None)


@contextlib.contextmanager
def noted_calls() -> Generator[Ledger]:
    """A ledger of the calls that are made in here."""
    token = _LEDGER.set(ledger := Ledger())
    try:
        yield ledger
    finally:
        _LEDGER.reset(token)


def ledger_of_this_work() -> Ledger:
    """That of the innermost block, or one that nobody reads."""
    return _LEDGER.get() or Ledger()
