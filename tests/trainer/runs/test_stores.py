"""Checkpoints go to a store and come back whole, whatever is cut off, altered, busy or half there."""

import contextlib
import json
import traceback
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from gavel.trainer.runs import stores
from gavel.trainer.runs.checkpoints import Checkpoints
from gavel.trainer.runs.run_directory import RunDirectory, RunDirectoryError
from gavel.trainer.runs.stores import (
    HubStore,
    S3Store,
    StorageError,
    Store,
    open_store,
    pull_checkpoint,
    push_checkpoint,
    split_place,
    stored_steps,
)
from tests.fake_hub import FakeHub
from tests.fake_server import Answer, FakeServer

KEY = "desk", "clerk"
SECRET = "PLANTED/secret/of+the0tests"
PLACE = "desk/clerk"


def a_run(root: Path, *steps: int, base: str = "b", state: bool = True) -> Path:
    directory = RunDirectory(root, *KEY)
    directory.describe({"project": "desk", "name": "clerk", "base_model": base})
    for step in steps:

        def write(path: Path, step: int = step) -> None:
            if state:
                (path / "trainer_state").mkdir()
                (path / "trainer_state" / "state.pt").write_bytes(bytes([step]) * 1000)
            (path / "adapter.safetensors").write_bytes(bytes([step, state]) * 500)
            (path / "README.md").write_text(f"step {step}")

        directory.checkpoints.save(step, write)
    directory.close()
    return directory.path


def use_s3(monkeypatch: pytest.MonkeyPatch, url: str, secret: str = "b") -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA-of-the-tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.fixture(scope="module")
def s3() -> Generator[str]:
    server = ThreadedMotoServer(port=0)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture(params=["folder", "s3", "hub"])
def store(request, tmp_path, monkeypatch, s3: str, hub: FakeHub) -> Store:
    if request.param == "folder":
        return open_store(str(tmp_path / "bucket"))
    if request.param == "hub":
        return open_store("hf://desk/adapters/backups")
    import boto3

    use_s3(monkeypatch, s3)
    bucket = f"bucket-{abs(hash(str(tmp_path)))}"
    boto3.client("s3").create_bucket(Bucket=bucket)  # pyright: ignore
    return open_store(f"s3://{bucket}/backups")


def test_a_checkpoint_comes_back_as_it_was_and_what_is_not_there_or_of_another_model_is_told(store, tmp_path):
    run = a_run(tmp_path / "here", 3, 7)
    assert push_checkpoint(run, 3, store, PLACE) == f"{store.address}/desk/clerk/checkpoints/000003"
    push_checkpoint(run, 7, store, PLACE)
    with pytest.raises(StorageError, match="no whole checkpoint of step 9; it has: 3, 7"):
        push_checkpoint(run, 9, store, PLACE)
    with pytest.raises(StorageError, match="no checkpoint of step 1; it has: 3, 7"):
        pull_checkpoint(store, PLACE, 1, tmp_path / "there", KEY)
    theirs = a_run(tmp_path / "theirs", 3, base="another")
    with pytest.raises(RunDirectoryError, match="other settings"):
        pull_checkpoint(store, PLACE, 7, tmp_path / "theirs", KEY)
    with pytest.raises(StorageError, match=r"(?s)another run is at .*another base_model.*place of its own"):
        push_checkpoint(theirs, 3, open_store(store.address), PLACE)
    assert stored_steps(open_store(store.address), PLACE) == [3, 7]
    assert pull_checkpoint(store, PLACE, None, tmp_path / "there", KEY) == 7
    assert pull_checkpoint(store, PLACE, 3, tmp_path / "there", KEY) == 3
    pulled = tmp_path / "there" / "desk" / "clerk"
    assert Checkpoints(pulled / "checkpoints").latest() == 7
    for step in ("000003", "000007"):
        for file in (run / "checkpoints" / step).rglob("*.*"):
            assert (pulled / file.relative_to(run)).read_bytes() == file.read_bytes()
    assert json.loads((pulled / "model.json").read_text())["base_model"] == "b"


