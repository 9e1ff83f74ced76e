"""What is trained of a demonstration: the assistant's own tokens, in the context they would be sampled in."""

import json

import pytest
import renderers
from renderers import create_renderer
from transformers import AutoTokenizer

from gavel.llm.types import Message
from gavel.scenarios.trajectory import History
from gavel.trainer.data.token_sequences import TokenSequence, join_turns
from gavel.trainer.embedded import EMBEDDED_PATH
from gavel.trainer.policy.policy import Policy
from gavel.trainer.serving.turn_cache import TurnCache
from gavel.trainer.sft.sft_batch import UnsayableError, read_demonstrations
from tests.trainer.conftest import OPENING, TOOLS, sampled_turn


def call(name: str, **arguments: str) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }


def say(text: str, **extra: str) -> Message:
    return {"role": "assistant", "content": text, **extra}


LOOK = call("look_up_order", order_id="7890")
RESULT: Message = {"role": "tool", "tool_call_id": "c1", "content": "a lamp"}
THANKS: Message = {"role": "user", "content": "Thanks!"}
CLOSING = say("Your money is on its way.")
EPISODE = [*OPENING, LOOK, RESULT, CLOSING, THANKS, say("Bye.")]


def sequences_of(policy: Policy, messages: list) -> list[TokenSequence]:
    return join_turns([read_demonstrations(History(messages_and_choices=messages, tools=TOOLS), policy)])


def trained_texts(policy: Policy, tokens: TokenSequence) -> list[str]:
    """The runs of trained tokens, decoded."""
    runs: list[list[int]] = []
    for place, own in enumerate(tokens.sampled):
        if own and not tokens.sampled[place - 1]:
            runs.append([])
        if own:
            runs[-1].append(tokens.token_ids[place])
    return [policy.tokenizer.decode(run) for run in runs]


def test_exactly_the_assistants_tokens_are_trained(policy):
    (tokens,) = sequences_of(policy, EPISODE)
    assert trained_texts(policy, tokens) == [
        '<tool_call>\n{"name": "look_up_order", "arguments": {"order_id": "7890"}}\n</tool_call><|im_end|>',
        "Your money is on its way.<|im_end|>",
        "Bye.<|im_end|>",
    ]
    context = policy.tokenizer.decode([t for t, own in zip(tokens.token_ids, tokens.sampled, strict=True) if not own])
    assert "Pay the money back." in context, "the tools are shown"
    assert "a lamp" in context
    assert set(tokens.logprobs) == {0.0}
    assert set(tokens.temperatures) == {1.0}


def test_a_demonstrated_turn_stands_in_the_prompt_that_the_endpoint_would_have_made(policy):
    turns = read_demonstrations(History(messages_and_choices=EPISODE, tools=TOOLS), policy)
    endpoint = TurnCache(policy.renderer, policy.decode)
    places = [at for at, message in enumerate(EPISODE) if message["role"] == "assistant"]
    for at, turn in zip(places, turns, strict=True):
        assert turn.prompt_ids == endpoint.prompt(EPISODE[:at], TOOLS).token_ids
        endpoint.sampled(EPISODE[:at], TOOLS, EPISODE[at], turn.prompt_ids, turn.token_ids)


def test_a_template_that_drops_earlier_reasoning_makes_several_sequences(policy):
    reasoned = [*OPENING, say("Sure?", reasoning_content="Better ask."), THANKS, say("Done.", reasoning_content="Go.")]
    first, second = sequences_of(policy, reasoned)
    assert trained_texts(policy, first) == ["<think>\nBetter ask.\n</think>\n\nSure?<|im_end|>"]
    assert trained_texts(policy, second) == ["<think>\nGo.\n</think>\n\nDone.<|im_end|>"]
    assert "Better ask." not in policy.tokenizer.decode(second.token_ids)


def test_sampled_turns_keep_their_ids_and_messages_beside_them_are_context(policy):
    prompt = policy.renderer.render_ids(OPENING, tools=TOOLS, add_generation_prompt=True)
    odd = [77, 78, 79, policy.renderer.get_stop_token_ids()[0]]  # no tokenizer would split it so
    unknown = {"role": "developer", "content": "what is never rendered is never judged"}
    (tokens,) = sequences_of(policy, [unknown, *OPENING, sampled_turn(prompt, odd), THANKS, say("Not sampled.")])
    assert tokens.token_ids == prompt + odd
    assert [t for t, own in zip(tokens.token_ids, tokens.sampled, strict=True) if own] == odd


@pytest.mark.parametrize(
    "turn",
    [
        say("<think>Hidden.</think>Shown."),
        say('<tool_call>\n{"name": "refund", "arguments": {}}\n</tool_call>'),
        call("refund") | {"tool_calls": [{"function": {"name": "refund", "arguments": "no JSON"}}]},
    ],
)
def test_what_would_not_be_read_back_is_refused(policy, turn):
    with pytest.raises(UnsayableError, match="reasoning_content"):
        sequences_of(policy, [*OPENING, turn])


def test_a_format_that_opens_a_reasoning_block_is_continued_from_its_own_prompt_to_its_own_stop(fresh_policy):
    specials = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    fresh_policy.tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_PATH)
    fresh_policy.tokenizer.add_special_tokens({"additional_special_tokens": specials})
    fresh_policy.renderer = create_renderer(fresh_policy.tokenizer, renderers.Qwen35RendererConfig())
    turns = read_demonstrations(History(messages_and_choices=EPISODE, tools=TOOLS), fresh_policy)
    closing = fresh_policy.tokenizer.decode(turns[1].token_ids)
    assert closing == "\n</think>\n\nYour money is on its way.<|im_end|>"
    for turn, message in zip(turns, [LOOK, CLOSING, say("Bye.")], strict=True):
        assert turn.token_ids[-1] in fresh_policy.renderer.get_stop_token_ids()
        read = fresh_policy.renderer.parse_response(turn.token_ids, tools=TOOLS, prompt_ids=turn.prompt_ids)
        assert read.content.strip() == (message["content"] or "")
        assert not read.reasoning_content
        called = [each["function"]["name"] for each in message.get("tool_calls") or ()]
        assert [call.name for call in read.tool_calls] == called
