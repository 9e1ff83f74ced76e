"""One process at a time, one description for ever; a run that starts over; checkpoints, whole or not at all."""

import contextlib
import errno
import fcntl
import json
import logging
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from huggingface_hub import ModelCard

from gavel.judge.rubric import Rubric
from gavel.trainer.model_spec import TrainableSpec, describe_model
from gavel.trainer.runs import checkpoints as checkpoint
from gavel.trainer.runs.checkpoints import Checkpoints
from gavel.trainer.runs.fresh_run import replacing_run
from gavel.trainer.runs.model_card import base_license, model_card
from gavel.trainer.runs.run_directory import FORMAT_VERSION, RunDirectory, RunDirectoryError

DESCRIPTION = {"base_model": "embedded/returns-desk", "lora": {"rank": 16}}


def open_run(root: Path) -> RunDirectory:
    return RunDirectory(root, "project", "name")


@pytest.fixture
def run(tmp_path):
    with contextlib.closing(open_run(tmp_path)) as run:
        yield run


def based_on(base: Path, **settings: Any) -> dict[str, Any]:
    return describe_model(TrainableSpec(name="n", project="p", base_model=str(base), **settings))


@pytest.mark.parametrize(
    "file", ["model.safetensors", "chat_template.jinja", "additional/tool_use.jinja", "merges.txt"]
)
def test_a_run_is_not_continued_over_other_weights_of_its_name_or_a_base_that_renders_otherwise(run, tmp_path, file):
    edited = tmp_path / "base" / file
    edited.parent.mkdir(parents=True)
    edited.write_bytes(bytes(8 << 20))
    run.describe(based_on(tmp_path / "base"))
    edited.write_bytes(bytes(3 << 20) + os.urandom(1 << 20) + bytes(4 << 20))  # a layer in the middle
    with pytest.raises(RunDirectoryError, match=f"base_files: {file}"):
        run.check(based_on(tmp_path / "base"))
    edited.write_bytes(bytes(8 << 20))
    run.check(based_on(tmp_path / "base"))
    with pytest.raises(RunDirectoryError, match="renderer"):
        run.check(based_on(tmp_path / "base", renderer="qwen3"))


@pytest.mark.parametrize("blocked", [".", "project/name"])
def test_a_directory_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path, blocked):
    file = tmp_path / "runs" / blocked
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("in the way")
    with pytest.raises(RunDirectoryError, match="cannot be written") as error:
        open_run(tmp_path / "runs")
    assert "GAVEL_RUNS" in error.value.remedy
    assert file.read_text() == "in the way"


@pytest.mark.parametrize(
    ("name", "problem"),
    [("../elsewhere", "cannot be the name"), ("..", "cannot be the name"), ("", "is empty"), ("ä" * 150, "300 bytes")],
)
def test_a_name_never_leads_to_another_directory_and_is_one_that_a_directory_can_have(tmp_path, name, problem):
    for project, run in ((name, "clerk"), ("orders", name)):
        with pytest.raises(RunDirectoryError, match=problem):
            RunDirectory(tmp_path / "runs", project, run)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        ("[]", "--fresh"),
        ('{"base_model"', "--fresh"),
        (json.dumps({"format_version": FORMAT_VERSION + 1, **DESCRIPTION}), "Upgrade Gavel"),
        (json.dumps({"format_version": True, **DESCRIPTION}), "Restore"),
    ],
)
def test_a_damaged_description_or_one_of_another_version_is_refused_with_the_remedy(run, content, remedy):
    (run.path / "model.json").write_text(content)
    with pytest.raises(RunDirectoryError, match=r"model\.json") as error:
        run.check(DESCRIPTION)
    assert remedy in error.value.remedy


@pytest.mark.parametrize(
    "leave",
    [
        lambda run: run.checkpoints.save(1, lambda directory: (directory / "adapter.bin").touch()),
        lambda run: run.metrics.log(1, "train", {"reward": 0.5}),
        lambda run: run.describe({}, "experiment.json"),
    ],
)
def test_a_run_whose_description_is_missing_is_not_continued_and_metrics_of_a_prompted_model_are_none(run, leave):
    run.metrics.log(0, "val", {"reward": 0.5})
    run.check(DESCRIPTION)
    leave(run)
    with pytest.raises(RunDirectoryError, match=r"(?s)model\.json is missing.*Restore model.json"):
        run.check(DESCRIPTION)


