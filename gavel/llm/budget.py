"""A budget in US dollars and tokens, shared by all clients that are given it, across threads and event loops.

A call reserves budget before it is sent and settles afterwards. The reservation, by the first case that applies:

    everything it can come to     when the budget has room for all calls that its client may have in flight at that size
    a capped reply                when the model takes a cap: a fair share of the rest, sent as max_completion_tokens
    twice the longest reply       once enough replies were seen
    everything it can come to

Calls run concurrently while their reservations fit; then one at a time, while the expected cost of a call fits; then
none. A capped call does not exceed a budget; others exceed it at most by the cost of the calls in flight.

A ledger records the requests of one unit of work and their cost, for accounting:

    with noted_calls() as ledger:
        await judge.score(group)                       also what tasks ask that begin in here
    ledger.usd, ledger.unpriced, ledger.questions      counted also when the work failed or was cancelled
"""

import asyncio
import contextlib
import threading
from collections import defaultdict
from collections.abc import Generator
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NoReturn

from gavel.base.text import counted
from gavel.llm.errors import BudgetError, LlmError
from gavel.llm.prices import Price


@dataclass(frozen=True, slots=True)
class Size:
    """Estimated tokens of a call before it is sent."""

    prompt: int
    """Expected prompt tokens."""
    prompt_bound: int
    """Upper bound of prompt tokens: the prompt's bytes."""
    completion_bound: int
    """Upper bound of completion tokens."""
    parallel: int = 1
    """Calls that the client may have in flight at once."""
    can_be_capped: bool = False
    """Whether the request can limit its reply's length."""


@dataclass(slots=True, eq=False)
class Reservation:
    """The part of the budget that is reserved for a call in flight."""

    model: str
    price: Price | None
    size: Size
    expected: tuple[float, int]
    """Expected USD and tokens."""
    most: tuple[float, int]
    """Upper bound of USD and tokens, or its substitute."""
    cap: int | None = None
    """Max tokens of the reply, sent with the request; None = no limit."""
    open: bool = True


@dataclass(slots=True)
class _Learned:
    """Statistics of a model's replies so far."""

    replies: int = 0
    longest: int = 0
    """Tokens of the longest reply."""
    density: float = 0.0
    """Max prompt tokens per byte, over prompts long enough to be informative."""


LONGEST_COMPLETION = 32_768
"""Max reply tokens of a model that LiteLLM's table does not list."""
_FIRST_COMPLETION = 1000
"""Expected reply tokens of a model before its first reply."""
_SMALLEST_CAP = 8192
"""Min tokens of a capped reply: a truncated reply is paid for and lost."""
_HEADROOM = 2
"""Reserved reply length, as a multiple of the longest one seen."""
_ENOUGH_REPLIES = 8
"""Number of replies after which the longest one serves as a bound."""
_TELLING_PROMPT = 2000
"""Min bytes of a prompt that is informative about tokens per byte."""
_DENSITY_MARGIN = 1.25


