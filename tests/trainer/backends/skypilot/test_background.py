"""Blocking calls beside an event loop."""

import threading

import pytest

from gavel.trainer.backends.skypilot.sky_host import in_background


async def test_a_call_gives_what_it_returns_or_raises() -> None:
    assert await in_background(lambda: 3, 60) == 3
    with pytest.raises(KeyError):
        await in_background(lambda: {}["none"], 60)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await in_background(lambda: next(iter(())), 60)


async def test_a_call_that_hangs_is_left_and_keeps_no_process_alive() -> None:
    never = threading.Event()
    with pytest.raises(TimeoutError):
        await in_background(never.wait, 0.05)
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "gavel-cluster")
    never.set()
