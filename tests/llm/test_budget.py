import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel.llm.budget import Budget, Size
from gavel.llm.errors import BudgetError, LlmError, UnknownPriceError

SIZE = Size(prompt=25, prompt_bound=100, completion_bound=100)


async def test_what_is_spent_is_what_calls_came_to():
    budget = Budget(max_cost_usd=1.0, max_tokens=1_000_000)
    first = await budget.reserve("m", (2.0, 8.0), SIZE)
    second = await budget.reserve("m", (2.0, 8.0), SIZE)
    third = await budget.reserve("m", (2.0, 8.0), SIZE)
    budget.settle(first, 0.25, 30, 40)
    budget.settle(second, None, 100, 20)
    budget.release(third)
    assert budget.spent_usd == pytest.approx(0.25036)
    assert budget.spent_tokens == 190


async def test_a_call_that_was_given_up_counts_as_expected():
    budget = Budget(max_tokens=1000)
    budget.forfeit(await budget.reserve("m", None, SIZE))
    assert budget.spent_tokens == 25 + 100


async def test_calls_run_together_while_the_most_they_can_come_to_fits_then_alone_then_not():
    budget = Budget(max_tokens=500)
    together = [await budget.reserve("m", None, SIZE), await budget.reserve("m", None, SIZE)]
    alone = asyncio.create_task(budget.reserve("m", None, SIZE))
    await asyncio.sleep(0)
    assert not alone.done()
    for reservation in together:
        budget.settle(reservation, None, 100, 50)
    budget.settle(await alone, None, 100, 70)
    with pytest.raises(BudgetError, match=r"470 of 500 tokens; a call to m needs about 0 USD, 95 tokens"):
        await budget.reserve("m", None, SIZE)
    assert budget.spent_tokens == 470


async def test_one_that_stops_waiting_holds_nobody_up():
    budget = Budget(max_tokens=200)
    first = await budget.reserve("m", None, SIZE)
    waiting = [asyncio.create_task(budget.reserve("m", None, Size(10, 100, 100))) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    budget.release(first)
    await asyncio.wait_for(waiting[1], 5)


async def test_a_budget_in_dollars_needs_a_price():
    with pytest.raises(UnknownPriceError, match="the price of openai/mine is not known"):
        await Budget(max_cost_usd=1).reserve("openai/mine", None, SIZE)


@pytest.mark.parametrize("limits", [{"max_cost_usd": 0}, {"max_cost_usd": float("nan")}, {"max_tokens": -1}])
def test_a_budget_of_nothing_is_refused(limits):
    with pytest.raises(LlmError, match="above 0"):
        Budget(**limits)


@settings(max_examples=60, deadline=None)
@given(st.integers(300, 6000), st.integers(1, 12), st.integers(0, 99), st.sampled_from([20, 100]))
def test_a_budget_is_passed_by_one_call_at_most(limit, workers, seed, longest):
    async def spend() -> None:
        budget, dice, largest = Budget(max_tokens=limit), random.Random(seed), 0

        async def work() -> None:
            nonlocal largest
            while True:
                try:
                    reservation = await budget.reserve("m", None, SIZE)
                except BudgetError:
                    return
                for _ in range(dice.randrange(4)):
                    await asyncio.sleep(0)
                completion = dice.randrange(1, longest)
                budget.settle(reservation, None, 60, completion)
                largest = max(largest, 60 + completion)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(workers):
                tasks.create_task(work())
        assert budget.spent_tokens < limit + largest
        assert budget.spent_tokens > limit - 200

    asyncio.run(spend())
