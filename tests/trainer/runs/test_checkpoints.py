"""A checkpoint is there whole or not at all."""

import hashlib
import json
import logging
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gavel.trainer.runs.checkpoints import Checkpoints
from tests.limits import HANG_SECONDS

WRITER = """
import os, signal, sys
from pathlib import Path
from gavel.trainer.runs import checkpoints as checkpoint

moment = sys.argv[2]

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def write(directory):
    (directory / "adapter.bin").write_bytes(b"two")
    if moment == "while writing":
        die()

if moment == "while flushing":
    checkpoint.sync_all = die
checkpoint.Checkpoints(Path(sys.argv[1])).save(2, write)
"""


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints")


def save(checkpoints: Checkpoints, step: int, content: bytes | None = None) -> Path:
    def write(directory: Path) -> None:
        (directory / "adapter.bin").write_bytes(content or b"weights %d" % step)
        (directory / "trainer_state").mkdir()
        (directory / "trainer_state" / "state.pt").write_bytes(b"state %d" % step)

    return checkpoints.save(step, write)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_run_begins_without_checkpoints(checkpoints):
    assert checkpoints.steps() == []
    assert checkpoints.latest() is None


def test_what_is_saved_is_the_latest(checkpoints):
    for step in (1, 2, 10):
        path = save(checkpoints, step)
        assert path == checkpoints.path(step)
        assert (path / "trainer_state" / "state.pt").read_bytes() == b"state %d" % step
    assert checkpoints.steps() == [1, 2, 10]
    assert checkpoints.latest() == 10
    assert Checkpoints(checkpoints.directory).latest() == 10


def test_steps_are_in_the_order_of_their_numbers(checkpoints):
    for step in (999999, 1000000, 2):
        save(checkpoints, step)
    assert checkpoints.steps() == [2, 999999, 1000000]
    assert checkpoints.latest() == 1000000


def test_a_step_that_is_saved_again_is_replaced(checkpoints):
    save(checkpoints, 1, b"old")
    path = save(checkpoints, 1, b"new")
    assert (path / "adapter.bin").read_bytes() == b"new"
    assert checkpoints.latest() == 1


def test_a_deleted_checkpoint_is_gone(checkpoints):
    save(checkpoints, 1)
    save(checkpoints, 2)
    checkpoints.delete(2)
    assert checkpoints.latest() == 1


def test_a_deletion_that_fails_in_the_middle_leaves_no_half_checkpoint_and_the_next_one_ends_it(
    checkpoints, monkeypatch
):
    for step in (1, 2, 3):
        save(checkpoints, step)

    def half(directory: Path) -> None:
        (directory / "adapter.bin").unlink()
        raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr("gavel.trainer.runs.checkpoints.shutil.rmtree", half)
        with pytest.raises(OSError, match="killed"):
            checkpoints.delete(1)
    assert checkpoints.steps() == [2, 3]
    checkpoints.delete(2)
    assert [entry.name for entry in checkpoints.directory.iterdir()] == ["000003"]


def test_a_failure_in_the_middle_leaves_the_earlier_ones_and_no_new_one(checkpoints):
    save(checkpoints, 1)

    def write(directory: Path) -> None:
        (directory / "adapter.bin").write_bytes(b"half")
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        checkpoints.save(2, write)
    assert checkpoints.steps() == [1]
    assert checkpoints.latest() == 1
    path = save(checkpoints, 2)
    assert sorted(file.name for file in path.iterdir()) == ["adapter.bin", "manifest.json", "trainer_state"]
    assert checkpoints.latest() == 2


