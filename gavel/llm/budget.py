"""What judging may cost, in US dollars and tokens, over all judges that share the budget.

A call reserves before it is made and settles afterwards. Calls run side by side only while the most that all of
them can come to still fits; then one at a time, while what a call usually comes to still fits; then no more. So a
budget is passed by one call in flight at most, and only when that call came to more than the largest before it.
"""

import asyncio
from dataclasses import dataclass

from gavel.llm.errors import BudgetError, LlmError, UnknownPriceError
from gavel.llm.prices import Price


@dataclass(frozen=True, slots=True)
class Size:
    """Tokens of a call that is not yet made."""

    prompt: int
    """About."""
    prompt_bound: int
    """At most."""
    completion_bound: int
    """At most."""


@dataclass(slots=True)
class Reservation:
    """Of a call in flight."""

    model: str
    price: Price | None
    expected: tuple[float, int]
    """USD and tokens."""
    most: tuple[float, int]
    open: bool = True


_FIRST_COMPLETION = 1000
"""Tokens expected of a model that has not yet replied."""


class Budget:
    """`max_cost_usd` US dollars and `max_tokens` tokens of prompts and replies; None = no limit.

    Give the same budget to several judges and they share it. It belongs to one process, and begins anew with it.
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
                f"the budget of {self.max_cost_usd:g} USD cannot be kept: nobody knows the price of {model}.",
                f'Give it in USD per million tokens: Judge(prices={{"{model}": (2, 8)}}) or GAVEL_PRICES; '
                "or limit max_tokens instead.",
            )

    async def reserve(self, model: str, price: Price | None, size: Size) -> Reservation:
        """Room for a call, waiting for calls in flight where what they leave over decides.

        Raises `BudgetError` when there is no room.
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
        """Replaces what was reserved by what the call came to."""
        longest = self._longest.get(reservation.model, 0)
        self._longest[reservation.model] = max(longest, completion_tokens)
        known = _amount(reservation.price, prompt_tokens, completion_tokens)[0] if usd is None else usd
        self._close(reservation, (known, prompt_tokens + completion_tokens))

    def release(self, reservation: Reservation) -> None:
        """Gives back what was reserved: the call cost nothing."""
        self._close(reservation, (0.0, 0))

    def forfeit(self, reservation: Reservation) -> None:
        """Counts what was expected: the call was given up, and its server may charge for it all the same."""
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
        """Whether the amount fits beside what is spent (and what the calls in flight come to at most)."""
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
