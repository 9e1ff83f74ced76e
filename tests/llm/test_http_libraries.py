"""Clients of others raise errors of httpx or of httpx2; either is understood."""

import importlib.util

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from gavel.base.network import HTTP_ERRORS, TRANSPORT_ERRORS, exception_types
from gavel.llm.failures import may_be_paid, openai_httpx

LIBRARIES = [httpx, openai_httpx] if openai_httpx is not httpx else [httpx]
REQUEST = openai_httpx.Request("POST", "http://judge.invalid/v1/chat/completions")


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.__name__)
def test_an_error_of_either_library_is_caught_by_name(library):
    assert library.ReadError in exception_types("ReadError")
    assert isinstance(library.ConnectError("no"), TRANSPORT_ERRORS)
    assert issubclass(library.HTTPStatusError, HTTP_ERRORS)
    assert not issubclass(library.HTTPStatusError, TRANSPORT_ERRORS)


def test_only_libraries_that_are_installed_are_asked():
    assert len(HTTP_ERRORS) == 1 + (importlib.util.find_spec("httpx2") is not None)


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
