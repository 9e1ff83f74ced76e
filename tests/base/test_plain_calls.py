"""Plain functions run off the event loop, one after another, and what they raise is told."""

import asyncio
import contextvars
import gc
import threading

import pytest

from gavel.base.plain_calls import PlainCalls
from tests.limits import HANG_SECONDS

NAME = contextvars.ContextVar("name", default="")


@pytest.fixture
def calls():
    made = PlainCalls()
    yield made
    made.close()


async def test_calls_share_one_thread_and_see_the_callers_context(calls):
    NAME.set("mine")
    found = [await calls.run(lambda: (threading.get_ident(), NAME.get())) for _ in range(3)]
    assert {name for _, name in found} == {"mine"}
    assert {ident for ident, _ in found} ^ {threading.get_ident()} == {found[0][0], threading.get_ident()}


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt()])
async def test_what_a_function_raises_is_raised_where_it_is_awaited(calls, error):
    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        await calls.run(fail)
    assert await calls.run(lambda: 1) == 1


async def test_what_is_given_up_holds_up_no_other_and_is_not_begun_later(calls):
    release, begun = threading.Event(), []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await calls.run(lambda: release.wait(HANG_SECONDS))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await calls.run(lambda: begun.append(1))
    release.set()
    assert await calls.run(lambda: "goes on") == "goes on"
    assert begun == []


async def test_what_must_run_is_begun_when_the_thread_is_free_although_nobody_waits(calls):
    release, begun = threading.Event(), []
    for work, must in ((lambda: release.wait(HANG_SECONDS), False), (lambda: begun.append(1), True)):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await calls.run(work, must=must)
    assert begun == []
    release.set()
    assert await calls.run(lambda: list(begun)) == [1]


@pytest.mark.parametrize("end", [PlainCalls.close, lambda calls: None], ids=["closed", "forgotten"])
async def test_the_thread_ends_when_it_is_closed_or_forgotten(end):
    calls = PlainCalls()
    thread = await calls.run(threading.current_thread)
    end(calls)
    del calls
    gc.collect()
    await asyncio.to_thread(thread.join, HANG_SECONDS)
    assert not thread.is_alive()
