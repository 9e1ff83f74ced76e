"""What a burst of replies looks like: the next requests go out before the replies are read."""

import asyncio
from collections.abc import Awaitable, Callable

from gavel.llm.loop_turns import next_turn


async def _rounds_until(done: Awaitable[object]) -> int:
    """Rounds of the event loop that pass meanwhile."""
    rounds, running = 0, asyncio.ensure_future(done)
    while not running.done():
        await asyncio.sleep(0)
        rounds += 1
    await running
    return rounds


def test_turns_are_given_one_in_a_round_first_come_first_served():
    async def run() -> list[tuple[int, int]]:
        rounds, seen = 0, list[tuple[int, int]]()

        async def work(number: int) -> None:
            await next_turn()
            seen.append((number, rounds))

        workers = [asyncio.create_task(work(number)) for number in range(5)]
        while not all(worker.done() for worker in workers):
            await asyncio.sleep(0)
            rounds += 1
        return seen

    seen = asyncio.run(run())
    assert [number for number, _ in seen] == list(range(5))
    assert len({rounds for _, rounds in seen}) == 5


def test_who_was_ready_before_goes_first():
    async def run() -> list[str]:
        order = list[str]()

        async def say(word: str, before: Callable[[], Awaitable[object]]) -> None:
            await before()
            order.append(word)

        reading = [asyncio.create_task(say("read", next_turn)) for _ in range(3)]
        sending = [asyncio.create_task(say("send", lambda: asyncio.sleep(0))) for _ in range(3)]
        await asyncio.wait([*reading, *sending])
        return order

    assert asyncio.run(run())[:3].count("send") >= 2


def test_a_cancelled_task_keeps_no_turn():
    async def run() -> int:
        waiting = [asyncio.create_task(next_turn()) for _ in range(100)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        return await _rounds_until(next_turn())

    assert asyncio.run(run()) < 10


def test_each_event_loop_has_turns_of_its_own():
    for _ in range(3):
        assert asyncio.run(_rounds_until(next_turn())) < 10
