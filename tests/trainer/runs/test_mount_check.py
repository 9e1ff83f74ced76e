"""A mount without what a run needs is refused before a run is begun there."""

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from gavel.trainer.runs.run_directory import MountError, RunDirectory, RunDirectoryError, check_mount


def test_a_disk_holds_runs_and_nothing_is_left_on_it(tmp_path: Path) -> None:
    check_mount(tmp_path)
    assert list(tmp_path.iterdir()) == []


def lacking(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system says that it does not support an operation, as mounts of buckets do."""

    def refuse(*_given: Any, **_named: Any) -> Any:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    if name == "append":
        opened = Path.open
        monkeypatch.setattr(
            Path, "open", lambda path, mode="r", **given: refuse() if "a" in mode else opened(path, mode, **given)
        )
    elif name == "rename a directory":
        renamed = Path.rename
        monkeypatch.setattr(Path, "rename", lambda path, to: refuse() if path.is_dir() else renamed(path, to))
    elif name == "replace":
        monkeypatch.setattr(Path, "replace", refuse)
    else:
        monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.mark.parametrize("name", ["append", "rename a directory", "replace", "lock"])
def test_a_mount_that_lacks_something_is_refused_by_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as mounted:
        lacking(name, mounted)
        with pytest.raises(RunDirectoryError, match=rf"cannot hold a run: it cannot {name}") as caught:
            RunDirectory(tmp_path / "runs", "desk", "clerk")
    assert "GAVEL_RUNS" in caught.value.remedy
    assert not (tmp_path / "runs").exists()
    RunDirectory(tmp_path / "runs", "desk", "clerk").close()


def test_a_full_disk_is_no_missing_ability_of_a_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_given: Any, **_named: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        with pytest.raises(RunDirectoryError, match="No space left on device") as caught:
            RunDirectory(tmp_path / "runs", "desk", "clerk")
    assert "Make room" in caught.value.remedy
    assert "bucket" not in caught.value.remedy


def test_a_mount_that_loses_what_is_appended_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open
    monkeypatch.setattr(Path, "open", lambda path, mode="r", **given: opened(path, mode.replace("a", "w"), **given))
    with pytest.raises(MountError, match="append to a file: what was appended is not there"):
        check_mount(tmp_path)
