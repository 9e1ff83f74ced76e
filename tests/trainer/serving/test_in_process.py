"""What carries a turn: a socket, a client of the same process, and an engine that is being asked."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from openai import APIConnectionError, APITimeoutError, BadRequestError
from openai.types.chat.chat_completion import ChatCompletion

from gavel.llm.failures import openai_httpx
from gavel.trainer.serving.answers import EndpointError
from gavel.trainer.serving.capture import KEY_PREFIX
from gavel.trainer.serving.in_process import InProcessClient
from gavel.trainer.serving.listener import listen
from gavel.trainer.serving.openai_server import EndpointServer
from tests.limits import HANG_SECONDS
from tests.trainer.serving.served import OPENING, TOOLS, serving, until

BODY: dict[str, Any] = {"model": "desk", "messages": OPENING, "tools": TOOLS, "max_completion_tokens": 24, "seed": 7}


class Wire(openai_httpx.AsyncHTTPTransport):
    requests = 0

    async def handle_async_request(self, request: openai_httpx.Request) -> openai_httpx.Response:
        self.requests += 1
        return await super().handle_async_request(request)


@pytest.fixture
def server(policy, gate) -> Iterator[EndpointServer]:
    with serving(policy, gate) as running:
        yield running
        gate.opened.set()


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
async def client(server, wire) -> AsyncIterator[InProcessClient]:
    http = openai_httpx.AsyncClient(transport=wire)
    async with InProcessClient(base_url=server.base_url, api_key="gavel", max_retries=0, http_client=http) as client:
        yield client


def told(reply: ChatCompletion) -> list[Any]:
    """What is the same in every reply with this seed: a call's id is drawn, and log-probs are rounded."""
    choice = reply.choices[0].model_dump()
    calls = [call["function"] for call in choice["message"]["tool_calls"] or ()]
    logprobs = [round(token["logprob"], 3) for token in choice["logprobs"]["content"]]
    same = ("finish_reason", "token_ids", "prompt_token_ids", "policy_version", "temperature")
    return [*(choice[name] for name in same), choice["message"]["content"], calls, logprobs]


async def test_a_turn_without_http_is_that_of_the_api(client, wire):
    direct = await client.turn(BODY)
    assert wire.requests == 0
    assert direct.choices[0].message.role == "assistant"
    posted = await client.chat.completions.create(
        model="desk", messages=[], extra_body={name: BODY[name] for name in BODY if name != "model"}
    )
    assert wire.requests == 1
    assert type(direct.choices[0].message) is type(posted.choices[0].message)
    assert told(direct) == told(posted)
    assert (direct.usage, direct.model) == (posted.usage, posted.model)
    assert direct.choices[0].model_dump().keys() == posted.choices[0].model_dump().keys()


async def test_a_refusal_is_told_as_the_api_tells_it_and_a_turn_of_a_capture_goes_where_it_is_captured(client, wire):
    with pytest.raises(BadRequestError, match="not served here"):
        await client.turn({**BODY, "model": "another"})
    with pytest.raises(UnicodeEncodeError):
        await client.turn({**BODY, "messages": [{"role": "user", "content": "\ud83d"}]})
    assert wire.requests == 1
    with pytest.raises(Exception, match="401"):
        await client.with_options(api_key=f"{KEY_PREFIX}unknown").turn(BODY)
    assert wire.requests == 2


async def test_a_turn_ends_at_the_clients_deadline_where_it_is_cancelled_and_with_its_endpoint(client, server, gate):
    gate.opened.clear()
    with pytest.raises(APITimeoutError):
        await client.with_options(timeout=0.1).turn(BODY)
    asked = gate.asked
    cancelled, turn = (asyncio.create_task(client.turn(BODY)) for _ in range(2))
    await until(lambda: gate.asked == asked + 2)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await asyncio.to_thread(server.close)
    async with asyncio.timeout(HANG_SECONDS):
        with pytest.raises(APIConnectionError, match="closing"):
            await turn
        with pytest.raises(APIConnectionError):  # over HTTP, where nothing listens
            await client.turn(BODY)


def test_what_cannot_be_listened_on_is_refused_with_a_remedy():
    for host, port, remedy in (("127.0.0.1", 70_000, "another port"), ("192.0.2.1", 0, "an address of this machine")):
        with pytest.raises(EndpointError, match="cannot listen on") as caught:
            listen(host, port)
        assert remedy in caught.value.remedy
