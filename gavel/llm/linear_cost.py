"""Rates of a cost function that is linear in the tokens of a call, found by asking it.

    rates = linear_rates(cost)             cost(TokenCounts(1000, 1000)) -> USD; None where tiers or the like are found
    rates.cost(TokenCounts(120, 20))       the same as cost(…), up to rounding

LiteLLM takes about a millisecond to work out what a call costs; for most models that is a product of tokens and prices.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

_TOKENS = 1000
_PRECISION = 1e-9


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """The tokens of one call."""

    prompt: int
    completion: int
    cached: int = 0
    """Of the prompt."""
    reasoning: int = 0
    """Of the completion."""


@dataclass(frozen=True, slots=True)
class LinearRates:
    """USD a token; `cached` and `reasoning` on top of those of the prompt and the completion."""

    prompt: float
    completion: float
    cached: float
    reasoning: float

    def cost(self, tokens: TokenCounts) -> float:
        """USD of a call."""
        return (
            tokens.prompt * self.prompt
            + tokens.completion * self.completion
            + tokens.cached * self.cached
            + tokens.reasoning * self.reasoning
        )


_CHECKS = (
    TokenCounts(0, 1),
    TokenCounts(1, 1),
    TokenCounts(3000, 700, cached=2999, reasoning=1),
    TokenCounts(40_000, 9000),
    TokenCounts(150_000, 10),
    TokenCounts(240_000, 100_000, cached=1),
    TokenCounts(600_000, 300_000, cached=300_000, reasoning=200_000),
    TokenCounts(5_000_000, 3_000_000, cached=2_000_000, reasoning=2_000_000),
)
"""Calls on both sides of every tier that a provider has had."""


def linear_rates(cost: Callable[[TokenCounts], float | None]) -> LinearRates | None:
    """The rates that give what `cost` gives, at each of some calls of all sizes; None where there are none."""
    bases = (
        TokenCounts(_TOKENS, _TOKENS),
        TokenCounts(2 * _TOKENS, _TOKENS),
        TokenCounts(_TOKENS, 2 * _TOKENS),
        TokenCounts(_TOKENS, _TOKENS, cached=_TOKENS),
        TokenCounts(_TOKENS, _TOKENS, reasoning=_TOKENS),
    )
    known = [usd for tokens in bases if (usd := cost(tokens)) is not None]
    if len(known) < len(bases):
        return None
    base, *more = known
    rates = LinearRates(*((usd - base) / _TOKENS for usd in more))
    for tokens in (*bases, *_CHECKS):
        usd = cost(tokens)
        if usd is None or not math.isclose(usd, rates.cost(tokens), rel_tol=_PRECISION, abs_tol=1e-15):
            return None
    return rates
