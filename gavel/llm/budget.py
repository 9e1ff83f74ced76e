"""Prices, and a budget in US dollars and tokens that clients share, across threads and event loops; an unknown cost
is None, never 0.

A call reserves all that it can come to, or else a capped reply where the model takes a cap, or else twice the longest
reply once enough were seen. Calls run concurrently while their reservations fit; then one at a time, while the expected
cost of a call fits; then none. A capped call does not exceed a budget; others exceed it at most by the calls in flight.

    with noted_calls() as ledger:
        await judge.score(group)                       also what tasks ask that begin in here
    ledger.usd, ledger.unpriced, ledger.questions      counted also when the work failed or was cancelled
"""

import asyncio
import contextlib
import math
import os
import threading
from collections.abc import Generator, Mapping
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, NoReturn

from pydantic import Field, TypeAdapter, ValidationError

from gavel.base.text import counted
from gavel.llm.errors import BudgetError, LlmError
from gavel.llm.providers import is_local, load_litellm, model_info
from gavel.llm.types import Usage

Price = tuple[float, float] | tuple[float, float, float]
"""US dollars per million prompt tokens, per million completion tokens and, where it is lower, per million prompt tokens
that the server had in its cache."""

Prices = Mapping[str, Price]
"""Model id -> price."""

_Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PriceTable = dict[str, tuple[_Usd, _Usd] | tuple[_Usd, _Usd, _Usd]]
"""`Prices` with the check of each amount: a dollar budget could not be kept with one below 0."""


def prices_from_environment() -> Prices:
    """The prices in `GAVEL_PRICES`, JSON such as `{"openai/gpt-5-mini": [0.25, 2]}`; empty if it is not set."""
    text = os.environ.get("GAVEL_PRICES", "").strip()
    try:
        return TypeAdapter(PriceTable).validate_json(text) if text else {}
    except ValidationError as error:
        raise LlmError(
            f"GAVEL_PRICES is not a table of prices: {text[:80]}",
            "Write USD per million prompt and completion tokens, and if you like per million cached prompt tokens: "
            'GAVEL_PRICES={"openai/gpt-5-mini": [0.25, 2, 0.025]}',
        ) from error


def price(model: str, prices: Prices) -> Price | None:
    """The user's price, else LiteLLM's; a local model is free; None = unknown."""
    if model in prices or is_local(model):
        return prices.get(model, (0.0, 0.0))
    listed = model_info(model)
    per_token = listed.get("input_cost_per_token") or 0.0, listed.get("output_cost_per_token") or 0.0
    return (per_token[0] * 1e6, per_token[1] * 1e6) if any(per_token) else None  # 0 is LiteLLM's mark of an unknown one


def cost(model: str, usage: Usage, prices: Prices) -> float | None:
    """USD by the user's prices; None if they do not name the model.

    Without a separate price, cached tokens cost as much as others; tokens written to the server's cache are surcharged
    by LiteLLM's table.
    """
    given = price(model, prices) if model in prices or is_local(model) else None
    if given is None:
        return None
    prompt, of_cached = given[0], given[2] if len(given) == 3 else given[0]
    usd = (usage.prompt_tokens - usage.cached_prompt_tokens) * prompt + usage.cached_prompt_tokens * of_cached
    listed: Mapping[str, Any] = model_info(model) if usage.written_prompt_tokens else {}
    plain, written = listed.get("input_cost_per_token"), listed.get("cache_creation_input_token_cost")
    surcharge = max(0.0, written / plain - 1) if plain and written else 0.0
    return (usd + usage.written_prompt_tokens * prompt * surcharge + usage.completion_tokens * given[1]) / 1e6


def listed_cost(model: str, usage: Usage) -> float | None:
    """USD by LiteLLM's table, which has prices of cached tokens and of long prompts; None = unknown."""
    if price(model, {}) is None:
        return None
    written, cached = usage.written_prompt_tokens, usage.cached_prompt_tokens
    if not (written or cached) and (rates := _flat_rates(model)) is not None:
        return usage.prompt_tokens * rates[0] + usage.completion_tokens * rates[1]
    of_cache = {"cache_creation_input_tokens": written, "cache_read_input_tokens": cached}
    tokens = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
    return sum(load_litellm().cost_per_token(model=model, **tokens, **of_cache))


