"""What a chat completion shows of its tokens."""

from collections.abc import Sequence
from typing import Any

import pytest
from renderers import ParsedResponse, ParsedToolCall

from gavel.trainer.engines.protocol import Sampled
from gavel.trainer.serving.chat_objects import is_call, logprobs_object, reply_message

PIECES = [b"caf", "é".encode()[:1], "é".encode()[1:], "🦜".encode()]


def decode(token_ids: Sequence[int]) -> str:
    return b"".join(PIECES[each] for each in token_ids).decode(errors="replace")


@pytest.mark.parametrize(("token", "expected"), [(0, list(b"caf")), (1, None), (2, None), (3, list("🦜".encode()))])
def test_the_bytes_of_a_part_of_a_character_are_null_rather_than_wrong(token: int, expected: list[int] | None) -> None:
    sampled = Sampled([token], [-0.5], "stop", 0, top_logprobs=[[(token, -0.5), (0, -2.0)]])
    (shown,) = logprobs_object(sampled, decode)["content"]
    assert shown["bytes"] == expected
    assert [each["bytes"] for each in shown["top_logprobs"]] == [expected, list(b"caf")]


@pytest.mark.parametrize(
    ("name", "arguments", "readable"),
    [
        ("refund", {"order_id": "1"}, True),
        ("refund", '{"order_id": "1"}', True),
        ("refund", [], False),
        ("refund", None, False),
        ("refund", "1002", False),
        ("refund", "order 1", False),
        ("refund", {"order_id": "\ud800"}, True),
        (5, {}, False),
        (["refund"], {}, False),
        ("refund", {"amount": float("nan")}, False),
        ("refund", {"amount": [float("inf")]}, False),
    ],
)
def test_a_call_that_no_client_could_read_stays_in_the_text(name: Any, arguments: Any, readable: bool) -> None:
    call = ParsedToolCall(raw="<as said>", name=name, arguments=arguments)
    assert is_call(call) == readable
    reply = reply_message(ParsedResponse(content="Well.", tool_calls=[call]), [], decode)
    assert (reply["content"], "tool_calls" in reply) == (("Well.", True) if readable else ("Well.\n<as said>", False))
