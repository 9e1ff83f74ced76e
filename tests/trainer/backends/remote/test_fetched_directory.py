"""A directory arrives whole or not at all, goes on where it was cut off, and replaces nothing."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from gavel.trainer.backends.remote import client as fetched_directory
from gavel.trainer.backends.remote.client import fetch_directory
from gavel.trainer.backends.remote.connection import Connection
from gavel.trainer.backends.remote.wire import RemoteBackendError
from gavel.trainer.runs.checkpoints import ExportError
from tests.backend_server import serving
from tests.cutting_proxy import CuttingProxy

CONTENT = {"a.bin": bytes(range(256)) * 400, "deep/b.bin": b"b" * 50_000, "empty": b""}
HASHES = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}


@pytest.fixture
def files(tmp_path: Path) -> Any:
    from starlette.applications import Starlette
    from starlette.staticfiles import StaticFiles

    served = tmp_path / "served"
    for name, content in CONTENT.items():
        (served / name).parent.mkdir(parents=True, exist_ok=True)
        (served / name).write_bytes(content)
    app = Starlette()
    app.mount("/files", StaticFiles(directory=served))
    return app


def assert_whole(directory: Path) -> None:
    found = {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }
    assert found == CONTENT
    assert not list(directory.parent.glob(".*.unfinished"))


def test_a_directory_arrives_over_a_line_that_is_cut(files: Any, tmp_path: Path) -> None:
    with serving(files) as url, CuttingProxy(int(url.rpartition(":")[2]), seed=1, most_bytes=60_000) as proxy:
        fetch_directory(Connection(proxy.url, "k", 60), "/files", HASHES, tmp_path / "made")
        assert proxy.cuts
    assert_whole(tmp_path / "made")


def test_a_fetch_that_was_killed_is_gone_on_with_and_what_is_stale_is_not_kept(files: Any, tmp_path: Path) -> None:
    unfinished = tmp_path / ".made.unfinished"
    (unfinished / "deep").mkdir(parents=True)
    (unfinished / "a.bin").write_bytes(CONTENT["a.bin"][:1000])
    (unfinished / "deep/b.bin").write_bytes(b"of another export, and longer" * 5000)
    (unfinished / "old.bin").write_bytes(b"old")
    with serving(files) as url:
        fetch_directory(Connection(url, "k", 60), "/files", HASHES, tmp_path / "made")
        assert_whole(tmp_path / "made")
        fetch_directory(Connection(url, "k", 60), "/files", HASHES, tmp_path / "made")  # it is there
        with pytest.raises(ExportError, match="is there already"):
            fetch_directory(Connection(url, "k", 60), "/files", {**HASHES, "a.bin": "0" * 64}, tmp_path / "made")


def test_a_file_that_is_another_one_or_outside_is_refused(files: Any, tmp_path: Path) -> None:
    with serving(files) as url:
        with pytest.raises(RemoteBackendError, match="another SHA-256"):
            fetch_directory(Connection(url, "k", 60), "/files", {"a.bin": "0" * 64}, tmp_path / "made")
        with pytest.raises(RemoteBackendError, match="outside the export"):
            fetch_directory(Connection(url, "k", 60), "/files", {"../a.bin": "0" * 64}, tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_a_disk_that_is_full_is_told_and_nothing_is_left(
    files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetched_directory, "file_sha256", full)
    with serving(files) as url, pytest.raises(ExportError, match=r"(?s)No space left.*Make room"):
        fetch_directory(Connection(url, "k", 60), "/files", HASHES, tmp_path / "made")
    assert [path.name for path in tmp_path.iterdir()] == ["served"]
