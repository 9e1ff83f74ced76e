import json

import pytest

from gavel.llm.client import Client
from gavel.llm.providers import with_breakpoint
from gavel.llm.types import CachedPrefix
from tests.endpoint import Answer

PROMPT = [
    {"role": "system", "content": "Judge."},
    {"role": "user", "content": "what all share, and the rest"},
    {"role": "assistant", "content": "no"},
    {"role": "user", "content": "again"},
]
SHARED = len("what all share")
MARK = {"cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    "model",
    [
        "anthropic/claude-sonnet-4-5",
        "bedrock/anthropic.claude-haiku-4-5-20251001-v1:0",
        "vertex_ai/claude-opus-4-5",
        "openrouter/anthropic/claude-sonnet-4.5",
    ],
)
def test_a_model_that_needs_it_gets_a_breakpoint_where_the_shared_part_ends(model):
    system, user, *repair = with_breakpoint(model, PROMPT, CachedPrefix(1, SHARED))
    assert [system, *repair] == [PROMPT[0], *PROMPT[2:]]
    shared, rest = user["content"]
    assert shared == {"type": "text", "text": "what all share", **MARK}
    assert rest == {"type": "text", "text": ", and the rest"}
    assert PROMPT[1]["content"] == "what all share, and the rest"


async def test_a_breakpoint_reaches_claude_and_its_cache_is_counted(endpoint):
    def claude(request):
        usage = {
            "input_tokens": 100,
            "output_tokens": 10,
            "cache_read_input_tokens": 2000,
            "cache_creation_input_tokens": 400,
        }
        body = {"id": "1", "type": "message", "role": "assistant", "model": "claude", "stop_reason": "end_turn"}
        return Answer({**body, "content": [{"type": "text", "text": "{}"}], "usage": usage})

    endpoint.script = [claude]
    params = {"api_base": endpoint.params["api_base"].removesuffix("/v1"), "api_key": "none"}
    reply = await Client("anthropic/claude-sonnet-4-5", params=params).ask(
        PROMPT[:2], {"type": "object", "properties": {}, "additionalProperties": False}, prefix=CachedPrefix(1, SHARED)
    )
    [request] = endpoint.requests
    shared, rest = request["messages"][0]["content"]
    assert (shared["text"], rest["text"]) == ("what all share", ", and the rest")
    assert shared["cache_control"]["type"] == "ephemeral"
    assert json.dumps(request).count("cache_control") == 1
    assert (reply.prompt_tokens, reply.cached_prompt_tokens) == (2500, 2000)
    assert reply.cost_usd == pytest.approx((100 * 3 + 2000 * 0.3 + 400 * 3.75 + 10 * 15) / 1e6)
