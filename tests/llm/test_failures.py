"""What failed requests mean: whether they may pass, what they may have cost, and what the user reads."""

import subprocess
import sys
from typing import Any

import openai
import pytest

from gavel.base.errors import GavelError
from gavel.llm.budget import Budget
from gavel.llm.client import Client
from gavel.llm.errors import LlmError, MissingKeyError, UnknownModelError
from gavel.llm.failures import (
    CONTENT_FILTER,
    context_limit,
    is_refusal_text,
    kind_of,
    may_pass,
    status_error,
)
from gavel.llm.providers import check_model
from gavel.llm.rate_limits import Limits
from tests.endpoint import Answer, fails, limit_attempts, says

TOO_LONG = [
    ("This model's maximum context length is 8192 tokens. However, your messages resulted in 10000 tokens.", 8192),
    ("Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300012 tokens.", 272000),
    ("Input is too long for requested model.", None),
    ("the request exceeds the available context size (4096 tokens), try increasing it", 4096),
    ("Requested token count exceeds the model's maximum context length of 131,072 tokens.", 131072),
]


def refused(words: str, status: int = 400) -> openai.APIStatusError:
    return status_error(status, words)


@pytest.mark.parametrize(("words", "limit"), TOO_LONG)
def test_a_prompt_that_is_too_long_is_known_in_any_words(words, limit):
    assert context_limit(words) == limit
    error = refused(words)
    assert isinstance(error, openai.BadRequestError)
    assert kind_of(error) == "too long"
    assert not may_pass(refused(words, 500))


@pytest.mark.parametrize(
    "words",
    [
        "Invalid value for 'response_format': json_schema is not supported.",
        "max_tokens must be at least 1, got 0",
        "Invalid 'user': string too long. Expected a string with maximum length 64, but got 80 instead.",
    ],
)
def test_another_refusal_is_not_taken_for_a_prompt_that_is_too_long(words):
    assert kind_of(refused(words)) == "rejected"


@pytest.mark.parametrize(
    ("status", "message", "is_one"),
    [
        (400, "The response was filtered due to the prompt triggering Azure's content management policy.", True),
        (400, "Invalid prompt: your prompt was flagged as potentially violating our usage policy.", True),
        (403, 'Your chosen model requires moderation and your input was flagged for "violence"', True),
        (400, "Invalid schema for response_format 'scores'", False),
        (403, "You have insufficient permissions for this operation.", False),
    ],
)
def test_errors_of_content_filters_are_refusals_and_others_are_not(status: int, message: str, is_one: bool):
    assert (kind_of(refused(message, status)) == "refused") == is_one
    assert kind_of(RuntimeError(message)) == "failed"


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't help with that.",
        "I’m sorry, I can’t assist with this request.",
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
async def test_a_login_page_in_place_of_a_reply_is_an_error_about_the_address(endpoint, wire, model, monkeypatch):
    limit_attempts(monkeypatch, 1)
    endpoint.script = [lambda _: Answer(PAGE, headers={"Content-Type": "text/html"})]
    with pytest.raises(LlmError) as error:
        await Client(model, endpoint.params).ask([{"role": "user", "content": "hi"}], {"type": "object"})
    assert "api_base" in error.value.remedy
    assert "proxy" in error.value.remedy


@pytest.mark.parametrize("key", [None, "", " "])
def test_a_missing_key_is_named_with_what_to_do(key, monkeypatch):
    if key is not None:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(MissingKeyError) as error:
        check_model("openai/o3")
    assert error.value.message == "the model openai/o3 needs OPENAI_API_KEY, which is not set."
    assert "stand-in" in error.value.remedy
    assert "--" not in error.value.remedy  # it may be called from code
    assert isinstance(error.value, GavelError)


@pytest.mark.parametrize(
    "model",
    ["stand-in", "gavel/constant", "ollama/qwen3", "ollama_chat/qwen3", "hosted_vllm/x", "bedrock/anthropic.claude-v2"],
)
def test_judges_that_need_no_key_are_not_asked_for_one(model):
    check_model(model)


def test_a_server_of_ones_own_needs_no_key(monkeypatch):
    check_model("openai/mine", {"api_base": "http://127.0.0.1:8000/v1"})
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    check_model("openai/mine")


@pytest.mark.parametrize("address", ["127.0.0.1:8000/v1", "ftp://desk/v1", "localhost"])
def test_an_address_without_its_scheme_is_refused_before_anything_is_asked(address, monkeypatch):
    with pytest.raises(LlmError, match="begins with http:// or https://") as error:
        check_model("hosted_vllm/mine", {"api_base": address})
    assert "api_base=http://" in error.value.remedy
    monkeypatch.setenv("OPENAI_BASE_URL", address)
    with pytest.raises(LlmError, match="OPENAI_BASE_URL"):
        check_model("openai/mine", {"api_key": "x"})
    check_model("openai/mine", {"base_url": "https://desk/v1"})


@pytest.mark.slow
def test_importing_the_judge_loads_no_litellm():
    check = "import sys, gavel.judge.judge, gavel.judge.ruler, gavel.judge.offline; sys.exit('litellm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.parametrize(
    ("model", "params"),
    [("not-a-model", {}), ("openay/o3", {}), ("gpt-99", {"api_base": "http://127.0.0.1:1/v1"}), ("gavel/nobody", {})],
)
def test_a_model_that_nobody_serves_is_named_with_what_to_do(model, params):
    with pytest.raises(UnknownModelError, match=f"there is no model {model}") as error:
        check_model(model, params)
    assert "stand-in" in error.value.remedy
