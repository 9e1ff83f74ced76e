"""`gavel cluster …` as it is typed, over the stand-in for SkyPilot."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gavel.base.network import free_port
from gavel.cli.app import app
from gavel.trainer.backends.skypilot.cluster import ClusterRecord
from tests.fake_sky_cloud import FakeCloud, fake_cloud

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAVEL_STATE", str(tmp_path / "state"))


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCloud]:
    yield from fake_cloud(tmp_path, monkeypatch)
    sys.modules.pop("sky", None)


def gavel(*arguments: str, typed: str | None = None):
    return CliRunner().invoke(app, ["cluster", *arguments], input=typed)


def test_a_cluster_from_its_price_to_its_end(cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_1234567")
    arguments = ["up", "mine", "--port", str(free_port()), "--secret", "HF_TOKEN"]
    refused = gavel(*arguments, typed="n\n")
    assert "mine: 2.49 USD an hour while it is on; stopped after 30 idle minutes" in refused.stderr
    assert "nothing was started" in str(refused.exception)
    assert ClusterRecord.find("mine") is None
    assert "nothing was started" in str(gavel(*arguments).exception)  # no terminal to ask at
    assert not list(cloud.home.glob("*.json"))
    up = gavel(*arguments, typed="y\n")
    assert up.exit_code == 0, up.output
    assert "gavel train my_scenario.py --backend-url sky://mine" in up.stdout
    assert "mine is up" in gavel(*arguments).stdout  # it is found again, without a question
    logs = gavel("logs", "mine")
    assert "Gavel backend" in logs.stdout
    record = ClusterRecord.find("mine")
    assert record is not None
    for done in (up, logs):
        assert record.key.get_secret_value() not in done.output
        assert "hf_1234567" not in done.output
    kept = gavel("down", "mine", typed="n\n")
    assert "mine stays as it is" in str(kept.exception)
    assert gavel("down", "mine", "--yes").stdout == "mine is down.\n"
    assert gavel("down", "mine", "--yes").stdout == "There was no cluster mine.\n"


@pytest.mark.parametrize("command", [["up", "--yes"], ["down"], ["logs"]])
def test_without_skypilot_each_command_says_what_to_install(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sky", None)
    told = gavel(*command)
    assert "needs SkyPilot" in str(told.exception)
    assert "pip install" in told.exception.remedy  # type: ignore[union-attr]