def test_another_base_model_is_refused_naming_both_and_a_description_has_a_version(run):
    run.describe(DESCRIPTION)
    with pytest.raises(RunDirectoryError, match=r"embedded/returns-desk.*Qwen/Qwen3-8B") as error:
        run.check(DESCRIPTION | {"base_model": "Qwen/Qwen3-8B"})
    assert "another --name" in error.value.remedy
    with pytest.raises(RunDirectoryError, match="lora"):
        run.check(DESCRIPTION | {"lora": {"rank": 8}})
    run.check(DESCRIPTION)
    file = run.path / "model.json"
    assert json.loads(file.read_text()) == {"format_version": FORMAT_VERSION, **DESCRIPTION}
    file.write_text(json.dumps(DESCRIPTION))  # as one from before there were versions
    run.check(DESCRIPTION)


def test_a_run_that_never_began_leaves_nothing_behind_and_one_in_use_is_refused_until_it_is_closed(tmp_path):
    run = open_run(tmp_path / "runs")
    run.close()
    run.discard_if_new()
    assert list(tmp_path.rglob("*")) == []
    begun = open_run(tmp_path)
    begun.describe(DESCRIPTION)
    with pytest.raises(RunDirectoryError, match=r"another process is using(?s:.*)another name"):
        open_run(tmp_path)
    RunDirectory(tmp_path, "project", "other").close()
    begun.close()
    begun.discard_if_new()
    again = open_run(tmp_path)
    again.close()
    again.discard_if_new()
    assert (begun.path / "model.json").exists()


@pytest.mark.parametrize(("owner", "name"), [(Path, "rename"), (Path, "replace"), (fcntl, "flock")])
def test_a_mount_that_lacks_something_as_those_of_buckets_do_is_refused(owner, name, tmp_path, monkeypatch):
    with monkeypatch.context() as mounted:
        mounted.setattr(owner, name, Mock(side_effect=OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))))
        with pytest.raises(RunDirectoryError, match=r"cannot hold a run.*not supported(?s:.*)GAVEL_RUNS"):
            RunDirectory(tmp_path / "runs", "desk", "clerk")
    assert not (tmp_path / "runs").exists()
    RunDirectory(tmp_path / "runs", "desk", "clerk").close()


def a_run(root: Path, name: str = "one", reward: float = 0.5) -> Path:
    with contextlib.closing(RunDirectory(root, "desk", name)) as run:
        run.describe({"reward": reward})
        run.metrics.log(1, "train", {"reward": reward})
        run.checkpoints.save(1, lambda directory: (directory / "adapter.bin").touch())
        return run.path


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_earlier_run_but_its_paid_replies_is_aside_until_the_new_one_has_begun(tmp_path: Path) -> None:
    one, two = a_run(tmp_path), contents(a_run(tmp_path, "two"))
    paid = ["cassettes.sqlite", "cassettes.sqlite-wal"]
    for name in paid:
        (one / name).write_text(name)
    with replacing_run(tmp_path, "desk", "one") as replaced:
        assert replaced.foreign == [], "the replies are not taken for files of others"
        assert sorted(path.name for path in one.iterdir()) == [".lock", *paid]
        (aside,) = one.parent.glob("one.before-*")
        assert (aside / "model.json").exists()
        new = contents(a_run(tmp_path, reward=0.9))
        replaced.delete()
        assert not aside.exists()
    assert contents(one) == new
    assert contents(tmp_path / "desk" / "two") == two


def test_a_run_in_use_is_not_replaced_and_one_that_does_not_start_leaves_the_earlier_as_it_was(tmp_path: Path) -> None:
    one = a_run(tmp_path)
    before = contents(tmp_path)
    in_use = contextlib.closing(RunDirectory(tmp_path, "desk", "one"))
    with in_use, pytest.raises(RunDirectoryError, match="another process"), replacing_run(tmp_path, "desk", "one"):
        pass
    assert contents(tmp_path) == before

    def start() -> None:
        with replacing_run(tmp_path, "desk", "one"):
            a_run(tmp_path, reward=0.9)
            (one / "vllm.log").write_text("out of memory")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start()
    assert contents(tmp_path) == before | {"desk/one/vllm.log": b"out of memory"}


def test_an_earlier_run_that_cannot_be_put_back_is_kept_and_its_place_is_told(tmp_path, caplog):
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


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints")


def save(checkpoints: Checkpoints, step: int) -> Path:
    def write(directory: Path) -> None:
        (directory / "README.md").write_text("first")
        (directory / "adapter.bin").write_bytes(b"weights %d" % step)
        (directory / "trainer_state").mkdir()
        (directory / "trainer_state" / "state.pt").write_bytes(b"state %d" % step)

    return checkpoints.save(step, write)


