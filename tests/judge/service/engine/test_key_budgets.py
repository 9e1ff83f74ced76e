import asyncio

import pytest

from gavel.judge.service.engine.admission import KeyBudgets
from gavel.judge.service.errors import OverBudgetError


class Purse:
    """What a key has spent of its budget, and the groups that are judged for it."""

    def __init__(self, limit: float | None) -> None:
        self.limit = limit
        self.spent = 0.0
        self.running = self.most = 0
        self.budgets = KeyBudgets(self.refusal, self.left)

    def refusal(self, key_id: str) -> OverBudgetError | None:
        is_over = self.limit is not None and self.spent >= self.limit
        return OverBudgetError(f"the budget of {key_id} is spent.", "Use another key.") if is_over else None

    def left(self, key_id: str) -> float | None:
        return None if self.limit is None else self.limit - self.spent

    async def judge(self, cost: float) -> None:
        async with self.budgets.room("k"):
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(0)
            self.running -= 1
            self.spent += cost
            self.budgets.judged("k", cost)


async def outcomes(purse: Purse, costs: list[float]) -> list[bool]:
    """Whether each group was judged, all of them begun at once."""
    done = await asyncio.gather(*map(purse.judge, costs), return_exceptions=True)
    assert all(one is None or isinstance(one, OverBudgetError) for one in done)
    return [one is None for one in done]


async def test_groups_without_a_limit_run_at_once():
    purse = Purse(None)
    assert all(await outcomes(purse, [1.0] * 50))
    assert purse.most == 50


async def test_the_first_group_runs_alone_and_the_others_as_many_as_the_budget_holds():
    purse = Purse(5.0)
    done = await outcomes(purse, [1.0] * 50)
    assert done == [True] * 5 + [False] * 45
    assert purse.most == 4
    assert purse.spent == 5.0


@pytest.mark.parametrize("limit", [0.5, 1.0, 3.3, 7.9])
async def test_a_budget_is_passed_by_no_more_than_one_group_costs(limit: float):
    purse = Purse(limit)
    done = await outcomes(purse, [1.0] * 40)
    assert limit <= purse.spent < limit + 1.0
    assert sum(done) == purse.spent


async def test_groups_that_cost_nothing_run_at_once_after_the_first():
    purse = Purse(1.0)
    assert all(await outcomes(purse, [0.0] * 30))
    assert purse.most == 29


async def test_a_group_that_is_cancelled_lets_the_next_one_begin():
    purse = Purse(1.0)
    is_held = asyncio.Event()

    async def hold() -> None:
        async with purse.budgets.room("k"):
            is_held.set()
            await asyncio.Event().wait()

    holder = asyncio.create_task(hold())
    await is_held.wait()
    following = asyncio.create_task(purse.judge(0.1))
    await asyncio.sleep(0)
    assert not purse.running
    holder.cancel()
    await following
    assert purse.spent == 0.1
