from collections.abc import AsyncIterator, Iterator

import pytest
from openai import AsyncOpenAI

from gavel.trainer.serving.openai_server import EndpointServer
from tests.trainer.serving.served import client_of, serving


@pytest.fixture(scope="module")
def server(policy) -> Iterator[EndpointServer]:
    with serving(policy) as running:
        yield running


@pytest.fixture
async def client(server) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(server) as client:
        yield client
