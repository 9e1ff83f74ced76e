"""The memory that makes a conversation go on from the very tokens that were sampled."""

import pytest

from tests.trainer.conftest import OPENING, TOOLS
from trainer import conversations as room
from trainer.conversations import Conversations

CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up_order", "arguments": '{"order_id": "7890"}'}}
REPLY = {"role": "assistant", "content": "", "tool_calls": [CALL]}
ANSWER = {"role": "tool", "tool_call_id": "call_1", "content": '{"item": "lamp"}'}


@pytest.fixture
def conversations(policy):
    return Conversations(policy.renderer)


@pytest.fixture
def said(policy):
    """The same call in an unusual tokenisation: character by character."""
    text = '<tool_call>\n{"name": "look_up_order", "arguments": {"order_id": "7890"}}\n</tool_call>'
    ids = [token for character in text for token in policy.tokenizer.encode(character, add_special_tokens=False)]
    return [*ids, policy.renderer.get_stop_token_ids()[0]]


def test_a_new_conversation_is_rendered(conversations, policy):
    ids = conversations.prompt_ids(OPENING, TOOLS)
    assert ids == list(policy.renderer.render_ids(OPENING, tools=TOOLS, add_generation_prompt=True))
    assert conversations.prompt_ids(OPENING, TOOLS) == ids
    assert conversations.prompt_ids(OPENING, None) != ids


def test_a_sampled_conversation_goes_on_from_its_own_tokens(conversations, policy, said):
    prompt = conversations.prompt_ids(OPENING, TOOLS)
    conversations.sampled(OPENING, TOOLS, REPLY, prompt, said)
    ids = conversations.prompt_ids([*OPENING, REPLY, ANSWER], TOOLS)
    assert ids[: len(prompt) + len(said)] == prompt + said
    rendered = list(policy.renderer.render_ids([*OPENING, REPLY, ANSWER], tools=TOOLS, add_generation_prompt=True))
    assert ids != rendered
    assert policy.tokenizer.decode(ids) == policy.tokenizer.decode(rendered)


def test_what_clients_do_to_a_message_without_changing_it_is_no_edit(conversations, said):
    prompt = conversations.prompt_ids(OPENING, TOOLS)
    conversations.sampled(OPENING, TOOLS, REPLY, prompt, said)
    dumped = REPLY | {"content": None, "refusal": None, "audio": None, "function_call": None}
    assert conversations.prompt_ids([*OPENING, dumped, ANSWER], TOOLS)[: len(prompt) + len(said)] == prompt + said


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
    prompt = conversations.prompt_ids(OPENING, TOOLS)
    conversations.sampled(OPENING, TOOLS, REPLY, prompt, said)
    expected = policy.renderer.render_ids(edited, tools=TOOLS, add_generation_prompt=True)
    assert conversations.prompt_ids(edited, TOOLS) == list(expected)


def test_other_tools_make_another_conversation(conversations, said):
    prompt = conversations.prompt_ids(OPENING, TOOLS)
    conversations.sampled(OPENING, TOOLS, REPLY, prompt, said)
    ids = conversations.prompt_ids([*OPENING, REPLY, ANSWER], TOOLS[:1])
    assert ids[: len(prompt)] != prompt


def test_the_longest_unused_turns_are_forgotten_first(conversations, said, monkeypatch):
    monkeypatch.setattr(room, "_REMEMBERED_TURNS", 2)
    openings = [[{"role": "user", "content": f"order {number}"}] for number in range(3)]

    def remembered(opening) -> bool:
        prompt = conversations.prompt_ids(opening, TOOLS)
        ids = conversations.prompt_ids([*opening, REPLY, ANSWER], TOOLS)
        return ids[: len(prompt) + len(said)] == prompt + said

    for opening in openings[:2]:
        conversations.sampled(opening, TOOLS, REPLY, conversations.prompt_ids(opening, TOOLS), said)
    assert remembered(openings[0])
    conversations.sampled(openings[2], TOOLS, REPLY, conversations.prompt_ids(openings[2], TOOLS), said)
    assert [remembered(opening) for opening in openings] == [True, False, True]
