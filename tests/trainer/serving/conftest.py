from collections.abc import AsyncIterator, Iterator

import pytest
from openai import AsyncOpenAI

from gavel.trainer.serving.openai_server import EndpointServer
from tests.trainer.serving.served import Gate, client_of, serving


@pytest.fixture(scope="module")
def gate() -> Gate:
    return Gate()


@pytest.fixture(scope="module")
def server(policy, gate) -> Iterator[EndpointServer]:
    with serving(policy, gate) as running:
        yield running
        gate.opened.set()


@pytest.fixture
async def client(server) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(server) as client:
        yield client