class Budget:
    """`max_cost_usd` US dollars and `max_tokens` tokens of prompts and replies; None = no limit.

    Clients that are given the same budget share it. Its spending is counted per process, from 0.
    """

    def __init__(self, max_cost_usd: float | None = None, max_tokens: int | None = None) -> None:
        if any(most is not None and not most > 0 for most in (max_cost_usd, max_tokens)):
            raise LlmError(f"a budget needs limits above 0, not {max_cost_usd} USD, {max_tokens} tokens.")
        self.max_cost_usd = max_cost_usd
        self.max_tokens = max_tokens
        self.spent_usd = 0.0
        """Spending in USD: calls with a known price, and the expected cost of abandoned ones."""
        self.known_usd = 0.0
        """Spending in USD of the calls with a known cost."""
        self.spent_tokens = 0
        self.calls = 0
        """Calls that were answered or abandoned; failed calls cost nothing and do not count."""
        self.unpriced_calls = 0
        """Calls of unknown cost: the model has no price, or the call was abandoned."""
        self.refused: BudgetError | None = None
        """The first refusal of a call; None = none was refused."""
        self._lock = threading.Lock()
        self._in_flight: list[Reservation] = []
        self._waiting: list[Future[None]] = []
        self._learned: defaultdict[str, _Learned] = defaultdict(_Learned)

    def check(self, model: str, price: Price | None) -> None:
        """Raises `LlmError` if there is a dollar limit and the model has no price."""
        if self.max_cost_usd is not None and price is None:
            raise LlmError(
                f"the budget of {self.max_cost_usd:g} USD cannot be kept: the price of {model} is not known.",
                f'Give it in USD per million tokens: Judge(prices={{"{model}": (2, 8)}}) or GAVEL_PRICES; '
                "or limit max_tokens instead.",
            )

    @property
    def cost(self) -> str:
        """Spending in words: "0.42 USD", "≥ 0.42 USD, 1 call unknown", "cost unknown"."""
        return cost_in_words(self.known_usd, self.calls, self.unpriced_calls)

    async def reserve(self, model: str, price: Price | None, size: Size) -> Reservation:
        """Reserves budget for a call; waits for calls in flight if their actual cost decides whether it fits.

        Raises `BudgetError` if the call does not fit.
        """
        self.check(model, price)
        while True:
            with self._lock:
                reservation = self._try_to_reserve(model, price, size)
                if reservation is not None:
                    self._in_flight.append(reservation)
                    return reservation
                settled: Future[None] = Future()  # bound to no event loop: `settle` may run in another one
                self._waiting.append(settled)
            await asyncio.wrap_future(settled)

    def settle(self, reservation: Reservation, usd: float | None, prompt_tokens: int, completion_tokens: int) -> None:
        """Replaces the reservation by the call's actual cost."""
        with self._lock:
            learned = self._learned[reservation.model]
            learned.replies += 1
            learned.longest = max(learned.longest, completion_tokens)
            if reservation.size.prompt_bound >= _TELLING_PROMPT:
                learned.density = max(learned.density, prompt_tokens / reservation.size.prompt_bound)
        known = _amount(reservation.price, prompt_tokens, completion_tokens)[0] if usd is None else usd
        unpriced = usd is None and reservation.price is None
        self._close(reservation, (known, prompt_tokens + completion_tokens), unpriced=unpriced)

    def release(self, reservation: Reservation) -> None:
        """Returns the reservation: the call cost nothing."""
        self._close(reservation, None)

    def forfeit(self, reservation: Reservation) -> None:
        """Counts the expected cost: the call was abandoned, and its server may still charge for it."""
        self._close(reservation, reservation.expected, unpriced=True)

    def _close(self, reservation: Reservation, spent: tuple[float, int] | None, unpriced: bool = False) -> None:
        with self._lock:
            if not reservation.open:
                return
            reservation.open = False
            self._in_flight.remove(reservation)
            if spent is not None:
                self.spent_usd += spent[0]
                self.spent_tokens += spent[1]
                self.known_usd += 0.0 if unpriced else spent[0]
                self.calls += 1
                self.unpriced_calls += unpriced
            waiting, self._waiting = self._waiting, []
        for settled in waiting:
            if settled.set_running_or_notify_cancel():
                settled.set_result(None)

    def _try_to_reserve(self, model: str, price: Price | None, size: Size) -> Reservation | None:
        """The reservation, or None while it may fit once calls in flight are settled. Raises `BudgetError`."""
        learned = self._learned[model]
        expected_reply = min(learned.longest or _FIRST_COMPLETION, size.completion_bound)
        expected = _amount(price, size.prompt, expected_reply)
        sizes = self._list_candidates(price, size, learned)
        for cap, most in sizes:
            if self._fits(most):
                return Reservation(model, price, size, expected, most, cap)
        if not self._in_flight and self._fits(expected):
            reply = self._affordable(price, size.prompt, 1)
            cap = min(reply, size.completion_bound) if size.can_be_capped and reply >= expected_reply else None
            return Reservation(model, price, size, expected, sizes[-1][1], cap)
        if self._in_flight and self._fits(expected, beside_others=False):
            return None
        self._refuse(f"a call to {model}", expected)

    def check_fits(self, what: str, amount: tuple[float, int]) -> None:
        """Raises `BudgetError` if these USD and tokens are not left for `what`."""
        if not self._fits(amount):
            self._refuse(what, amount)

    def _refuse(self, what: str, amount: tuple[float, int]) -> NoReturn:
        self.refused = BudgetError(
            f"the budget is used up: {self._spending()}; {what} needs about {self._needed(amount)}.",
            "Raise the budget (--max-cost, --max-judge-tokens). What a cassette holds is not paid for again.",
        )
        raise self.refused

    def _list_candidates(
        self, price: Price | None, size: Size, learned: _Learned
    ) -> list[tuple[int | None, tuple[float, int]]]:
        """Candidate reservations, the best first: a cap for the reply, and the resulting upper bound."""
        prompt = size.prompt_bound
        if learned.density:
            prompt = min(prompt, int(prompt * learned.density * _DENSITY_MARGIN) + 1)
        most = _amount(price, prompt, max(size.completion_bound, learned.longest))
        if self._fits((most[0] * size.parallel, most[1] * size.parallel), beside_others=False):
            return [(None, most)]
        likely = min(_HEADROOM * learned.longest, size.completion_bound)
        if size.can_be_capped:
            smallest = min(max(_SMALLEST_CAP, likely), size.completion_bound)
            share = min(self._affordable(price, prompt, size.parallel), size.completion_bound)
            caps = dict.fromkeys([max(share, smallest), smallest])
            return [(cap, _amount(price, prompt, cap)) for cap in caps]
        if learned.replies >= _ENOUGH_REPLIES:
            return [(None, _amount(price, prompt, likely))]
        return [(None, most)]

    def _affordable(self, price: Price | None, prompt: int, parallel: int) -> int:
        """Reply tokens that the unspent budget leaves for each of `parallel` calls, at least 0."""
        replies: list[float] = []
        if self.max_tokens is not None:
            replies.append((self.max_tokens - self.spent_tokens) / parallel - prompt)
        if self.max_cost_usd is not None and price is not None and price[1] > 0:
            share = (self.max_cost_usd - self.spent_usd) / parallel
            replies.append((share * 1e6 - prompt * price[0]) / price[1])
        return max(int(min(replies, default=0)), 0)

    def _fits(self, amount: tuple[float, int], beside_others: bool = True) -> bool:
        """Whether the amount fits in the rest of the budget (minus the reservations of calls in flight)."""
        if self.max_cost_usd is None and self.max_tokens is None:
            return True
        others = [reservation.most for reservation in self._in_flight] if beside_others else []
        usd = self.spent_usd + amount[0] + sum(most[0] for most in others)
        tokens = self.spent_tokens + amount[1] + sum(most[1] for most in others)
        return (self.max_cost_usd is None or usd <= self.max_cost_usd) and (
            self.max_tokens is None or tokens <= self.max_tokens
        )

    def _needed(self, amount: tuple[float, int]) -> str:
        """Formats an amount in the units that are limited."""
        usd = f"{amount[0]:.2g} USD" if self.max_cost_usd is not None else ""
        tokens = f"{amount[1]:,} tokens" if self.max_tokens is not None else ""
        return ", ".join(filter(None, (usd, tokens)))

    def _spending(self) -> str:
        usd = f"{self.spent_usd:.4g} of {self.max_cost_usd:g} USD" if self.max_cost_usd is not None else ""
        tokens = f"{self.spent_tokens:,} of {self.max_tokens:,} tokens" if self.max_tokens is not None else ""
        return ", ".join(filter(None, (usd, tokens)))