def test_a_deletion_that_fails_leaves_no_half_checkpoint_and_the_next_one_ends_it(checkpoints, monkeypatch):
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


@pytest.mark.parametrize("moment", ["while writing", "while flushing"])
def test_an_end_in_the_middle_leaves_the_earlier_ones_and_no_new_one(checkpoints, moment, caplog, monkeypatch):
    save(checkpoints, 1)
    owner, name = (Path, "mkdir") if moment == "while writing" else (checkpoint, "sync_all")
    original = getattr(owner, name)

    def end(path: Path, *arguments: Any, **named: Any) -> None:
        if path.name == "trainer_state" or name == "sync_all":
            raise SystemExit
        original(path, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, end)
        with pytest.raises(SystemExit):
            save(checkpoints, 2)
    assert any(entry.name.startswith(".") for entry in checkpoints.directory.iterdir())
    assert (checkpoints.steps(), checkpoints.latest()) == ([1], 1)
    assert not caplog.records
    save(checkpoints, 2)
    assert checkpoints.latest() == 2
    assert [entry.name for entry in checkpoints.directory.iterdir() if entry.name.startswith(".")] == []


@pytest.mark.parametrize("damage", ["altered", "missing", "no manifest", "torn manifest"])
def test_a_damaged_checkpoint_sends_the_run_back_to_the_one_before(checkpoints, damage, caplog):
    save(checkpoints, 1)
    path = save(checkpoints, 2)
    if damage == "altered":
        (path / "trainer_state" / "state.pt").write_bytes(b"state 1")
    elif damage == "torn manifest":
        (path / "manifest.json").write_text('{"adapter.bin": 3')
    else:
        (path / ("adapter.bin" if damage == "missing" else "manifest.json")).unlink()
    with caplog.at_level(logging.WARNING):
        assert checkpoints.latest() == 1
    assert f"{path} is damaged" in caplog.text


def test_a_model_card_may_be_written_again_and_the_checkpoint_stays_whole(checkpoints: Checkpoints) -> None:
    card = save(checkpoints, 1) / "README.md"
    checkpoints.write_card(1, "second")
    assert (card.read_text(), checkpoints.latest()) == ("second", 1)
    card.unlink()
    assert checkpoints.latest() == 1
    checkpoints.write_card(2, "of no checkpoint")
    assert checkpoints.steps() == [1]


CLERK: dict[str, Any] = {"name": "clerk", "base_model": "Qwen/Qwen3-8B", "lora": {"rank": 16}}
EXPERIMENT: dict[str, Any] = {
    "scenario": "returns_desk",
    "judge": ["openai/gpt-5-mini"],
    "rubric": Rubric("Be brief.").dump(),
    "orders": 2,
    "training": {"loss": {"kind": "cispo"}, "learning_rate": 1e-5},
}


def card(*rows: dict[str, Any], base: str) -> ModelCard:
    return ModelCard(model_card(CLERK, EXPERIMENT, rows, step=9, base=base))


def test_task_judge_rubric_base_and_the_curve_up_to_the_step_are_on_the_card() -> None:
    curve = [(0, 0.1), (5, 0.4), (5, 0.5), (10, 0.9)]
    rows = [{"split": "held_out", "step": step, "success": success} for step, success in curve]
    found = card(*rows, {"split": "train", "step": 5, "reward": 0.7}, base="Qwen/Qwen3-8B")
    assert (found.data.base_model, found.data.library_name) == ("Qwen/Qwen3-8B", "peft")
    parts = ("clerk, step 9", "rank 16", "returns_desk", "openai/gpt-5-mini", Rubric("Be brief.").id, "cispo", "1e-05")
    assert [part for part in parts if part not in found.text] == []
    assert found.text.split("|---|---|\n")[1].splitlines() == ["| 0 | 0.100 |", "| 5 | 0.500 |"]


@pytest.mark.parametrize(
    ("text", "license_name"),
    [("---\nlicense: apache-2.0\n---\n", "apache-2.0"), ("no head", None), ("---\n: {\n---\n", None)],
)
def test_the_licence_is_the_one_of_the_base_models_own_card(tmp_path, text, license_name):
    assert base_license(str(tmp_path)) is None
    (tmp_path / "README.md").write_text(text)
    assert base_license(str(tmp_path)) == license_name
    found = card(base=str(tmp_path))
    assert (found.data.license, found.data.base_model) == (license_name, None)
    assert (license_name or "not known here") in found.text
