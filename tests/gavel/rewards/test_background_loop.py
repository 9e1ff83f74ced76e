"""The loop that judges are asked on."""

import asyncio
import threading

import pytest

from gavel.rewards.background_loop import run, submitted


async def where() -> tuple[asyncio.AbstractEventLoop, str]:
    return asyncio.get_running_loop(), threading.current_thread().name


async def test_it_is_the_same_for_threads_and_for_other_loops():
    here = await submitted(where())
    assert here == await asyncio.to_thread(run, where())
    assert here[0] is not asyncio.get_running_loop()


async def test_cancelling_the_caller_cancels_the_work():
    started, ended = threading.Event(), threading.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(submitted(work()))
    assert await asyncio.to_thread(started.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ended.wait, 30)


def test_what_it_raises_is_raised():
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run(fail())
