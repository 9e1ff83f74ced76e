"""A server with a LocalBackend, which the tests of a module share, and models behind it."""

import contextlib
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.remote.client import RemoteBackend
from gavel.trainer.backends.server.app import create_app
from gavel.trainer.model import TrainableModel
from tests.backend_server import KEY, serving
from tests.trainer.conftest import a_model


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def url(runs: Path) -> Generator[str]:
    with serving(create_app(LocalBackend(runs), key=KEY, root=runs)) as url:
        yield url


AT_ONCE = 60
"""Seconds of patience in which what no attempt can mend has long been told."""


@contextlib.asynccontextmanager
async def registered(url: str, name: str) -> AsyncGenerator[tuple[RemoteBackend, TrainableModel]]:
    async with RemoteBackend(url, KEY, patience=AT_ONCE) as backend:
        model = a_model(name)
        await model.register(backend)
        yield backend, model
