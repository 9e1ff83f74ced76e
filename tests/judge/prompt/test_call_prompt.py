from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.panel.modes import orders
from gavel.judge.prompt import call_prompt, fenced_transcript, truncate
from gavel.judge.prompt.call_prompt import GroupPrompts, count_message_tokens, fit_messages
from gavel.judge.prompt.canonical_group import canonicalize
from gavel.judge.prompt.fenced_transcript import draw_markers, read_transcripts
from gavel.judge.prompt.sanitize import sanitize
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
    return GroupPrompts(group, draw_markers(group, Random(0)), Rubric("Be right."))


LONG = [f"{n} " + f"word{n} " * (5_000 + 100 * n) for n in range(4)]
ROOMS = pytest.mark.parametrize("room", [100_000, 8_000], ids=["whole", "truncated"])


@ROOMS
def test_all_orders_begin_with_the_same_text_up_to_the_first_member(room):
    prompts = prompts_of(*LONG)
    made = [fit_messages(prompts, order, room) for order in orders(4, 4, "seed")]
    [beginning] = {prompt.messages[1]["content"][: prompt.same_in_orders] for prompt in made}
    for prompt in made:
        rest = prompt.messages[1]["content"][prompt.same_in_orders :]
        assert rest.startswith(f"\n{prompts.markers.fence}trajectory ")
        assert count_message_tokens(prompt.messages) <= room
        assert prompt.shortened == (room < 100_000)
    assert "shared line" in beginning


def test_all_pairs_begin_with_the_same_text():
    prompts = prompts_of(*LONG)
    made = [fit_messages(prompts, pair, 100_000) for pair in [(0, 1), (1, 0), (2, 3), (3, 1)]]
    [beginning] = {prompt.messages[1]["content"][: prompt.same_in_group] for prompt in made}
    assert DUMP in beginning
    assert len(made[0].messages[1]["content"]) < 2.2 * len(made[2].messages[1]["content"])


@given(st.permutations(range(4)), st.integers(2, 4))
def test_a_reader_finds_the_members_of_any_call(order, count):
    texts = ["one", "two", "x" * 120, "x" * 120 + "!"]
    prompts = prompts_of(*texts)
    read = read_transcripts(fit_messages(prompts, order[:count], 100_000).messages[1]["content"])
    shown = {prompts.markers.labels[n]: prompts._whole.group.members[n].conversations[0].events for n in order[:count]}
    assert list(read) == list(shown)
    for label, events in shown.items():
        assert read[label][0].events[-len(events) :] == events


def test_each_text_is_made_safe_once_whatever_the_number_of_calls(monkeypatch):
    seen = Counter[str]()

    def counted(text: str) -> str:
        seen[text] += 1
        return sanitize(text)

    prompts = prompts_of(*LONG)
    monkeypatch.setattr(fenced_transcript, "sanitize", counted)
    for order in [*orders(4, 8, "seed"), (0, 1), (2, 3), (1, 2)]:
        fit_messages(prompts, order, 100_000)
    assert {seen[text.rstrip()] for text in (DUMP, *LONG)} == {1}


def test_a_group_is_truncated_once_for_all_orders_of_its_members(monkeypatch):
    truncated: list[int] = []

    def counted(group, *arguments):
        truncated.append(len(group.members))
        return truncate_group(group, *arguments)

    truncate_group = call_prompt.truncate_group
    monkeypatch.setattr(call_prompt, "truncate_group", counted)
    prompts = prompts_of(*LONG)
    made = [fit_messages(prompts, order, 8_000) for order in orders(4, 8, "seed")]
    assert truncated == [4]
    assert all(prompt.shortened for prompt in made)


def test_of_a_long_text_only_what_may_be_shown_is_encoded(monkeypatch):
    encoded: list[int] = []

    def counted(piece: str) -> list[int]:
        encoded.append(len(piece))
        return encode(piece)

    encode = truncate._encode
    monkeypatch.setattr(truncate, "_encode", counted)
    texts = [f"{n} " + f"word{n} " * 200_000 for n in range(4)]
    prompts = prompts_of(*texts)
    for order in orders(4, 4, "seed"):
        fit_messages(prompts, order, 2_000)
    assert sum(encoded) < sum(map(len, texts)) / 4


def test_the_prompt_does_not_depend_on_which_order_was_made_first():
    first, second = prompts_of(*LONG), prompts_of(*LONG)
    rows = orders(4, 4, "seed")
    ahead = {row: fit_messages(first, row, 8_000) for row in rows}
    assert ahead == {row: fit_messages(second, row, 8_000) for row in reversed(rows)}
