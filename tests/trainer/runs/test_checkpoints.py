"""A checkpoint is there whole or not at all; which ones stay, and what its card says."""

import logging
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from gavel.judge.rubric import Rubric
from gavel.trainer.runs import checkpoints as checkpoint
from gavel.trainer.runs.checkpoints import Checkpoints
from gavel.trainer.runs.model_card import base_license, model_card


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


DESCRIPTION: dict[str, Any] = {"name": "clerk", "base_model": "Qwen/Qwen3-8B", "lora": {"rank": 16}}
EXPERIMENT: dict[str, Any] = {
    "scenario": "returns_desk",
    "judge": ["openai/gpt-5-mini"],
    "rubric": Rubric("Be brief.").dump(),
    "orders": 2,
    "training": {"loss": {"kind": "cispo"}, "learning_rate": 1e-5},
}


def card(*rows: dict[str, Any], step: int = 9, experiment: dict[str, Any] = EXPERIMENT, base: str = "a/b") -> ModelCard:
    return ModelCard(model_card(DESCRIPTION, experiment, rows, step=step, base=base))


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
