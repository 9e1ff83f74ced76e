from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _an_empty_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
