"""What failed requests mean: whether they may pass, what they may have cost, and what the user reads."""

from typing import Any

import openai
import pytest

from gavel.llm.budget import Budget
from gavel.llm.client import Client
from gavel.llm.errors import LlmError
from gavel.llm.failures import (
    CONTENT_FILTER,
    context_limit,
    is_refusal,
    is_refusal_text,
    is_too_long,
    may_be_the_format,
    may_pass,
    status_error,
)
from gavel.llm.rate_limits import Limits
from tests.endpoint import Answer, Endpoint, fails, limit_attempts, says

TOO_LONG = [
    ("This model's maximum context length is 8192 tokens. However, your messages resulted in 10000 tokens.", 8192),
    ("Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300012 tokens.", 272000),
    (
        "'max_tokens' is too large: 5000. This model's maximum context length is 4096 tokens and your request has "
        "10 input tokens (5000 > 4096 - 10).",
        4096,
    ),
    ("The decoder prompt (length 5000) is longer than the maximum model length of 4096.", 4096),
    ("prompt is too long: 210000 tokens > 200000 maximum", 200000),
    ("input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000, decrease them", 200000),
    ("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", 1048576),
    ("Input is too long for requested model.", None),
    ("Prompt contains 40000 tokens, too large for model with 32768 maximum context length", 32768),
    ("the request exceeds the available context size (4096 tokens), try increasing it", 4096),
    ("`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens", 4096),
    ("The input (5000 tokens) is longer than the model's context length (4096 tokens).", 4096),
    ("Requested token count exceeds the model's maximum context length of 131,072 tokens.", 131072),
    ("too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000", 4081),
    ("This model's maximum prompt length is 131072 but the request contains 200000 tokens.", 131072),
]


def refused(words: str, status: int = 400) -> openai.APIStatusError:
    return status_error(status, words)


@pytest.mark.parametrize(("words", "limit"), TOO_LONG)
def test_a_prompt_that_is_too_long_is_known_in_any_words(words, limit):
    assert context_limit(words) == limit
    error = refused(words)
    assert isinstance(error, openai.BadRequestError)
    assert is_too_long(error)
    assert not may_be_the_format(error)
    assert not may_pass(refused(words, 500))


@pytest.mark.parametrize(
    "words",
    [
        "Invalid value for 'response_format': json_schema is not supported.",
        "max_tokens must be at least 1, got 0",
        "Invalid 'user': string too long. Expected a string with maximum length 64, but got 80 instead.",
        "The model `judge-400` does not exist",
    ],
)
def test_another_refusal_is_not_taken_for_a_prompt_that_is_too_long(words):
    assert not is_too_long(refused(words))


@pytest.mark.parametrize(
    ("status", "message", "is_one"),
    [
        (400, "The response was filtered due to the prompt triggering Azure's content management policy.", True),
        (400, "Invalid prompt: your prompt was flagged as potentially violating our usage policy.", True),
        (400, "Your request was rejected as a result of our safety system.", True),
        (400, "Output blocked by content filtering policy", True),
        (403, 'Your chosen model requires moderation and your input was flagged for "violence"', True),
        (400, "Invalid schema for response_format 'scores'", False),
        (403, "You have insufficient permissions for this operation.", False),
        (400, "temperature is not supported with this model", False),
    ],
)
def test_errors_of_content_filters_are_refusals_and_others_are_not(status: int, message: str, is_one: bool):
    assert is_refusal(refused(message, status)) == is_one
    assert not is_refusal(RuntimeError(message))


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't help with that.",
        "I’m sorry, I can’t assist with this request.",
        "Sorry, I am unable to evaluate this content.",
        "I cannot comply with this request.",
        "I apologize, but I won't be able to help with that.",
    ],
)
def test_a_refusal_in_plain_words_is_known(text: str):
    assert is_refusal_text(text)


@pytest.mark.parametrize("where", [{"refusal": "no"}, {"provider_specific_fields": {"refusal": "no"}}])
async def test_a_refusal_is_read_where_servers_put_it(endpoint, wire, where):
    endpoint.script = [lambda _: says(None, **where)]
    reply = await Client("openai/m", endpoint.params).ask(ASKED, {"type": "object"})
    assert (reply.text, reply.finish_reason) == ("no", CONTENT_FILTER)


ASKED = [{"role": "user", "content": "Where?"}]


BODY = says("Here.").body


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call asks one time."""
    limit_attempts(monkeypatch, 1)


async def budget_after(params: dict[str, Any]) -> Budget:
    """What a call that fails leaves on its budget, which its error agrees with."""
    budget = Budget()
    client = Client("openai/m", params=params, budget=budget, limits=Limits())
    with pytest.raises(LlmError) as failed:
        await client.ask(ASKED, {"type": "object", "properties": {}, "required": []})
    assert failed.value.may_be_paid == (budget.unpriced_calls > 0)
    return budget


@pytest.mark.parametrize(
    "answer",
    [
        Answer(BODY, breaks_off=True),
        Answer(b'{"id": "1", "object": "chat.comple'),
        Answer(b"<html>The gateway is tired.</html>"),
        Answer(b""),
    ],
    ids=["cut connection", "cut body", "another body", "no body"],
)
async def test_a_reply_that_is_cut_has_an_unknown_cost(endpoint, wire, once, answer: Answer) -> None:
    endpoint.script = [lambda _: answer]
    budget = await budget_after(endpoint.params)
    assert (budget.calls, budget.unpriced_calls) == (len(endpoint.requests), len(endpoint.requests))


async def test_a_reply_that_was_lost_before_the_last_attempt_is_not_forgotten(endpoint, wire, monkeypatch) -> None:
    limit_attempts(monkeypatch, 2)
    endpoint.script = [lambda _: Answer(BODY, breaks_off=True), fails(400)]
    budget = await budget_after(endpoint.params)
    assert (budget.calls, len(endpoint.requests) > 1) == (1, True)


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 502, 503, 529])
async def test_an_error_of_the_server_costs_nothing(endpoint, wire, once, status: int) -> None:
    endpoint.script = [fails(status)]
    budget = await budget_after(endpoint.params)
    assert (budget.calls, budget.cost) == (0, "0.00 USD")


@pytest.mark.parametrize("host", ["127.0.0.1:9", "no-such-host.invalid"])
async def test_a_request_that_was_not_sent_costs_nothing(host: str, once) -> None:
    budget = await budget_after({"api_base": f"http://{host}/v1", "api_key": "none"})
    assert (budget.calls, budget.cost) == (0, "0.00 USD")


PAGE = b"<!DOCTYPE html><html><head><title>Sign in</title></head></html>"


@pytest.mark.parametrize("model", ["openai/judge", "anthropic/claude-haiku-4-5", "mistral/mistral-medium-latest"])
async def test_a_login_page_in_place_of_a_reply_is_an_error_about_the_address(
    endpoint: Endpoint, wire: str, model: str, monkeypatch: pytest.MonkeyPatch
):
    limit_attempts(monkeypatch, 1)
    endpoint.script = [lambda _: Answer(PAGE, headers={"Content-Type": "text/html"})]
    with pytest.raises(LlmError) as error:
        await Client(model, endpoint.params).ask([{"role": "user", "content": "hi"}], {"type": "object"})
    assert "api_base" in error.value.remedy
    assert "proxy" in error.value.remedy