@cache  # LiteLLM takes longer to work a cost out than the rest of a response takes to read
def _flat_rates(model: str) -> tuple[float, float] | None:
    """USD per token of the prompt and of the completion; None where the table's prices depend on their number."""
    if any(value and ("_above_" in name or name == "tiered_pricing") for name, value in model_info(model).items()):
        return None
    return load_litellm().cost_per_token(model=model, prompt_tokens=1, completion_tokens=1)


@dataclass(slots=True, eq=False)
class Reservation:
    """The part of the budget that is reserved for a call in flight. Amounts are USD and tokens."""

    model: str
    price: Price | None
    expected: tuple[float, int]
    most: tuple[float, int]
    """Upper bound, or its substitute."""
    cap: int | None = None
    """Max tokens of the reply, sent with the request; None = no limit."""


LONGEST_COMPLETION = 32_768
"""Max reply tokens of a model that LiteLLM's table does not list."""
_FIRST_COMPLETION, _SMALLEST_CAP, _ENOUGH_REPLIES = 1000, 8192, 8
"""Expected reply tokens of a model before its first reply; min tokens of a capped reply, as a truncated one is paid for
and lost; replies after which twice the longest one serves as a bound."""


class Budget:
    """`max_cost_usd` US dollars and `max_tokens` tokens of prompts and replies; None = no limit.

    Clients that are given the same budget share it. Its spending is counted per process, from 0.
    """

    def __init__(self, max_cost_usd: float | None = None, max_tokens: int | None = None) -> None:
        if any(most is not None and not most > 0 for most in (max_cost_usd, max_tokens)):
            raise LlmError(f"a budget needs limits above 0, not {max_cost_usd} USD, {max_tokens} tokens.")
        self.max_cost_usd, self.max_tokens = max_cost_usd, max_tokens
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
        self._replies: dict[str, tuple[int, int]] = {}
        """Model -> number of its replies so far, and tokens of the longest one."""

    def check(self, model: str, price: Price | None) -> None:
        """Raises `LlmError` if there is a dollar limit and the model has no price."""
        if self.max_cost_usd is not None and price is None:
            raise LlmError(
                f"the budget of {self.max_cost_usd:g} USD cannot be kept: the price of {model} is not known.",
                f"Give it in USD per million tokens, GAVEL_PRICES='{{\"{model}\": [2, 8]}}', or in Python "
                "Judge(prices=…); or limit tokens in place of USD: --max-judge-tokens, max_tokens=.",
            )

    @property
    def cost(self) -> str:
        """Spending in words: "0.42 USD", "≥ 0.42 USD, 1 call unknown", "cost unknown"."""
        return cost_in_words(self.known_usd, self.calls, self.unpriced_calls)

    async def reserve(
        self, model: str, price: Price | None, prompt_bound: int, completion_bound: int, *, can_be_capped: bool = False
    ) -> Reservation:
        """Reserves budget for a call; waits for calls in flight if their actual cost decides whether it fits.

        `prompt_bound`, `completion_bound`: upper bounds of its tokens; a fourth of the prompt's is expected.
        `can_be_capped`: whether the request can limit its reply's length. Raises `BudgetError` if it does not fit.
        """
        self.check(model, price)
        while True:
            with self._lock:
                reservation = self._try_to_reserve(model, price, prompt_bound, completion_bound, can_be_capped)
                if reservation is not None:
                    self._in_flight.append(reservation)
                    return reservation
                settled: Future[None] = Future()  # bound to no event loop: `settle` may run in another one
                self._waiting.append(settled)
            await asyncio.wrap_future(settled)

    def settle(self, reservation: Reservation, usd: float | None, prompt_tokens: int, completion_tokens: int) -> None:
        """Replaces the reservation by the call's actual cost."""
        with self._lock:
            replies, longest = self._replies.get(reservation.model, (0, 0))
            self._replies[reservation.model] = replies + 1, max(longest, completion_tokens)
        known = amount(reservation.price, prompt_tokens, completion_tokens)[0] if usd is None else usd
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
            if reservation not in self._in_flight:
                return
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

    def _try_to_reserve(
        self, model: str, price: Price | None, prompt_bound: int, completion_bound: int, can_be_capped: bool
    ) -> Reservation | None:
        """The reservation, or None while it may fit once calls in flight are settled. Raises `BudgetError`."""
        replies, longest = self._replies.get(model, (0, 0))
        prompt, reply = prompt_bound // 4, min(longest or _FIRST_COMPLETION, completion_bound)
        expected = amount(price, prompt, reply)
        most = amount(price, prompt_bound, max(completion_bound, longest))
        if self._fits(most):
            return Reservation(model, price, expected, most)
        if can_be_capped or replies >= _ENOUGH_REPLIES:
            likely = min(max(_SMALLEST_CAP if can_be_capped else 0, 2 * longest), completion_bound)
            most = amount(price, prompt_bound, likely)
            if self._fits(most):
                return Reservation(model, price, expected, most, likely if can_be_capped else None)
        if not self._in_flight and self._fits(expected):
            affordable = (self.max_tokens or math.inf) - self.spent_tokens - prompt
            if price and price[1] > 0:
                usd = (self.max_cost_usd or math.inf) - self.spent_usd
                affordable = min(affordable, (usd * 1e6 - prompt * price[0]) / price[1])
            cap = int(min(affordable, completion_bound)) if can_be_capped and affordable >= reply else None
            return Reservation(model, price, expected, most, cap)
        if self._in_flight and self._fits(expected, beside_others=False):
            return None
        self._refuse(f"a call to {model}", expected)

    def check_fits(self, what: str, amount: tuple[float, int]) -> None:
        """Raises `BudgetError` if these USD and tokens are not left for `what`."""
        if not self._fits(amount):
            self._refuse(what, amount)

    def _refuse(self, what: str, amount: tuple[float, int]) -> NoReturn:
        spent, needed = list[str](), list[str]()
        if self.max_cost_usd is not None:
            spent.append(f"{self.spent_usd:.4g} of {self.max_cost_usd:g} USD")
            needed.append(f"{amount[0]:.2g} USD")
        if self.max_tokens is not None:
            spent.append(f"{self.spent_tokens:,} of {self.max_tokens:,} tokens")
            needed.append(f"{amount[1]:,} tokens")
        self.refused = BudgetError(
            f"the budget is used up: {', '.join(spent)}; {what} needs about {', '.join(needed)}.",
            "Raise the budget (--max-cost, --max-judge-tokens). What a cassette holds is not paid for again.",
        )
        raise self.refused

    def _fits(self, amount: tuple[float, int], beside_others: bool = True) -> bool:
        """Whether the amount fits in the rest of the budget (minus the reservations of calls in flight)."""
        if self.max_cost_usd is None and self.max_tokens is None:
            return True
        amounts = [amount, *(each.most for each in self._in_flight if beside_others)]
        usd, tokens = (sum(each) for each in zip((self.spent_usd, self.spent_tokens), *amounts, strict=True))
        return usd <= (self.max_cost_usd or math.inf) and tokens <= (self.max_tokens or math.inf)


def cost_in_words(usd: float, calls: int, unknown: int) -> str:
    """Formats a cost: "0.42 USD", "≥ 0.42 USD, 1 call unknown", or "cost unknown". `usd`: over the calls with a known
    cost."""
    if calls and unknown == calls and not usd:
        return "cost unknown"
    amount = f"{usd:.2f} USD" if usd >= 0.1 or not usd else f"{usd:.2g} USD"
    return f"≥ {amount}, {counted(unknown, 'call')} unknown" if unknown else amount


def amount(price: Price | None, prompt_tokens: int, completion_tokens: int) -> tuple[float, int]:
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
