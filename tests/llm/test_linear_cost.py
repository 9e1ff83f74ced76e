"""Rates that are found by asking a cost function."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.llm.linear_cost import LinearRates, TokenCounts, linear_rates

prices = st.floats(1e-8, 1e-3)


@given(prices, prices, st.floats(-1, 0), st.floats(0, 1), st.integers(0, 10**6), st.integers(0, 10**6), st.data())
def test_a_linear_cost_is_found_as_it_is(
    prompt: float, completion: float, saved: float, more: float, read: int, written: int, data: st.DataObject
) -> None:
    given_rates = LinearRates(prompt, completion, saved * prompt, more * completion)
    tokens = TokenCounts(read, written, data.draw(st.integers(0, read)), data.draw(st.integers(0, written)))
    rates = linear_rates(given_rates.cost)
    assert rates is not None
    assert math.isclose(rates.cost(tokens), given_rates.cost(tokens), rel_tol=1e-6, abs_tol=1e-12)


@pytest.mark.parametrize("tier", [10_000, 128_000, 200_000, 272_000, 512_000, 1_000_000])
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_cost_with_a_tier_has_no_rates(tier: int, factor: float) -> None:
    def cost(tokens: TokenCounts) -> float:
        return tokens.prompt * 1e-6 * (factor if tokens.prompt > tier else 1.0) + tokens.completion * 4e-6

    assert linear_rates(cost) is None


def test_a_cost_with_a_fee_or_one_that_is_not_known_has_no_rates() -> None:
    assert linear_rates(lambda tokens: 0.01 + tokens.prompt * 1e-6) is None
    assert linear_rates(lambda _: None) is None
    assert linear_rates(lambda tokens: None if tokens.reasoning else tokens.prompt * 1e-6) is None
