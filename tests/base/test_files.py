"""A file is there whole or not at all."""

import os
import stat
from pathlib import Path

import pytest

from gavel.base.files import new_folder, replacing, write_atomically


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path):
    path = tmp_path / "run.json"
    write_atomically(path, "old")
    with pytest.raises(ZeroDivisionError), replacing(path) as unfinished:
        unfinished.write_text(f"half {1 / 0}")
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]
    assert path.read_text() == "old"


@pytest.mark.parametrize("durable", [False, True])
def test_a_write_replaces_the_whole_file(tmp_path: Path, durable: bool):
    path = tmp_path / "run.json"
    write_atomically(path, "a longer text")
    write_atomically(path, b"\xff", durable=durable)
    assert path.read_bytes() == b"\xff"


def test_a_file_of_secrets_is_never_readable_by_others(tmp_path: Path):
    path = tmp_path / "keys"
    before = os.umask(0)
    try:
        write_atomically(path, "secret", mode=0o600)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_folder_appears_whole_and_what_a_killed_writer_left_of_it_is_removed(tmp_path: Path):
    path, left = tmp_path / "deep" / "model[1]", tmp_path / "deep" / ".model[1].0123.unfinished"
    left.mkdir(parents=True)
    with new_folder(path, durable=True) as unfinished:
        (unfinished / "weights").write_text("half")
        with pytest.raises(BlockingIOError), new_folder(path):
            pass
        assert not path.exists()
    assert [each.name for each in path.parent.iterdir()] == ["model[1]"]
    assert (path / "weights").read_text() == "half"
