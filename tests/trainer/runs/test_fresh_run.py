"""A run that starts over: nothing is lost before the new run has begun, and nothing of others at all."""

import contextlib
from pathlib import Path

import pytest

from gavel.trainer.runs.fresh_run import replacing_run
from gavel.trainer.runs.run_directory import RunDirectory, RunDirectoryError


def a_run(root: Path, name: str = "one", reward: float = 0.5) -> Path:
    with contextlib.closing(RunDirectory(root, "desk", name)) as run:
        run.describe({"reward": reward})
        run.metrics.log(1, "train", {"reward": reward})
        run.checkpoints.save(1, lambda directory: (directory / "adapter.bin").touch())
        return run.path


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_earlier_run_is_aside_until_the_new_one_has_begun_and_its_neighbour_is_untouched(tmp_path: Path) -> None:
    one, two = a_run(tmp_path), contents(a_run(tmp_path, "two"))
    with replacing_run(tmp_path, "desk", "one") as replaced:
        assert [path.name for path in one.iterdir()] == [".lock"]
        (aside,) = one.parent.glob("one.before-*")
        assert (aside / "model.json").exists()
        new = contents(a_run(tmp_path, reward=0.9))
        replaced.delete()
        assert not aside.exists()
    assert contents(one) == new
    assert contents(tmp_path / "desk" / "two") == two


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_new_run_that_does_not_start_leaves_the_earlier_one_as_it_was(
    tmp_path: Path, error: type[BaseException]
) -> None:
    one = a_run(tmp_path)
    before = contents(tmp_path)

    def start() -> None:
        with replacing_run(tmp_path, "desk", "one"):
            a_run(tmp_path, reward=0.9)
            (one / "vllm.log").write_text("out of memory")
            raise error

    with pytest.raises(error):
        start()
    assert contents(tmp_path) == before | {"desk/one/vllm.log": b"out of memory"}


def test_a_new_run_that_fails_after_it_has_begun_is_kept(tmp_path: Path) -> None:
    one = a_run(tmp_path)

    def start() -> None:
        with replacing_run(tmp_path, "desk", "one") as replaced:
            a_run(tmp_path, reward=0.9)
            replaced.delete()
            raise ValueError("later")

    with pytest.raises(ValueError, match="later"):
        start()
    assert b"0.9" in contents(one)["model.json"]
    assert not list(one.parent.glob("one.before-*"))


def test_the_files_of_others_are_named_and_stay(tmp_path: Path) -> None:
    notes = a_run(tmp_path) / "my-notes.txt"
    notes.write_text("mine")
    with replacing_run(tmp_path, "desk", "one") as replaced:
        assert [path.name for path in replaced.foreign] == ["my-notes.txt"]
    assert contents(tmp_path) == {"desk/one/my-notes.txt": b"mine", "desk/one/.lock": b""}
    with replacing_run(tmp_path, "desk", "one") as replaced:
        assert replaced.foreign == [notes]
    assert notes.read_text() == "mine"


def test_what_a_failed_start_left_is_no_obstacle_and_no_run_is_fine(tmp_path: Path) -> None:
    log = tmp_path / "desk" / "one" / "vllm.log"
    log.parent.mkdir(parents=True)
    log.touch()
    with replacing_run(tmp_path, "desk", "one"):
        assert not log.exists()
    with replacing_run(tmp_path, "desk", "never-begun"):
        pass
    assert [path.name for path in (tmp_path / "desk").iterdir()] == ["one"]


def test_a_run_in_use_is_not_replaced(tmp_path: Path) -> None:
    one = a_run(tmp_path)
    before = contents(one)
    with (
        contextlib.closing(RunDirectory(tmp_path, "desk", "one")),
        pytest.raises(RunDirectoryError, match="another process"),
        replacing_run(tmp_path, "desk", "one"),
    ):
        pass
    assert contents(one) == before


def test_an_earlier_run_that_cannot_be_put_back_is_kept_and_its_place_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = a_run(tmp_path)

    def start(other: contextlib.ExitStack) -> None:
        with replacing_run(tmp_path, "desk", "one"):
            other.enter_context(contextlib.closing(RunDirectory(tmp_path, "desk", "one")))
            raise ValueError("taken")

    with contextlib.ExitStack() as other, pytest.raises(ValueError, match="taken"):
        start(other)
    (aside,) = one.parent.glob("one.before-*")
    assert (aside / "model.json").exists()
    assert str(aside) in caplog.text


def test_paid_replies_stay_when_a_run_starts_over_and_are_not_taken_for_files_of_others(tmp_path):
    directory = tmp_path / "demo" / "clerk"
    directory.mkdir(parents=True)
    for name in ("model.json", "cassettes.sqlite", "cassettes.sqlite-wal"):
        (directory / name).write_text(name)
    with replacing_run(tmp_path, "demo", "clerk") as replaced:
        assert replaced.foreign == []
    assert {path.name for path in directory.iterdir()} >= {"cassettes.sqlite", "cassettes.sqlite-wal"}
    assert not (directory / "model.json").exists()
