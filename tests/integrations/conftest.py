"""A judge service that the tests of one process share: it takes seconds to start."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.endpoint import Endpoint
from tests.integrations.judges import share_of_a
from tests.judge.service.in_process import config_of
from tests.judge.service.processes import served


@dataclass(frozen=True)
class JudgeService:
    """A service on loopback, and the model that it asks. Its replies are kept: give each test prompts of its own."""

    url: str
    endpoint: Endpoint


@pytest.fixture(scope="session")
def running_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeService]:
    endpoint = Endpoint()
    config = config_of(tmp_path_factory.mktemp("service"), endpoint, port=0)
    with asyncio.Runner() as runner:
        service = served(config)
        started = runner.run(service.__aenter__())
        try:
            yield JudgeService(started.url, endpoint)
        finally:
            runner.run(service.__aexit__(None, None, None))
            endpoint.close()


@pytest.fixture
def service(running_service: JudgeService) -> JudgeService:
    """The shared service; its model counts letters unless a test says otherwise."""
    running_service.endpoint.script = [share_of_a]
    running_service.endpoint.requests.clear()
    return running_service
