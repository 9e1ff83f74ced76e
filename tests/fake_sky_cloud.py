"""The stand-in for SkyPilot and ssh of `fake_sky`, put where programs find them, and its clusters ended afterwards."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

FAKE = Path(__file__).parent / "fake_sky"


@dataclass(frozen=True, slots=True)
class FakeCloud:
    home: Path

    def log(self, cluster: str) -> str:
        return (self.home / "nodes" / cluster / "job.log").read_text()


def fake_cloud(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCloud]:
    cloud = FakeCloud(folder / "cloud")
    cloud.home.mkdir()
    monkeypatch.setenv("FAKE_SKY_HOME", str(cloud.home))
    monkeypatch.setenv("PATH", f"{FAKE}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKE), *sys.path]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.delitem(sys.modules, "sky", raising=False)
    try:
        yield cloud
    finally:
        import sky  # pyright: ignore[reportMissingModuleSource]

        for file in cloud.home.glob("*.json"):
            sky.get(sky.down(file.stem))
