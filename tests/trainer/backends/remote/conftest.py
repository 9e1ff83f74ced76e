"""A server with a LocalBackend, which the tests of a module share."""

from collections.abc import Generator
from pathlib import Path

import pytest

from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.server.app import create_app
from tests.backend_server import KEY, serving


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def url(runs: Path) -> Generator[str]:
    with serving(create_app(LocalBackend(runs), key=KEY, root=runs)) as url:
        yield url
