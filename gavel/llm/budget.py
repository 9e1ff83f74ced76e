"""A budget in US dollars and tokens, shared by all clients that are given it.

A call reserves before it is sent and settles afterwards. Calls run concurrently only while the upper bounds of all of
them fit; then one at a time, while the expected cost of a call fits; then none. So at most one call exceeds a budget,
and only when it used more tokens than the longest call before it.
"""

import asyncio
from dataclasses import dataclass

from gavel.llm.errors import BudgetError, LlmError, UnknownPriceError
from gavel.llm.prices import Price


@dataclass(frozen=True, slots=True)
class Size:
    """Estimated tokens of a call that is not yet sent."""

    prompt: int
    """Estimate."""
    prompt_bound: int
    """Upper bound."""
    completion_bound: int
    """Upper bound."""


@dataclass(slots=True)
class Reservation:
    """The budget reserved for a call in flight."""

    model: str
    price: Price | None
    expected: tuple[float, int]
    """USD and tokens."""
    most: tuple[float, int]
    """Upper bound, in the same units."""
    open: bool = True


_FIRST_COMPLETION = 1000
"""Reply tokens expected of a model before its first reply."""


class Budget:
    """`max_cost_usd` US dollars and `max_tokens` tokens of prompts and replies; None = no limit.

    Several clients that are given the same budget share it. It lives in one process, and starts at 0 with it.
    """

    def __init__(self, max_cost_usd: float | None = None, max_tokens: int | None = None) -> None:
        if any(most is not None and not most > 0 for most in (max_cost_usd, max_tokens)):
            raise LlmError(f"a budget needs limits above 0, not {max_cost_usd} USD, {max_tokens} tokens.")
        self.max_cost_usd = max_cost_usd
        self.max_tokens = max_tokens
        self.spent_usd = 0.0
        """Over the calls whose price is known."""
        self.spent_tokens = 0
        self._in_flight: list[Reservation] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._longest: dict[str, int] = {}

    def check(self, model: str, price: Price | None) -> None:
        """Raises `UnknownPriceError` when there is a limit in dollars and the model has no price."""
        if self.max_cost_usd is not None and price is None:
            raise UnknownPriceError(
                f"the budget of {self.max_cost_usd:g} USD cannot be kept: the price of {model} is not known.",
                f'Give it in USD per million tokens: Judge(prices={{"{model}": (2, 8)}}) or GAVEL_PRICES; '
                "or limit max_tokens instead.",
            )

    async def reserve(self, model: str, price: Price | None, size: Size) -> Reservation:
        """Reserves budget for a call; waits for calls in flight when their actual cost decides whether it fits.

        Raises `BudgetError` when the call does not fit.
        """
        self.check(model, price)
        while True:
            completion = min(self._longest.get(model, _FIRST_COMPLETION), size.completion_bound)
            expected = _amount(price, size.prompt, completion)
            most = _amount(price, size.prompt_bound, max(size.completion_bound, self._longest.get(model, 0)))
            if self._fits(most) or (not self._in_flight and self._fits(expected)):
                reservation = Reservation(model, price, expected, most)
                self._in_flight.append(reservation)
                return reservation
            if not self._in_flight or not self._fits(expected, beside_others=False):
                raise BudgetError(
                    f"the budget is used up: {self._spending()}; a call to {model} needs about "
                    f"{expected[0]:.2g} USD, {expected[1]:,} tokens.",
                    "Raise the budget, and open a cassette so that nothing is paid for twice.",
                )
            settled = asyncio.get_running_loop().create_future()
            self._waiting.append(settled)
            await settled

    def settle(self, reservation: Reservation, usd: float | None, prompt_tokens: int, completion_tokens: int) -> None:
        """Replaces the reservation by the actual cost of the call."""
        longest = self._longest.get(reservation.model, 0)
        self._longest[reservation.model] = max(longest, completion_tokens)
        known = _amount(reservation.price, prompt_tokens, completion_tokens)[0] if usd is None else usd
        self._close(reservation, (known, prompt_tokens + completion_tokens))

    def release(self, reservation: Reservation) -> None:
        """Returns the reservation: the call cost nothing."""
        self._close(reservation, (0.0, 0))

    def forfeit(self, reservation: Reservation) -> None:
        """Counts the expected cost: the call was abandoned, and its server may still charge for it."""
        self._close(reservation, reservation.expected)

    def _close(self, reservation: Reservation, spent: tuple[float, int]) -> None:
        if not reservation.open:
            return
        reservation.open = False
        self._in_flight.remove(reservation)
        self.spent_usd += spent[0]
        self.spent_tokens += spent[1]
        waiting, self._waiting = self._waiting, []
        for settled in waiting:
            if not settled.done():
                settled.set_result(None)

    def _fits(self, amount: tuple[float, int], beside_others: bool = True) -> bool:
        """Whether the amount fits in the rest of the budget (minus the upper bounds of calls in flight)."""
        others = [reservation.most for reservation in self._in_flight] if beside_others else []
        usd = self.spent_usd + amount[0] + sum(most[0] for most in others)
        tokens = self.spent_tokens + amount[1] + sum(most[1] for most in others)
        return (self.max_cost_usd is None or usd <= self.max_cost_usd) and (
            self.max_tokens is None or tokens <= self.max_tokens
        )

    def _spending(self) -> str:
        parts: list[str] = []
        if self.max_cost_usd is not None:
            parts.append(f"{self.spent_usd:.4g} of {self.max_cost_usd:g} USD")
        if self.max_tokens is not None:
            parts.append(f"{self.spent_tokens:,} of {self.max_tokens:,} tokens")
        return ", ".join(parts)


def _amount(price: Price | None, prompt_tokens: int, completion_tokens: int) -> tuple[float, int]:
    usd = 0.0 if price is None else (prompt_tokens * price[0] + completion_tokens * price[1]) / 1e6
    return usd, prompt_tokens + completion_tokens
