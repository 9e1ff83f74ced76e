"""What calls cost: prices of LiteLLM, of the user, of caches and of reasoning; and what is put into a cache."""

import json

import pytest

from gavel.base.errors import GavelError
from gavel.judge.judge import Judge
from gavel.llm.budget import cost, prices_from_environment
from gavel.llm.client import Client
from gavel.llm.types import CachedPrefix, Usage
from tests.endpoint import Answer, says


@pytest.mark.parametrize(
    ("prices", "usage", "usd"),
    [
        ((2.0, 8.0), Usage(1000, 100), 0.0028),
        ((2.0, 8.0), Usage(1000, 100, cached_prompt_tokens=600), 0.0028),
        ((2.0, 8.0, 0.2), Usage(1000, 100, cached_prompt_tokens=600), 0.00172),
        ((4.0, 8.0, 0.4), Usage(1000, 0, written_prompt_tokens=1000), 0.005),  # a quarter more, as Claude takes
    ],
)
def test_prices_are_per_million_tokens_and_cached_ones_may_have_their_own(prices, usage, usd):
    model = "anthropic/claude-sonnet-4-5"
    assert cost(model, usage, {model: prices}) == pytest.approx(usd)
    assert cost(model, usage, {}) is None


@pytest.mark.parametrize("text", ["2", "{", '{"openai/o3": 2}', '{"m": [-1, 2]}', '{"m": [NaN, 2]}'])
def test_prices_that_cannot_be_read_are_an_error(monkeypatch, text):
    monkeypatch.setenv("GAVEL_PRICES", text)
    with pytest.raises(GavelError, match="GAVEL_PRICES"):
        prices_from_environment()
    monkeypatch.setenv("GAVEL_PRICES", '{"openai/o3": [2, 8]}')
    assert prices_from_environment() == {"openai/o3": (2.0, 8.0)}


def test_a_price_below_0_by_which_no_budget_is_ever_used_up_is_refused():
    with pytest.raises(GavelError, match="prices"):
        Judge("openai/o3", prices={"openai/o3": (-1, 8)})


CACHED = {"prompt_tokens": 2000, "completion_tokens": 50, "total_tokens": 2050}


async def reply_of(endpoint, model, usage, prices):
    endpoint.script = [lambda _: says("{}", usage)]
    client = Client(model, params=endpoint.params, prices=prices)
    return await client.ask([{"role": "user", "content": "?"}], {"type": "object"})


@pytest.mark.parametrize(
    ("prices", "expected"),
    [({}, (1000 * 0.25 + 1000 * 0.025 + 50 * 2) / 1e6), ({"openai/gpt-5-mini": (1, 2, 0.1)}, 0.0012)],
    ids=["LiteLLM's prices", "own prices"],
)
async def test_a_reply_tells_what_was_cached_and_costs_less_by_that(endpoint, prices, expected):
    usage = {**CACHED, "prompt_tokens_details": {"cached_tokens": 1000}}
    reply = await reply_of(endpoint, "openai/gpt-5-mini", usage, prices)
    assert (reply.prompt_tokens, reply.cached_prompt_tokens) == (2000, 1000)
    assert reply.cost_usd == pytest.approx(expected)


@pytest.mark.parametrize("prices", [{}, {"openai/gpt-5-mini": (0.25, 2)}], ids=["LiteLLM's prices", "own prices"])
@pytest.mark.parametrize("apart", [True, False])
async def test_reasoning_that_is_reported_apart_is_paid_for(endpoint, prices, apart):
    usage = {
        "prompt_tokens": 2000,
        "completion_tokens": 50 if apart else 350,
        "total_tokens": 2350,
        "completion_tokens_details": {"reasoning_tokens": 300},
    }
    reply = await reply_of(endpoint, "openai/gpt-5-mini", usage, prices)
    assert reply.completion_tokens == 350
    assert reply.cost_usd == pytest.approx((2000 * 0.25 + 350 * 2) / 1e6)


PROMPT = [
    {"role": "system", "content": "Judge."},
    {"role": "user", "content": "what all share, and the rest"},
    {"role": "assistant", "content": "no"},
    {"role": "user", "content": "again"},
]
SHARED = len("what all share")


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
