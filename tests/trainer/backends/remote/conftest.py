"""Servers with a LocalBackend, and models behind them."""

import contextlib
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.remote.client import RemoteBackend
from gavel.trainer.backends.server.app import create_app
from gavel.trainer.model import TrainableModel
from tests.backend_server import KEY, serving
from tests.trainer.conftest import a_model

AT_ONCE = 60
"""Seconds of patience in which what no attempt can mend has long been told."""


def served(runs: Path, **options: Any) -> AbstractContextManager[str]:
    return serving(create_app(LocalBackend(runs), key=KEY, root=runs), **options)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def url(runs: Path) -> Generator[str]:
    with served(runs) as url:
        yield url


@contextlib.asynccontextmanager
async def registered(url: str, name: str = "clerk") -> AsyncGenerator[tuple[RemoteBackend, TrainableModel]]:
    async with RemoteBackend(url, KEY, patience=AT_ONCE) as backend:
        model = a_model(name)
        await model.register(backend)
        yield backend, model