def test_a_failure_while_replacing_a_step_leaves_that_step(checkpoints):
    save(checkpoints, 1, b"old")

    def write(directory: Path) -> None:
        raise OSError

    with pytest.raises(OSError):  # noqa: PT011
        checkpoints.save(1, write)
    assert (checkpoints.path(1) / "adapter.bin").read_bytes() == b"old"
    assert checkpoints.latest() == 1


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["while writing", "while flushing"])
def test_a_kill_in_the_middle_leaves_the_earlier_ones_and_no_new_one(checkpoints, moment, caplog):
    save(checkpoints, 1)
    killed = subprocess.run(
        [sys.executable, "-c", WRITER, str(checkpoints.directory), moment], timeout=HANG_SECONDS, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert any(entry.name.startswith(".") for entry in checkpoints.directory.iterdir())
    assert checkpoints.steps() == [1]
    assert checkpoints.latest() == 1
    assert not caplog.records
    save(checkpoints, 2)
    assert checkpoints.latest() == 2
    assert [entry.name for entry in checkpoints.directory.iterdir() if entry.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("adapter.bin", "adapter.bin was altered"),
        ("trainer_state/state.pt", "trainer_state/state.pt was altered"),
        ("manifest.json", ""),
    ],
)
def test_an_altered_byte_sends_the_run_back_to_the_checkpoint_before(checkpoints, name, problem, caplog):
    save(checkpoints, 1)
    flip(save(checkpoints, 2) / name)
    with caplog.at_level(logging.WARNING):
        assert checkpoints.latest() == 1
    (record,) = caplog.records
    assert f"{checkpoints.path(2)} is damaged" in record.getMessage()
    assert problem in record.getMessage()


@pytest.mark.parametrize("name", ["adapter.bin", "trainer_state/state.pt", "manifest.json"])
def test_a_missing_file_sends_the_run_back_to_the_checkpoint_before(checkpoints, name, caplog):
    save(checkpoints, 1)
    (save(checkpoints, 2) / name).unlink()
    assert checkpoints.latest() == 1
    assert "damaged" in caplog.text


@pytest.mark.parametrize("manifest", ["", "[]", "null", "{}", '{"adapter.bin": 3'])
def test_a_manifest_that_is_none_makes_no_checkpoint(checkpoints, manifest):
    save(checkpoints, 1)
    (save(checkpoints, 2) / "manifest.json").write_text(manifest)
    assert checkpoints.latest() == 1


def test_when_all_are_damaged_there_is_none(checkpoints):
    for step in (1, 2):
        flip(save(checkpoints, step) / "adapter.bin")
    assert checkpoints.latest() is None


def test_what_else_lies_about_is_ignored(checkpoints):
    save(checkpoints, 1)
    (checkpoints.directory / ".unfinished-000007").mkdir()
    (checkpoints.directory / "notes.txt").write_text("mine")
    (checkpoints.directory / "best").symlink_to(checkpoints.path(1))
    assert checkpoints.steps() == [1]
    assert checkpoints.latest() == 1


def test_the_manifest_names_every_file(checkpoints):
    path = save(checkpoints, 1)
    assert set(json.loads((path / "manifest.json").read_text())) == {"adapter.bin", "trainer_state/state.pt"}


def test_a_model_card_may_be_written_again_and_the_checkpoint_stays_whole(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)

    def write(directory: Path) -> None:
        (directory / "weights").write_text("w")
        (directory / "README.md").write_text("first")

    card = checkpoints.save(1, write) / "README.md"
    checkpoints.write_card(1, "second")
    assert (card.read_text(), checkpoints.latest()) == ("second", 1)
    card.unlink()
    assert checkpoints.latest() == 1
    checkpoints.write_card(2, "of no checkpoint")
    assert checkpoints.steps() == [1]


def test_a_model_card_that_was_hashed_stays_as_it_is(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    card = checkpoints.save(1, lambda directory: (directory / "README.md").write_text("first") and None) / "README.md"
    manifest = card.with_name("manifest.json")
    manifest.write_text(json.dumps({"README.md": hashlib.sha256(b"first").hexdigest()}))
    checkpoints.write_card(1, "second")
    assert (card.read_text(), checkpoints.latest()) == ("first", 1)
