import asyncio
import contextvars
import threading

import pytest

from gavel.judge.panel.thread_offload import LONG, characters_of, off_loop_if_long
from gavel.scenarios.trajectory import History, Trajectory
from tests.judge.groups import choice


@pytest.mark.parametrize("characters", [LONG, LONG + 1])
async def test_only_work_over_long_text_is_done_in_a_thread(characters):
    thread = await off_loop_if_long(characters, threading.get_ident)
    assert (thread == threading.get_ident()) == (characters <= LONG)


async def test_all_long_work_of_an_event_loop_shares_one_thread():
    threads = await asyncio.gather(*(off_loop_if_long(LONG + 1, threading.get_ident) for _ in range(8)))
    assert len(set(threads)) == 1


def test_each_event_loop_has_a_thread_of_its_own():
    async def thread() -> str:
        return await off_loop_if_long(LONG + 1, lambda: threading.current_thread().name)

    assert all("long group" in asyncio.run(thread()) for _ in range(2))


async def test_long_work_sees_the_context_of_its_caller():
    variable.set("mine")
    assert await off_loop_if_long(LONG + 1, variable.get) == "mine"


variable = contextvars.ContextVar("variable", default="none")
LONG_TEXT = "word " * LONG


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": LONG_TEXT},
        {"role": "user", "content": [{"type": "text", "text": LONG_TEXT}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": LONG_TEXT}}]},
        choice(LONG_TEXT),
        choice(calls=[("f", LONG_TEXT)]),
    ],
    ids=["text", "parts", "arguments", "said", "called"],
)
def test_long_text_is_noticed_wherever_it_is(item):
    short = Trajectory(messages_and_choices=[{"role": "user", "content": "hi"}, choice("hello")])
    assert characters_of([short] * 10) < LONG
    assert characters_of([short, Trajectory(messages_and_choices=[item])]) > LONG
    beside = short.model_copy(update={"additional_histories": [History(messages_and_choices=[item])]})
    assert characters_of([beside]) > LONG
