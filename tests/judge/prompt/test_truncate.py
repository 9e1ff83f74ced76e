"""Prompts that fit: what is cut of members, and the text that all orders begin with."""

import re
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel.judge.errors import ContextTooSmallError
from gavel.judge.panel.modes import orders
from gavel.judge.prompt.call_prompt import GroupPrompts, count_message_tokens
from gavel.judge.prompt.canonical_group import CanonicalGroup, canonicalize
from gavel.judge.prompt.fenced_transcript import PromptMarkers, draw_markers, render_transcripts
from gavel.judge.prompt.truncate import TextTruncator, count_tokens, truncate_group
from gavel.judge.rubric import Rubric
from gavel.scenarios.trajectory import Trajectory
from tests.judge.groups import OPENING, choice


def group_of(*lengths: int, turns: int = 1) -> CanonicalGroup:
    """Members that say this many words, in each of their turns."""
    members = [
        [*OPENING, *(choice(f"member {n} turn {turn} " + "word " * length) for turn in range(turns))]
        for n, length in enumerate(lengths)
    ]
    return canonicalize({n: Trajectory(messages_and_choices=items) for n, items in enumerate(members)})


def size(group: CanonicalGroup) -> int:
    labels = tuple(f"W7Q{n}" for n in range(len(group.members)))
    return count_tokens(render_transcripts(group, range(len(group.members)), PromptMarkers("k3v", labels)))


def test_every_member_keeps_the_same_length_and_the_shorter_ones_all():
    group = group_of(20, 500, 3000)
    fitting = truncate_group(group, 700, size)
    assert size(fitting) <= 700
    short, middle, long = sorted(repr(member).count("word") for member in fitting.members)
    assert short == 20
    assert middle == long > 200


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 400), min_size=2, max_size=4), st.integers(1, 12), st.integers(150, 1200))
def test_it_fits_or_it_is_an_error(lengths, turns, most):
    group = group_of(*lengths, turns=turns)
    try:
        assert size(truncate_group(group, most, size)) <= most
    except ContextTooSmallError:
        assert most < 600


MARK = re.compile(r" ?\[… ([\d,]+) characters left out …\] ?")
TEXTS = ["one two three " * 50, "退货政策要求订单在三十天之内。" * 30, "🙂👩‍👩‍👧" * 60, "a" * 9000, "x = f(y)\n" * 100]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("most", [1, 16, 65])
def test_a_cut_keeps_head_and_tail_and_says_what_it_left_out(text, most):
    shown = TextTruncator().truncate(text, most)
    left_out = MARK.search(shown)
    assert left_out
    head, tail = shown[: left_out.start()], shown[left_out.end() :]
    assert text.startswith(head)
    assert text.endswith(tail)
    assert int(left_out[1].replace(",", "")) == len(text) - len(head) - len(tail)
    assert count_tokens(head) + count_tokens(tail) <= most


@given(st.text(max_size=200), st.integers(1, 400))
def test_what_fits_is_left_as_it_is(text, most):
    shown = TextTruncator().truncate(text, most)
    assert (shown == text) == (count_tokens(text) <= most)


DUMP = "shared line\n" * 400


def prompts_of(*texts: str, dump: str = DUMP) -> GroupPrompts:
    """Members that read the same dump after words of their own, and end with one of the texts."""
    members = [
        [*OPENING, choice(f"I am {n}."), {"role": "user", "content": dump}, choice(t)] for n, t in enumerate(texts)
    ]
    group = canonicalize({n: Trajectory(messages_and_choices=items) for n, items in enumerate(members)})
    return GroupPrompts(group, draw_markers(group, Random(0)), Rubric("Be right."), lambda *_: "Score them.")


LONG = [f"{n} " + f"word{n} " * (5_000 + 100 * n) for n in range(4)]


@pytest.mark.parametrize("room", [100_000, 8_000], ids=["whole", "truncated"])
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
