"""Tool calls that cannot be read: the message has the text that was sampled, and the conversation goes on from it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from renderers import ParsedToolCall

from gavel.trainer.policy.template_renderer import TOOLS, HermesCalls
from gavel.trainer.serving.chat_objects import reply_message, text_with
from gavel.trainer.serving.turn_cache import TurnCache
from tests.trainer.policy.test_chat_formats import HERMES, renderer

ASKED: list[Any] = [{"role": "user", "content": "Where is it?"}]
OPENED = '<tool_call>\n{"name": "look_up", "arguments": {"word": 10\n'
SAID = [
    f"{OPENED}</tool_call>",
    OPENED,
    "I am sorry. <tool_call>\nrefund",
    "I am sorry.\n\n<tool_call>\nrefund</tool_call>",
    "<tool_call>",
    '<tool_call>{"arguments": {}}</tool_call>\n<tool_call>[]</tool_call>',
    f"{OPENED}</tool_call> Monday",
    f"Well. {OPENED}</tool_call>  \n I am",
]
TEXT = st.text("ab \n<{é", max_size=6)


def decode(token_ids: Any) -> str:
    return "".join(map(chr, token_ids))


@given(TEXT, st.lists(st.tuples(st.sampled_from(["", "\n", " "]), TEXT), max_size=3), TEXT, st.booleans())
def test_the_text_is_what_was_sampled(content: str, calls: list[tuple[str, str]], after: str, spans: bool) -> None:
    whole, found = content, []
    for between, raw in calls:
        block = f"[{raw}]"
        whole += between
        span = (len(whole), len(whole) + len(block)) if spans else None
        whole += block
        found.append(ParsedToolCall(raw=raw if spans else block, token_span=span))
    whole += after if calls else ""
    assert text_with(content, found, [*map(ord, whole)], decode) in (whole, whole.lstrip("\n "))


def test_a_span_that_is_not_the_calls_is_not_believed() -> None:
    call = ParsedToolCall(raw="refund(1", token_span=(0, 2))
    assert text_with("Well.", [call], [*map(ord, "Well. | refund(1")], decode) == "Well.\nrefund(1"


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("form", ["exact", "template", "tags are text"])
def test_a_conversation_goes_on_from_a_call_that_cannot_be_read(policy: Any, form: str, said: str) -> None:
    found: Any = policy.renderer if form == "exact" else renderer(HERMES)
    if form == "tags are text":
        found._tool_parser = HermesCalls(found._tokenizer)
    prompt = found.render_ids(ASKED, tools=TOOLS, add_generation_prompt=True)
    sampled = [*policy.tokenizer.encode(said), found.get_stop_token_ids()[0]]
    parsed = found.parse_response(sampled, prompt_ids=prompt)
    reply = reply_message(parsed, sampled[:-1], policy.decode)
    assert reply == {"role": "assistant", "content": said}
    turns = TurnCache(found, policy.decode)
    turns.sampled(ASKED, TOOLS, reply, prompt, sampled)
    following = turns.prompt([*ASKED, reply, {"role": "user", "content": "And?"}], TOOLS)
    assert following.continues
    assert following.token_ids[: len(prompt) + len(sampled)] == [*prompt, *sampled]


@pytest.mark.parametrize("calls", ["{broken}\n{whole}", "{whole}\n{broken}"])
@pytest.mark.parametrize("form", ["exact", "template", "tags are text"])
def test_a_call_that_can_be_read_is_not_in_the_text_too(policy: Any, form: str, calls: str) -> None:
    found: Any = policy.renderer if form == "exact" else renderer(HERMES)
    if form == "tags are text":
        found._tool_parser = HermesCalls(found._tokenizer)
    broken = f"{OPENED}</tool_call>"
    whole = '<tool_call>\n{"name": "look_up", "arguments": {"word": "a"}}\n</tool_call>'
    sampled = policy.tokenizer.encode(calls.format(broken=broken, whole=whole))
    prompt = found.render_ids(ASKED, tools=TOOLS, add_generation_prompt=True)
    reply = reply_message(found.parse_response(sampled, prompt_ids=prompt), sampled, policy.decode)
    assert reply["content"] == broken
    assert len(reply["tool_calls"]) == 1
