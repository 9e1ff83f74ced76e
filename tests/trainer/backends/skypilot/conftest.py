"""A state directory of its own for each test, and SkyPilot with this machine as its cloud."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_sky_cloud import FakeCloud, fake_cloud


@pytest.fixture(autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("GAVEL_STATE", str(place))
    return place


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCloud]:
    yield from fake_cloud(tmp_path, monkeypatch)
    sys.modules.pop("sky", None)
