import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel.judge.errors import ContextTooSmallError
from gavel.judge.prompt.canonical_group import CanonicalGroup, TextEvent, ToolCallEvent, canonicalize
from gavel.judge.prompt.fenced_transcript import PromptMarkers, render_transcripts
from gavel.judge.prompt.truncate import (
    TextTruncator,
    count_tokens,
    max_members_shown,
    truncate_group,
)
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


def words(group: CanonicalGroup) -> list[int]:
    """Of each member, however its name has sorted it."""
    return sorted(text.count("word") for member in group.members for text in texts(member))


def texts(member) -> list[str]:
    return [event.text for conversation in member.conversations for event in conversation.events]


def test_every_member_keeps_the_same_length_and_the_shorter_ones_all():
    group = group_of(20, 500, 3000)
    fitting = truncate_group(group, 700, size)
    assert size(fitting) <= 700
    short, middle, long = words(fitting)
    assert short == 20
    assert middle == long > 200


def test_long_conversations_lose_their_middle_when_short_texts_are_too_much():
    group = group_of(100, 100, turns=60)
    fitting = truncate_group(group, 1500, size)
    assert size(fitting) <= 1500
    for member in fitting.members:
        shown = texts(member)
        assert shown[0].startswith("member")
        assert shown[-1].startswith("member")
        assert sum("tokens left out" in text and not text.startswith("member") for text in shown) == 1
        assert "turn 0 " in shown[0]
        assert "turn 59" in shown[-1]


def test_a_context_without_room_for_the_shortest_form_is_an_error_that_says_so():
    with pytest.raises(ContextTooSmallError, match="room for a prompt of 30 tokens"):
        truncate_group(group_of(500, 600), 30, size)


def test_arguments_and_results_are_cut_by_the_same_rule():
    long = {"path": "a", "text": "word " * 2000}
    items = [
        choice(calls=[("write", json.dumps(long))]),
        {"role": "tool", "tool_call_id": "c0", "content": "line " * 2000},
    ]
    group = canonicalize(
        {0: Trajectory(messages_and_choices=[*OPENING, *items]), 1: Trajectory(messages_and_choices=OPENING)}
    )
    fitting = truncate_group(group, 600, size)
    call = next(
        e for member in fitting.members for c in member.conversations for e in c.events if isinstance(e, ToolCallEvent)
    )
    assert size(fitting) <= 600
    assert "tokens left out" in call.arguments
    assert call.result
    assert "tokens left out" in call.result
    assert abs(count_tokens(call.arguments) - count_tokens(call.result)) < 20


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 400), min_size=2, max_size=4), st.integers(1, 12), st.integers(150, 1200))
def test_it_fits_or_it_is_an_error(lengths, turns, most):
    group = group_of(*lengths, turns=turns)
    try:
        assert size(truncate_group(group, most, size)) <= most
    except ContextTooSmallError:
        assert most < 600


def test_as_many_members_are_shown_as_there_is_room_for():
    group = group_of(*[200] * 9)
    everybody = max_members_shown(group, 100_000)
    few = max_members_shown(group, 500)
    assert everybody == 9
    assert 2 < few < 9
    assert max_members_shown(group, 10) == 2
    some = CanonicalGroup(group.members[:few], group.shared)
    assert TextEvent("system", "You run the returns desk.") in some.shared
    assert size(truncate_group(some, 500, size)) <= 500


MARK = re.compile(r" ?\[… (\d+) tokens left out …\] ?")
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
    assert int(left_out[1]) == count_tokens(text) - most
    assert count_tokens(head) + count_tokens(tail) <= most


@given(st.text(max_size=200), st.integers(1, 400))
def test_what_fits_is_left_as_it_is(text, most):
    shown = TextTruncator().truncate(text, most)
    assert (shown == text) == (count_tokens(text) <= most)


def test_what_is_left_out_of_a_very_long_text_is_estimated_and_told_so():
    text = "退货政策 one two three\n" * 20_000
    mark = re.search(r"\[… about (\d+) tokens left out …\]", TextTruncator().truncate(text, 500))
    assert mark
    assert int(mark[1]) == pytest.approx(count_tokens(text) - 500, rel=0.02)
