from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.judge.endpoint import Endpoint


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each test has an empty directory of its own, and the settings that it makes itself."""
    for name in (
        "GAVEL_JUDGE_MODEL",
        "GAVEL_PRICES",
        "GAVEL_RUNS",
        "OPENAI_API_KEY",
        "OPENAI_API_BASE",
        "OPENAI_BASE_URL",
        "ANTHROPIC_API_KEY",
        "OPENROUTER_API_KEY",
        "WANDB_API_KEY",
        "WANDB_MODE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """A judge model's server on loopback."""
    running = Endpoint()
    yield running
    running.close()
