"""The memory that makes a conversation go on from the very tokens that were sampled."""

import pytest

from gavel.trainer.serving import turn_cache as room
from gavel.trainer.serving.turn_cache import TurnCache
from tests.trainer.conftest import OPENING, TOOLS

CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up_order", "arguments": '{"order_id": "7890"}'}}
REPLY = {"role": "assistant", "content": "", "tool_calls": [CALL]}
ANSWER = {"role": "tool", "tool_call_id": "call_1", "content": '{"item": "lamp"}'}


@pytest.fixture
def conversations(policy):
    return TurnCache(policy.renderer, policy.decode)


@pytest.fixture
def said(policy):
    """The same call in an unusual tokenisation: character by character."""
    text = '<tool_call>\n{"name": "look_up_order", "arguments": {"order_id": "7890"}}\n</tool_call>'
    ids = [token for character in text for token in policy.tokenizer.encode(character, add_special_tokens=False)]
    return [*ids, policy.renderer.get_stop_token_ids()[0]]


def test_a_sampled_conversation_goes_on_from_its_own_tokens(conversations, policy, said):
    prompt = conversations.prompt(OPENING, TOOLS).token_ids
    conversations.sampled(OPENING, TOOLS, REPLY, prompt, said)
    ids = conversations.prompt([*OPENING, REPLY, ANSWER], TOOLS).token_ids
    assert ids[: len(prompt) + len(said)] == prompt + said
    rendered = list(policy.renderer.render_ids([*OPENING, REPLY, ANSWER], tools=TOOLS, add_generation_prompt=True))
    assert ids != rendered
    assert policy.tokenizer.decode(ids) == policy.tokenizer.decode(rendered)


def test_a_sampled_conversation_is_known_again_whatever_tools_are_offered_then(conversations, said):
    first = conversations.prompt(OPENING, TOOLS)
    conversations.sampled(OPENING, TOOLS, REPLY, first.token_ids, said)
    assert not first.continues
    assert conversations.prompt([*OPENING, REPLY, ANSWER], TOOLS).continues
    assert conversations.prompt([*OPENING, REPLY, ANSWER], None).continues
    assert not conversations.prompt([*OPENING, REPLY | {"content": "Well."}, ANSWER], TOOLS).continues


QUESTION = {"role": "user", "content": "And order 1234?"}


def test_where_no_bridge_is_proven_the_sampled_tokens_still_stand_for_the_same_text(conversations, policy, said):
    prompt = conversations.prompt(OPENING, TOOLS).token_ids
    conversations.sampled(OPENING, TOOLS, REPLY, prompt, said)
    messages = [*OPENING, REPLY, ANSWER, QUESTION]
    assert policy.renderer.bridge_to_next_turn(prompt, said, [ANSWER, QUESTION], tools=TOOLS) is None
    found = conversations.prompt(messages, TOOLS)
    assert found.token_ids[: len(prompt) + len(said)] == prompt + said
    rendered = list(policy.renderer.render_ids(messages, tools=TOOLS, add_generation_prompt=True))
    assert found.token_ids != rendered
    assert policy.tokenizer.decode(found.token_ids) == policy.tokenizer.decode(rendered)


def test_a_turn_that_was_cut_goes_on_from_its_own_tokens_with_the_end_that_it_lacks(conversations, policy):
    prompt = conversations.prompt(OPENING, TOOLS).token_ids
    cut = [token for letter in "Let me s" for token in policy.tokenizer.encode(letter, add_special_tokens=False)]
    reply = {"role": "assistant", "content": policy.decode(cut)}
    conversations.sampled(OPENING, TOOLS, reply, prompt, cut)
    messages = [*OPENING, reply, QUESTION]
    conversations._renderer = Unbridged(policy.renderer)
    found = conversations.prompt(messages, TOOLS)
    rendered = list(policy.renderer.render_ids(messages, tools=TOOLS, add_generation_prompt=True))
    assert found.continues
    assert found.token_ids[: len(prompt) + len(cut)] == prompt + cut
    assert found.token_ids[len(prompt) + len(cut)] == policy.renderer.get_stop_token_ids()[0]
    assert found.token_ids != rendered
    assert policy.decode(found.token_ids) == policy.decode(rendered)


