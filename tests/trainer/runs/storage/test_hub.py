"""A repository of the Hub as a store: what it refuses, and what never becomes half of a push."""

import hashlib
from pathlib import Path

import pytest

from gavel.trainer.runs.storage.hub import HubStore
from gavel.trainer.runs.storage.store import StorageError, open_store, split_place
from tests.fake_hub import FakeHub


def sent(store: HubStore, tmp_path: Path, name: str, content: bytes) -> str:
    file = tmp_path / "file"
    file.write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    store.send(file, name, sha256)
    return sha256


def test_nothing_is_seen_before_the_commit(hub: FakeHub, tmp_path: Path) -> None:
    store = HubStore("hf://desk/adapters/backups")
    large = sent(store, tmp_path, "a/adapter.safetensors", b"weights")
    assert hub.repositories["desk/adapters"].private
    assert HubStore("hf://desk/adapters/backups").names("a/") == []
    store.finish()
    assert store.names("a/") == ["a/adapter.safetensors"]
    assert store.has("a/adapter.safetensors", large, 7)
    assert not store.has("a/adapter.safetensors", large, 8)
    assert list(hub.repositories["desk/adapters"].files) == ["backups/a/adapter.safetensors"]
    commits = hub.repositories["desk/adapters"].commits
    store.finish()
    assert hub.repositories["desk/adapters"].commits == commits


def test_a_small_file_is_compared_by_its_content(hub: FakeHub, tmp_path: Path) -> None:
    store = HubStore("hf://desk/adapters")
    small = sent(store, tmp_path, "a/model.json", b"{}")
    store.finish()
    assert store.has("a/model.json", small, 2)
    assert not store.has("a/model.json", hashlib.sha256(b"[]").hexdigest(), 2)
    store.remove("a/model.json")
    store.finish()
    assert store.read("a/model.json") is None


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_hub_that_is_busy_is_asked_again(hub: FakeHub, tmp_path: Path, status: int) -> None:
    store = HubStore("hf://desk/adapters")
    sha256 = sent(store, tmp_path, "a/adapter.safetensors", b"weights")
    hub.failing.append(("/preupload/", status, {"Retry-After": "0"}))
    store.finish()
    assert store.has("a/adapter.safetensors", sha256, 7)


def test_a_commit_that_fails_leaves_nothing_and_can_be_made_again(hub: FakeHub, tmp_path: Path) -> None:
    store = HubStore("hf://desk/adapters")
    sent(store, tmp_path, "a/adapter.safetensors", b"weights")
    hub.failing.append(("/commit/", 412, {}))
    with pytest.raises(StorageError, match="412"):
        store.finish()
    assert store.names("") == []
    store.finish()
    assert store.names("") == ["a/adapter.safetensors"]


def test_a_wrong_token_is_told_without_showing_it(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong_and_secret")
    with pytest.raises(StorageError, match="401") as caught:
        sent(HubStore("hf://desk/adapters"), tmp_path, "a", b"")
    assert "HF_TOKEN" in caught.value.remedy
    assert "hf_wrong_and_secret" not in f"{caught.value} {caught.value.remedy}"


def test_a_repository_that_is_not_there_is_told(hub: FakeHub) -> None:
    with pytest.raises(StorageError, match=r"hf://desk/nothing cannot be used: RepositoryNotFoundError"):
        HubStore("hf://desk/nothing").names("desk/clerk/checkpoints/")


def test_an_address_names_a_repository(hub: FakeHub) -> None:
    for address in ("hf://", "hf://desk", "hf://desk/"):
        with pytest.raises(StorageError, match="names no repository"):
            open_store(address)
    assert split_place("hf://desk/adapters/backups/desk/clerk") == ("hf://desk/adapters/backups", "desk", "clerk")