def cost_in_words(usd: float, calls: int, unknown: int) -> str:
    """Formats a cost: "0.42 USD", "≥ 0.42 USD, 1 call unknown", or "cost unknown". `usd`: over the calls with a known
    cost."""
    if calls and unknown == calls and not usd:
        return "cost unknown"
    amount = f"{usd:.2f}" if usd >= 0.1 or not usd else f"{usd:.2g}"
    if not unknown:
        return f"{amount} USD"
    return f"≥ {amount} USD, {counted(unknown, 'call')} unknown"


def _amount(price: Price | None, prompt_tokens: int, completion_tokens: int) -> tuple[float, int]:
    usd = 0.0 if price is None else (prompt_tokens * price[0] + completion_tokens * price[1]) / 1e6
    return usd, prompt_tokens + completion_tokens


@dataclass(slots=True)
class Ledger:
    """The requests of one unit of work, in one event loop."""

    usd: float = 0.0
    """US dollars of the requests whose cost is known."""
    unpriced: int = 0
    """Requests that may be charged and whose cost is unknown."""
    questions: set[str] = field(default_factory=set[str])
    """Keys under which a cassette may hold replies to these requests."""
    is_closed: bool = False
    _in_flight: int = 0
    _is_idle: asyncio.Event = field(default_factory=asyncio.Event)

    async def close(self) -> None:
        """Blocks further requests: those that would send one wait until they are cancelled. Returns once no request is
        in flight."""
        self.is_closed = True
        if self._in_flight:
            await self._is_idle.wait()

    async def begin(self) -> None:
        """Counts a request that is about to be sent."""
        if self.is_closed:
            await asyncio.Event().wait()
        self._in_flight += 1

    def end(self, usd: float | None = None, *, is_free: bool = False) -> None:
        """Counts a request that was answered (`usd`, None = unknown) or lost; `is_free`: it cost nothing."""
        self.unpriced += usd is None and not is_free
        self.usd += usd or 0.0
        self._in_flight -= 1
        if self.is_closed and not self._in_flight:
            self._is_idle.set()


_LEDGER: "ContextVar[Ledger | None]" = ContextVar("gavel_ledger", default=None)


@contextlib.contextmanager
def noted_calls() -> Generator[Ledger]:
    """Gives a ledger of the calls that are made inside the block."""
    token = _LEDGER.set(ledger := Ledger())
    try:
        yield ledger
    finally:
        _LEDGER.reset(token)


def ledger_of_this_work() -> Ledger:
    """The ledger of the innermost block, or a throwaway one."""
    return _LEDGER.get() or Ledger()
