"""So many calls at once, of each key."""

import asyncio

import pytest

from gavel.compat.art.utils.limit_concurrency import limit_concurrency


@pytest.mark.parametrize(("by_key", "most"), [(False, 2), (True, 4)])
async def test_no_more_calls_run_at_once_than_allowed(by_key: bool, most: int) -> None:
    running: list[int] = []
    seen: list[int] = []

    @limit_concurrency(2, derive_key=(lambda number: str(number % 2)) if by_key else None)
    async def call(number: int) -> int:
        running.append(number)
        seen.append(len(running))
        for _ in range(5):
            await asyncio.sleep(0)
        running.remove(number)
        return number

    assert await asyncio.gather(*map(call, range(10))) == list(range(10))
    assert max(seen) == most