class Unbridged:
    """A renderer that proves no bridge."""

    def __init__(self, renderer):
        self._renderer = renderer

    def __getattr__(self, name):
        return getattr(self._renderer, name)

    def bridge_to_next_turn(self, *_, **__):
        return None


@pytest.mark.parametrize("cut", [False, True])
def test_what_the_template_shows_otherwise_is_rendered_as_it_shows_it(conversations, policy, said, cut):
    thought = policy.tokenizer.encode("<think>\nWell.\n</think>\n\n", add_special_tokens=False)
    prompt = conversations.prompt(OPENING, TOOLS).token_ids
    reply = REPLY | {"reasoning_content": "Well."}
    conversations.sampled(OPENING, TOOLS, reply, prompt, [*thought, *said][: -1 if cut else None])
    messages = [*OPENING, reply, ANSWER, QUESTION]
    found = conversations.prompt(messages, TOOLS)
    assert found.continues
    assert found.token_ids == list(policy.renderer.render_ids(messages, tools=TOOLS, add_generation_prompt=True))


@pytest.mark.parametrize(
    "edited",
    [
        [*OPENING, REPLY | {"content": "Let me see."}, ANSWER],
        [*OPENING, REPLY | {"tool_calls": [CALL | {"id": "call_2"}]}, ANSWER],
        [OPENING[0], {"role": "user", "content": "I want a refund for order 1234."}, REPLY, ANSWER],
        [OPENING[1], REPLY, ANSWER],
    ],
)
def test_an_edited_history_is_rendered_afresh(conversations, policy, said, edited):
    prompt = conversations.prompt(OPENING, TOOLS).token_ids
    conversations.sampled(OPENING, TOOLS, REPLY, prompt, said)
    expected = policy.renderer.render_ids(edited, tools=TOOLS, add_generation_prompt=True)
    assert conversations.prompt(edited, TOOLS).token_ids == list(expected)


def test_the_longest_unused_turns_are_forgotten_first(conversations, said, monkeypatch):
    monkeypatch.setattr(room, "_REMEMBERED_TURNS", 2)
    openings = [[{"role": "user", "content": f"order {number}"}] for number in range(3)]

    def remembered(opening) -> bool:
        prompt = conversations.prompt(opening, TOOLS).token_ids
        ids = conversations.prompt([*opening, REPLY, ANSWER], TOOLS).token_ids
        return ids[: len(prompt) + len(said)] == prompt + said

    for opening in openings[:2]:
        conversations.sampled(opening, TOOLS, REPLY, conversations.prompt(opening, TOOLS).token_ids, said)
    assert remembered(openings[0])
    conversations.sampled(openings[2], TOOLS, REPLY, conversations.prompt(openings[2], TOOLS).token_ids, said)
    assert [remembered(opening) for opening in openings] == [True, False, True]


def test_of_turns_that_say_the_same_the_one_with_the_same_ids_goes_on(conversations, said):
    prompt = conversations.prompt(OPENING, TOOLS).token_ids
    others = [[*said[:at], said[at], *said[at:]] for at in range(3)]
    for number, tokens in enumerate(others):
        reply = REPLY | {"tool_calls": [CALL | {"id": f"call_{number}"}], "reasoning_content": f"Thought {number}."}
        conversations.sampled(OPENING, TOOLS, reply, prompt, tokens)
    for number, tokens in enumerate(others):
        without_reasoning = REPLY | {"tool_calls": [CALL | {"id": f"call_{number}"}]}
        found = conversations.prompt([*OPENING, without_reasoning, ANSWER | {"tool_call_id": f"call_{number}"}], TOOLS)
        assert found.token_ids[len(prompt) :][: len(tokens)] == tokens


def test_a_conversation_that_ends_with_the_sampled_turn_goes_on_after_it(conversations, policy, said):
    prompt = conversations.prompt(OPENING, TOOLS).token_ids
    conversations.sampled(OPENING, TOOLS, REPLY, prompt, said)
    found = conversations.prompt([*OPENING, REPLY], TOOLS)
    assert found.continues
    assert found.token_ids[: len(prompt) + len(said)] == prompt + said
    assert policy.decode(found.token_ids[len(prompt) + len(said) :]).strip() == "<|im_start|>assistant"
    assert not conversations.prompt([*OPENING, REPLY | {"content": "Well."}], TOOLS).continues
