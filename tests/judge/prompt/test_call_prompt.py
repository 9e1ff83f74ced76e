from random import Random

import pytest

from gavel.judge.panel.modes import orders
from gavel.judge.prompt.call_prompt import GroupPrompts, count_message_tokens
from gavel.judge.prompt.canonical_group import canonicalize
from gavel.judge.prompt.fenced_transcript import draw_markers
from gavel.judge.rubric import Rubric
from gavel.scenarios.trajectory import Trajectory
from tests.judge.groups import OPENING, choice

DUMP = "shared line\n" * 400


def prompts_of(*texts: str, dump: str = DUMP) -> GroupPrompts:
    """Members that read the same dump after words of their own, and end with one of the texts."""
    members = [
        [*OPENING, choice(f"I am {n}."), {"role": "user", "content": dump}, choice(t)] for n, t in enumerate(texts)
    ]
    group = canonicalize({n: Trajectory(messages_and_choices=items) for n, items in enumerate(members)})
    return GroupPrompts(group, draw_markers(group, Random(0)), Rubric("Be right."), lambda *_: "Score them.")


LONG = [f"{n} " + f"word{n} " * (5_000 + 100 * n) for n in range(4)]
ROOMS = pytest.mark.parametrize("room", [100_000, 8_000], ids=["whole", "truncated"])


@ROOMS
def test_all_orders_begin_with_the_same_text_up_to_the_first_member(room):
    prompts = prompts_of(*LONG)
    made = [prompts.fit(order, room) for order in orders(4, 4, "seed")]
    [beginning] = {prompt.messages[1]["content"][: prompt.same_in_orders] for prompt in made}
    for prompt in made:
        rest = prompt.messages[1]["content"][prompt.same_in_orders :]
        assert rest.startswith(f"\n{prompts.markers.fence}trajectory ")
        assert count_message_tokens(prompt.messages) <= room
        assert prompt.shortened == (room < 100_000)
    assert "shared line" in beginning


def test_all_pairs_begin_with_the_same_text():
    prompts = prompts_of(*LONG)
    made = [prompts.fit(pair, 100_000) for pair in [(0, 1), (1, 0), (2, 3), (3, 1)]]
    [beginning] = {prompt.messages[1]["content"][: prompt.same_in_group] for prompt in made}
    assert DUMP in beginning
    assert len(made[0].messages[1]["content"]) < 2.2 * len(made[2].messages[1]["content"])
