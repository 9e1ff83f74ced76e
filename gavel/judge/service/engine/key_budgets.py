"""When an accepted group may be judged under its key's budget, so that a burst of groups cannot overspend it.

    async with budgets.room(key_id):       waits while groups in progress may use up what is left
        …                                  judge the group

Groups are accepted at once, long before their costs are known. The first one of a key runs alone; from then on as many
run at once as the rest of the budget holds, each at the cost of the dearest so far. So a budget is passed by no more
than one group costs beyond that, in each process.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gavel.judge.service.errors import OverBudgetError


@dataclass(slots=True)
class _Spending:
    """The groups of one key in this process."""

    running: int = 0
    dearest: float | None = None
    """US dollars; None: no group has been judged here yet."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class KeyBudgets:
    """The budgets of a service's keys, for groups that are about to be judged in this process."""

    def __init__(self, refusal: Callable[[str], OverBudgetError | None], left: Callable[[str], float | None]) -> None:
        """`refusal` says why a key may spend no more, `left` how many US dollars it may (None: no limit)."""
        self._refusal = refusal
        self._left = left
        self._spending: defaultdict[str, _Spending] = defaultdict(_Spending)

    @asynccontextmanager
    async def room(self, key_id: str) -> AsyncGenerator[None]:
        """Holds the place of one group within the key's budget. Raises `OverBudgetError` when it is spent."""
        if self._left(key_id) is None:
            yield
            return
        spending = self._spending[key_id]
        while not self._fits(key_id, spending):
            await spending.changed.wait()
        spending.running += 1
        try:
            yield
        finally:
            spending.running -= 1
            self._wake(spending)

    def judged(self, key_id: str, cost_usd: float) -> None:
        """A group was judged for so much, and its key's spending is known to include it."""
        spending = self._spending[key_id]
        spending.dearest = max(spending.dearest or 0.0, cost_usd)
        self._wake(spending)

    def _fits(self, key_id: str, spending: _Spending) -> bool:
        """Raises `OverBudgetError`."""
        if (refused := self._refusal(key_id)) is not None:
            raise refused
        left = self._left(key_id)
        if left is None or not spending.running:
            return True
        return spending.dearest is not None and spending.dearest * (spending.running + 1) <= left

    def _wake(self, spending: _Spending) -> None:
        spending.changed.set()
        spending.changed = asyncio.Event()
