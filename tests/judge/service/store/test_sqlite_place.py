"""Where SQLite's file may be: what is wrong with a place is said before the file is opened, and what to do."""

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gavel.judge.service.errors import ServiceError
from gavel.judge.service.store.database import Database, check_place, file_system
from tests.limits import HANG_SECONDS

MOUNTS = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
31 27 0:40 / /mnt/my\040share rw,relatime shared:9 master:1 - nfs4 server:/export rw,vers=4.2
32 31 254:1 / /mnt/my\040share/local rw - xfs /dev/vdb rw
33 27 0:41 / /mnt/caf\303\251 rw - cifs //server/share rw
34 27 0:42 / /srv rw - nfs server:/old rw
35 34 0:43 / /srv rw - tmpfs tmpfs rw
a line of another kind
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/service.sqlite", "ext4"),
        ("/mnt/my share/service.sqlite", "nfs4"),
        ("/mnt/my share/local/service.sqlite", "xfs"),
        ("/mnt/my sharefile.sqlite", "ext4"),
        ("/mnt/caf\u00e9/service.sqlite", "cifs"),
        ("/srv/service.sqlite", "tmpfs"),
    ],
)
def test_a_path_is_on_the_file_system_of_the_nearest_mount(path: str, kind: str):
    assert file_system(Path(path), MOUNTS) == kind


def test_where_nothing_is_known_of_mounts_none_is_named():
    assert file_system(Path("/x"), "") == ""


def test_a_network_file_system_is_refused_with_what_to_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"27 1 254:0 / / rw - ext4 /dev/vda rw\n31 27 0:40 / {tmp_path} rw - nfs4 server:/export rw\n")
    monkeypatch.setattr("gavel.judge.service.store.database._MOUNTS", mounts)
    with pytest.raises(ServiceError, match=r"network file system \(nfs4\)") as refused:
        Database.open(str(tmp_path / "service.sqlite"))
    assert "PostgreSQL" in refused.value.remedy
    assert [path.name for path in tmp_path.iterdir()] == ["mountinfo"]


def test_a_directory_and_a_missing_directory_are_named(tmp_path: Path):
    with pytest.raises(ServiceError, match="is a directory"):
        Database.open(str(tmp_path))
    with pytest.raises(ServiceError, match="directory does not exist"):
        Database.open(str(tmp_path / "nowhere" / "service.sqlite"))


def _read_only_folder(folder: Path) -> Path:
    folder.chmod(0o555)
    return folder / "service.sqlite"


def _read_only_folder_with_a_file(folder: Path) -> Path:
    Database.open(str(folder / "service.sqlite")).close()
    return _read_only_folder(folder)


def _read_only_file(folder: Path) -> Path:
    file = folder / "service.sqlite"
    Database.open(str(file)).close()
    folder.chmod(0o777)
    file.chmod(0o444)
    return file


@pytest.mark.parametrize("make", [_read_only_folder, _read_only_folder_with_a_file, _read_only_file])
def test_what_the_service_s_user_may_not_write_is_named(tmp_path: Path, make: Callable[[Path], Path]):
    for parent in (tmp_path, *tmp_path.parents):
        if "pytest" in str(parent):
            parent.chmod(parent.stat().st_mode | 0o555)
    folder = tmp_path / "data"
    folder.mkdir()
    path = make(folder)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_check_as_nobody, args=(path, sender))
    process.start()
    try:
        assert receiver.poll(HANG_SECONDS)
        message, remedy = receiver.recv()
    finally:
        process.join(HANG_SECONDS)
        folder.chmod(0o755)
    assert "not writable" in message
    assert str(folder) in remedy


def _check_as_nobody(path: Path, sender: "multiprocessing.connection.Connection") -> None:  # type: ignore[name-defined]
    if os.geteuid() == 0:
        os.setuid(65534)
    try:
        check_place(path)
    except ServiceError as error:
        sender.send((error.message, error.remedy))
    else:
        sender.send(("nothing", ""))
