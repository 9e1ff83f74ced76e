"""Turns whose clients leave while their grammar is being compiled."""

import asyncio
import contextlib
import threading
from concurrent.futures import Future
from typing import Any

from gavel.trainer.engines.protocol import Grammar, Sampled, SamplingRequest
from gavel.trainer.serving.turn_sampling import sample_turn

REQUEST = SamplingRequest([1], frozenset({2}), 4, 1.0, 0, grammar=Grammar())


class Compiling:
    """An engine that is compiling a grammar until it is let go on."""

    def __init__(self) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()
        self.sampling: Future[Sampled] = Future()

    def submit(self, request: SamplingRequest) -> "Future[Sampled]":
        self.began.set()
        self.go_on.wait()
        return self.sampling


async def leave(engine: Compiling, *, and_the_loop: bool) -> list[dict[str, Any]]:
    """What the loop reports when a client leaves, and when then all tasks are cancelled, as at a loop's end."""
    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    turn = asyncio.create_task(sample_turn(engine, REQUEST))  # type: ignore[arg-type]
    await asyncio.to_thread(engine.began.wait)
    turn.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await turn
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    if and_the_loop:
        for task in rest:
            task.cancel()
    engine.go_on.set()
    await asyncio.gather(*rest, return_exceptions=True)
    await asyncio.sleep(0)
    return reported


def test_a_client_that_leaves_ends_its_turn_once_it_is_submitted() -> None:
    engine = Compiling()
    assert asyncio.run(leave(engine, and_the_loop=False)) == []
    assert engine.sampling.cancelled()


def test_a_loop_that_ends_meanwhile_reports_nothing() -> None:
    assert asyncio.run(leave(Compiling(), and_the_loop=True)) == []
