"""A reply that is lost on the way has an unknown cost; a request that was refused, or not sent, has none."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gavel.llm.budget import Budget
from gavel.llm.client import Client
from gavel.llm.errors import LlmError
from gavel.llm.rate_limits import Limits
from tests.endpoint import Answer, fails, limit_attempts, says

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


@pytest.fixture(autouse=True)
def _asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
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
async def test_a_reply_that_is_cut_has_an_unknown_cost(endpoint, wire, answer: Answer) -> None:
    endpoint.script = [lambda _: answer]
    budget = await budget_after(endpoint.params)
    assert (budget.calls, budget.unpriced_calls) == (len(endpoint.requests), len(endpoint.requests))


async def test_a_reply_that_was_lost_before_the_last_attempt_is_not_forgotten(endpoint, wire, monkeypatch) -> None:
    limit_attempts(monkeypatch, 2)
    endpoint.script = [lambda _: Answer(BODY, breaks_off=True), fails(400)]
    budget = await budget_after(endpoint.params)
    assert (budget.calls, len(endpoint.requests) > 1) == (1, True)


async def test_a_server_that_hangs_up_may_have_worked(hangs_up: dict[str, Any]) -> None:
    budget = await budget_after(hangs_up)
    assert budget.unpriced_calls == budget.calls >= 1


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 502, 503, 529])
async def test_an_error_of_the_server_costs_nothing(endpoint, wire, status: int) -> None:
    endpoint.script = [fails(status)]
    budget = await budget_after(endpoint.params)
    assert (budget.calls, budget.cost) == (0, "0.00 USD")


@pytest.mark.parametrize("host", ["127.0.0.1:9", "no-such-host.invalid"])
async def test_a_request_that_was_not_sent_costs_nothing(host: str) -> None:
    budget = await budget_after({"api_base": f"http://{host}/v1", "api_key": "none"})
    assert (budget.calls, budget.cost) == (0, "0.00 USD")