def cut_after(store: Store, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """The line is cut once as many files have been sent or fetched; of the Hub, before the commit."""

    def cutting(original: Any) -> Any:
        left = iter(range(calls))

        def call(*arguments: Any, **named: Any) -> Any:
            if next(left, None) is None:
                raise OSError("the line was cut")
            return original(*arguments, **named)

        return call

    match store:
        case HubStore():
            hub.failing.append(("/commit/", 412, {}))
            monkeypatch.setattr(store, "_download", cutting(store._download))
        case S3Store():
            monkeypatch.setattr(store, "errors", (*store.errors, OSError))
            for name in ("upload_file", "download_file"):
                monkeypatch.setattr(store._s3, name, cutting(getattr(store._s3, name)))
        case _:
            monkeypatch.setattr(stores.shutil, "copyfile", cutting(stores.shutil.copyfile))


def test_a_push_that_was_cut_off_counts_for_nothing_and_it_and_a_pull_go_on(store, tmp_path, monkeypatch, hub):
    run = a_run(tmp_path / "here", 2)
    with monkeypatch.context() as during:
        cut_after(store, hub, during, 2)
        with pytest.raises(StorageError, match="cannot be used"):
            push_checkpoint(run, 2, store, PLACE)
    assert stored_steps(store, PLACE) == []
    with pytest.raises(StorageError, match="no checkpoint"):
        pull_checkpoint(store, PLACE, None, tmp_path / "there", KEY)
    push_checkpoint(run, 2, store, PLACE)
    if isinstance(store, HubStore):  # which takes each file's content once, and shows none before the commit
        assert set(hub.uploads.values()) == {1}
        repository = hub.repositories["desk/adapters"]
        assert (repository.private, repository.commits) == (True, 1)
    assert stored_steps(store, PLACE) == [2]
    before = 3 if isinstance(store, HubStore) else 1  # which downloads the descriptions, too
    with monkeypatch.context() as during:
        cut_after(store, hub, during, before)
        with pytest.raises(StorageError, match="cut"):
            pull_checkpoint(store, PLACE, 2, tmp_path / "there", KEY)
    pulled = tmp_path / "there" / "desk" / "clerk"
    (arrived,) = (path for path in pulled.rglob("*.*") if path.is_file() and path.name != ".lock")
    kept = arrived.stat().st_ino
    assert Checkpoints(pulled / "checkpoints").steps() == []
    pull_checkpoint(store, PLACE, 2, tmp_path / "there", KEY)
    assert kept in [path.stat().st_ino for path in pulled.rglob("*.*")], "it was not fetched again"
    assert Checkpoints(pulled / "checkpoints").latest() == 2
    assert sorted(path.name for path in pulled.iterdir()) == [".lock", "checkpoints", "metrics.jsonl", "model.json"]


def test_an_altered_file_is_found_out_and_leaves_no_checkpoint(store: Store, tmp_path: Path) -> None:
    run = a_run(tmp_path / "here", 2)
    push_checkpoint(run, 2, store, PLACE)
    altered = tmp_path / "altered"
    altered.write_text("not these weights")
    store.send({"desk/clerk/checkpoints/000002/adapter.safetensors": altered})
    with pytest.raises(StorageError, match="arrived altered"):
        pull_checkpoint(store, PLACE, 2, tmp_path / "there", KEY)
    assert Checkpoints(tmp_path / "there" / "desk" / "clerk" / "checkpoints").steps() == []
    push_checkpoint(a_run(tmp_path / "other", 2, state=False), 2, store, PLACE)  # another run's step of the same name
    assert pull_checkpoint(store, PLACE, 2, tmp_path / "there", KEY) == 2
    pulled = tmp_path / "there" / "desk" / "clerk" / "checkpoints" / "000002"
    assert (pulled / "adapter.safetensors").read_bytes() == bytes([2, 0]) * 500
    assert not (pulled / "trainer_state").exists()


def test_a_store_that_cannot_be_used_says_what_to_check(tmp_path, monkeypatch, hub) -> None:
    for address, told in {
        "gs://bucket": "no store",
        "s3://": "no bucket",
        "s3:/bucket": "// is missing",
        "hf://desk": "names no repository",
        "wandb://desk/backups": "no store",
    }.items():
        with pytest.raises(StorageError, match=told):
            open_store(address)
    assert split_place("hf://desk/adapters/backups/desk/clerk") == ("hf://desk/adapters/backups", "desk", "clerk")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file cannot be used"):
        push_checkpoint(a_run(tmp_path, 1), 1, open_store(str(tmp_path / "file")), PLACE)
    with pytest.raises(StorageError, match=r"hf://desk/nothing cannot be used: RepositoryNotFoundError"):
        HubStore("hf://desk/nothing").names("desk/clerk/checkpoints/")
    use_s3(monkeypatch, "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(StorageError, match="AWS_ENDPOINT_URL_S3"):
        open_store("s3://bucket").names("")


@pytest.mark.parametrize("address", ["s3://bucket", "hf://desk/adapters"])
def test_what_a_store_refuses_is_told_with_what_to_do_and_without_a_secret(address, tmp_path, monkeypatch):
    told = f"no such token: {SECRET} http://me:{SECRET}@store"
    answer, remedy = Answer({"error": told}, 401, {"X-Error-Message": told}), "HF_TOKEN"
    if address.startswith("s3"):
        said = f"<Error><Code>SignatureDoesNotMatch</Code><Message>{told}</Message></Error>"
        answer = Answer(said.encode(), 403, {"Content-Type": "application/xml"})
        remedy = "SignatureDoesNotMatch(?s:.*)AWS_SECRET_ACCESS_KEY"
    with contextlib.closing(FakeServer()) as refusing:
        refusing.respond = lambda call: answer
        use_s3(monkeypatch, refusing.url, SECRET)
        monkeypatch.setenv("HF_ENDPOINT", refusing.url)
        monkeypatch.setenv("HF_TOKEN", SECRET)
        with pytest.raises(StorageError, match=remedy) as caught:
            push_checkpoint(a_run(tmp_path, 1), 1, open_store(address), PLACE)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
