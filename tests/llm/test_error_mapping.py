"""What the user reads of an error that a call raised."""

import pytest

from gavel.llm.client import Client
from gavel.llm.errors import ContextError, LlmError
from gavel.llm.failures import as_llm_error
from tests.endpoint import Answer, Endpoint, fails, limit_attempts


def test_a_timeout_says_how_long_it_waited():
    assert as_llm_error(TimeoutError(), "openai/m", 7).message == "openai/m did not answer within 7 s."


@pytest.mark.parametrize("more", ["", " Traceback (most recent call last):\n  File x\nValueError: no"])
def test_a_traceback_in_the_words_is_left_out(more: str):
    message = as_llm_error(ValueError(f"Invalid response object{more}"), "openai/m", 7).message
    assert message == "openai/m failed: ValueError: Invalid response object"


def test_a_whole_page_is_cut():
    message = as_llm_error(ValueError("<html>" * 1000), "openai/m", 7).message
    assert len(message) < 1100
    assert message.endswith(" …")


async def test_a_limit_behind_a_long_beginning_is_still_read(endpoint: Endpoint):
    endpoint.script = [fails(400, "x" * 2000 + " This model's maximum context length is 8192 tokens.")]
    with pytest.raises(ContextError) as error:
        await Client("openai/judge", endpoint.params).ask([{"role": "user", "content": "hi"}], {"type": "object"})
    assert error.value.limit == 8192


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
