"""An artifact of W&B as a store, over W&B's own SDK: whole versions, whatever fails, is killed or happens at once."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from gavel.trainer.runs.file_hash import file_sha256
from gavel.trainer.runs.storage.store import StorageError, open_store, split_place
from gavel.trainer.runs.storage.wandb_store import WandbStore
from tests.trainer.deploy.fakes.scripted import Killed
from tests.trainer.deploy.fakes.wandb import KEY, FakeWandb, manifest_of

pytestmark = pytest.mark.slow  # the SDK starts a process of its own
ADDRESS = "wandb://desk/backups/runs"


def sent(store: WandbStore, tmp_path: Path, name: str, content: bytes) -> str:
    file = tmp_path / hashlib.sha256(name.encode() + content).hexdigest()
    file.write_bytes(content)
    store.send(file, name, file_sha256(file))
    return file_sha256(file)


def stored(tmp_path: Path, **files: bytes) -> WandbStore:
    store = WandbStore(ADDRESS)
    for name, content in files.items():
        sent(store, tmp_path, f"desk/clerk/{name}", content)
    store.finish()
    return store


def test_a_push_is_one_version_and_another_adds_to_it(wandb_server: FakeWandb, tmp_path: Path) -> None:
    store = WandbStore(ADDRESS)
    weights = sent(store, tmp_path, "desk/clerk no. 1 – né/adapter.safetensors", b"weights")
    assert WandbStore(ADDRESS).names("") == []
    store.finish()
    (version,) = wandb_server.committed
    assert (version["type"], version["name"], version["entity"]) == ("model", "runs", "desk")
    stored(tmp_path, config=b"{}")
    assert [version["index"] for version in wandb_server.committed] == [0, 1]
    assert list(manifest_of(wandb_server, wandb_server.committed[1])) == sorted(WandbStore(ADDRESS).names(""))
    newest = WandbStore(ADDRESS)
    assert newest.names("desk/clerk no. 1") == ["desk/clerk no. 1 – né/adapter.safetensors"]
    assert newest.has("desk/clerk no. 1 – né/adapter.safetensors", weights, 7)
    assert not newest.has("desk/clerk no. 1 – né/adapter.safetensors", weights, 8)
    assert newest.read("desk/clerk no. 1 – né/adapter.safetensors") == b"weights"
    assert newest.read("desk/clerk/config") == b"{}"
    newest.remove("desk/clerk/config")
    newest.finish()
    assert WandbStore(ADDRESS).read("desk/clerk/config") is None
    newest.finish()
    assert len(wandb_server.committed) == 2  # the first version's content again


def test_an_upload_that_was_cut_off_counts_for_nothing_and_goes_on(wandb_server: FakeWandb, tmp_path: Path) -> None:
    stored(tmp_path, first=b"1")
    wandb_server.fail("CommitArtifact", 400, message="cut")
    store = WandbStore(ADDRESS)
    sent(store, tmp_path, "desk/clerk/weights", b"weights")
    with pytest.raises(StorageError, match="cut"):
        store.finish()
    assert WandbStore(ADDRESS).names("") == ["desk/clerk/first"]
    uploads = wandb_server.count("PUT /files/")
    store.finish()
    assert WandbStore(ADDRESS).names("") == ["desk/clerk/first", "desk/clerk/weights"]
    again = [call for call in wandb_server.calls if call.startswith("PUT") and "/desk/clerk/" in call]
    assert len(again) == len(set(again)) == 2
    assert wandb_server.count("PUT /files/") > uploads  # the list of the version's files


@pytest.mark.parametrize(("operation", "status"), [("CreateArtifactFiles", 500), ("CommitArtifact", 429)])
def test_a_busy_server_is_asked_again(wandb_server: FakeWandb, tmp_path: Path, operation: str, status: int) -> None:
    wandb_server.fail(operation, status)
    assert stored(tmp_path, weights=b"weights").names("") == ["desk/clerk/weights"]


def test_pushes_at_once_lose_nothing_of_each_other(
    wandb_server: FakeWandb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path, first=b"1")
    one = WandbStore(ADDRESS)
    sent(one, tmp_path, "desk/clerk/one", b"one")
    assert one.names("") == ["desk/clerk/first"]  # has looked; the next push comes before it is finished
    stored(tmp_path, two=b"two")
    one.finish()
    assert WandbStore(ADDRESS).names("") == ["desk/clerk/first", "desk/clerk/one", "desk/clerk/two"]
    assert WandbStore(ADDRESS).read("desk/clerk/two") == b"two"

    three = WandbStore(ADDRESS)
    sent(three, tmp_path, "desk/clerk/three", b"three")
    look = WandbStore._look  # pyright: ignore[reportPrivateUsage]

    def interrupted(self: WandbStore) -> Any:
        with monkeypatch.context() as during:
            during.setattr(WandbStore, "_look", look)
            count = len(wandb_server.committed)
            stored(tmp_path, **{f"more{count}": b"more"})
        return look(self)

    monkeypatch.setattr(WandbStore, "_look", interrupted)
    three.finish()
    monkeypatch.setattr(WandbStore, "_look", look)
    names = WandbStore(ADDRESS).names("")
    assert {f"desk/clerk/{name}" for name in ("first", "one", "two", "three")} < set(names)
    assert sum("more" in name for name in names) == 3


def test_a_process_that_dies_after_the_commit_has_pushed(
    wandb_server: FakeWandb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = WandbStore(ADDRESS)
    weights = sent(store, tmp_path, "desk/clerk/weights", b"weights")
    monkeypatch.setattr(WandbStore, "_between", lambda *_: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        store.finish()
    assert WandbStore(ADDRESS).has("desk/clerk/weights", weights, 7)
    monkeypatch.undo()


def test_an_artifact_goes_online_where_metrics_stay_offline(
    wandb_server: FakeWandb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mode in ("offline", "disabled"):
        monkeypatch.setenv("WANDB_MODE", mode)
        assert f"desk/clerk/{mode}" in stored(tmp_path, **{mode: b"1"}).names("")


def test_a_file_that_grows_during_the_upload_is_stored_as_it_was(wandb_server: FakeWandb, tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("1\n")
    store = WandbStore(ADDRESS)
    store.send(metrics, "desk/clerk/metrics.jsonl", file_sha256(metrics))
    metrics.write_text("1\n2\n")
    store.finish()
    assert store.has("desk/clerk/metrics.jsonl", hashlib.sha256(b"1\n2\n").hexdigest(), 4)


def test_a_wrong_key_is_told_and_not_shown(
    wandb_server: FakeWandb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = "f" * 40
    monkeypatch.setenv("WANDB_API_KEY", wrong)
    for use in (lambda: WandbStore(ADDRESS).names(""), lambda: stored(tmp_path, first=b"1")):
        with pytest.raises(StorageError, match="cannot be used") as refusal:
            use()
        assert "WANDB_API_KEY" in refusal.value.remedy
        assert wrong not in f"{refusal.value} {refusal.value.remedy}"
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(StorageError, match="WANDB_API_KEY is not set"):
        WandbStore(ADDRESS).names("")
    assert KEY not in str(wandb_server.calls)


def test_an_address_names_an_artifact() -> None:
    for address in ("wandb://", "wandb://desk", "wandb://desk/backups", "wandb://desk/backups/a:v1", "wandb://a//b"):
        with pytest.raises(StorageError, match="names no artifact"):
            open_store(address)
    assert split_place(f"{ADDRESS}/desk/clerk") == (ADDRESS, "desk", "clerk")
