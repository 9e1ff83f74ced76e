"""What failed requests mean: whether they may pass, what they may have cost, and what the user reads."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from gavel.llm.budget import Budget
from gavel.llm.client import Client
from gavel.llm.errors import ContextError, LlmError
from gavel.llm.failures import (
    CONTENT_FILTER,
    as_llm_error,
    context_limit,
    is_refusal,
    is_refusal_text,
    is_too_long,
    may_be_paid,
    may_be_the_format,
    may_pass,
    openai_httpx,
    pause,
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


def test_a_limit_on_tokens_in_a_minute_passes():
    error = refused("Request too large: it exceeds the context limit of 9000 tokens in this minute", 429)
    assert may_pass(error)
    assert not is_too_long(error)


def pauses(error: openai.APIStatusError, attempt: int) -> float:
    """The mean pause after so many attempts that all failed like this."""
    return sum(pause(error, attempt) for _ in range(300)) / 300


@pytest.mark.parametrize("status", [500, 429])
def test_pauses_grow_to_half_a_minute_at_most(status):
    means = [pauses(refused("…", status), attempt) for attempt in (1, 3, 5, 20)]
    assert means == sorted(means)
    assert means[-1] <= 30


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


@pytest.mark.parametrize("text", ["", "{}", "Trajectory 1 is best.", "Sorry for the delay. Scores: 1, 2"])
def test_other_unusable_replies_are_no_refusals(text: str):
    assert not is_refusal_text(text)


@pytest.mark.parametrize("where", [{"refusal": "no"}, {"provider_specific_fields": {"refusal": "no"}}])
async def test_a_refusal_is_read_where_servers_put_it(endpoint, wire, where):
    endpoint.script = [lambda _: says(None, **where)]
    reply = await Client("openai/m", endpoint.params).ask(ASKED, {"type": "object"})
    assert (reply.text, reply.finish_reason) == ("no", CONTENT_FILTER)


@pytest.mark.parametrize("more", ["", " Traceback (most recent call last):\n  File x\nValueError: no"])
def test_a_traceback_in_the_words_is_left_out(more: str):
    message = as_llm_error(ValueError(f"Invalid response object{more}"), "openai/m", 7).message
    assert message == "openai/m failed: ValueError: Invalid response object"


async def test_a_limit_behind_a_long_beginning_is_still_read(endpoint: Endpoint):
    endpoint.script = [fails(400, "x" * 2000 + " This model's maximum context length is 8192 tokens.")]
    with pytest.raises(ContextError) as error:
        await Client("openai/judge", endpoint.params).ask([{"role": "user", "content": "hi"}], {"type": "object"})
    assert error.value.limit == 8192


LIBRARIES = [httpx, openai_httpx] if openai_httpx is not httpx else [httpx]


REQUEST = openai_httpx.Request("POST", "http://judge.invalid/v1/chat/completions")


async def test_the_library_of_openais_client_is_that_of_its_connections():
    async with AsyncOpenAI(api_key="none", http_client=openai_httpx.AsyncClient()) as client:
        assert isinstance(client.timeout, openai_httpx.Timeout)
        with pytest.raises(openai.APIConnectionError) as failed:
            await client.with_options(base_url="http://127.0.0.1:1/v1", max_retries=0).models.list()
    assert isinstance(failed.value.__cause__, openai_httpx.ConnectError)
    assert not may_be_paid(failed.value)


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.__name__)
@pytest.mark.parametrize(
    ("name", "paid"),
    [("ReadError", True), ("RemoteProtocolError", True), ("ReadTimeout", True), ("ConnectError", False)],
)
def test_a_lost_reply_is_told_from_a_request_that_was_not_sent_in_either_library(library, name, paid):
    error = openai.APIConnectionError(request=REQUEST)
    error.__cause__ = getattr(library, name)("broke")
    assert may_be_paid(error) == paid


ASKED = [{"role": "user", "content": "Where?"}]


BODY = says("Here.").body


@pytest.fixture
def hangs_up() -> Iterator[dict[str, Any]]:
    """A server that reads a request and hangs up."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            connection.recv(65536)
            connection.close()

    threading.Thread(target=serve, daemon=True).start()
    yield {"api_base": f"http://127.0.0.1:{server.getsockname()[1]}/v1", "api_key": "none"}
    server.close()


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


async def test_a_server_that_hangs_up_may_have_worked(hangs_up: dict[str, Any], once) -> None:
    budget = await budget_after(hangs_up)
    assert budget.unpriced_calls == budget.calls >= 1


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 502, 503, 529])
async def test_an_error_of_the_server_costs_nothing(endpoint, wire, once, status: int) -> None:
    endpoint.script = [fails(status)]
    budget = await budget_after(endpoint.params)
    assert (budget.calls, budget.cost) == (0, "0.00 USD")


@pytest.mark.parametrize("host", ["127.0.0.1:9", "no-such-host.invalid"])
async def test_a_request_that_was_not_sent_costs_nothing(host: str, once) -> None:
    budget = await budget_after({"api_base": f"http://{host}/v1", "api_key": "none"})
    assert (budget.calls, budget.cost) == (0, "0.00 USD")
