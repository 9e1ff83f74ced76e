import threading

import pytest

from gavel.judge.panel.thread_offload import LONG, characters_of, off_loop_if_long
from gavel.scenarios.trajectory import History, Trajectory
from tests.judge.groups import choice


@pytest.mark.parametrize("characters", [LONG, LONG + 1])
async def test_only_work_over_long_text_is_done_in_a_thread(characters):
    thread = await off_loop_if_long(characters, threading.get_ident)
    assert (thread == threading.get_ident()) == (characters <= LONG)


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
