"""Checkpoints under the names that ART gives them, and forks of them."""

import json
from functools import partial
from pathlib import Path

import pytest

from gavel.integrations.art.local import fork_checkpoint
from gavel.integrations.art.model import link_checkpoints
from gavel.trainer.runs.checkpoints import Checkpoints
from gavel.trainer.runs.run_directory import NamedCheckpointError, RunDirectory, RunDirectoryError


def a_run(root: Path, *steps: int) -> None:
    directory = RunDirectory(root, "p", "first")
    directory.describe({"project": "p", "name": "first", "base_model": "b", "from_checkpoint": {"named": "x"}})
    for step in steps:
        directory.checkpoints.save(step, partial(_write, step))
    directory.close()


def _write(step: int, path: Path) -> None:
    (path / "weights").write_text(str(step))


def test_the_newest_checkpoint_up_to_a_step_is_copied_whole_with_the_run_s_description(tmp_path: Path) -> None:
    a_run(tmp_path, 1, 2, 5)
    assert fork_checkpoint(tmp_path, ("p", "first"), ("q", "second"), 4) == 2
    copies = Checkpoints(tmp_path / "q" / "second" / "checkpoints")
    assert copies.steps() == [2]
    assert copies.latest() == 2
    assert (copies.path(2) / "weights").read_text() == "2"
    description = json.loads((tmp_path / "q" / "second" / "model.json").read_text())
    assert (description["project"], description["name"], description["base_model"]) == ("q", "second", "b")
    assert "from_checkpoint" not in description


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    a_run(tmp_path, 1, 2)
    (tmp_path / "p" / "first" / "checkpoints" / "000002" / "weights").write_text("altered")
    assert fork_checkpoint(tmp_path, ("p", "first"), ("p", "second"), None) == 1


def test_a_run_without_such_a_step_and_a_run_that_has_begun_are_refused(tmp_path: Path) -> None:
    a_run(tmp_path, 3)
    with pytest.raises(NamedCheckpointError, match="up to 2"):
        fork_checkpoint(tmp_path, ("p", "first"), ("p", "second"), 2)
    fork_checkpoint(tmp_path, ("p", "first"), ("p", "second"), None)
    with pytest.raises(RunDirectoryError, match="begun already"):
        fork_checkpoint(tmp_path, ("p", "first"), ("p", "second"), None)


def test_links_follow_the_checkpoints(tmp_path: Path) -> None:
    saved, links = tmp_path / "p" / "m" / "checkpoints", tmp_path / "p" / "models" / "m" / "checkpoints"
    assert link_checkpoints(saved, links) is None
    for step in (1, 12):
        (saved / f"{step:06d}").mkdir(parents=True)
    assert link_checkpoints(saved, links) == links / "0012"
    (saved / "000012" / "adapter").write_text("x")
    assert (links / "0012" / "adapter").read_text() == "x"
    (saved / "000001").rmdir()
    link_checkpoints(saved, links)
    assert [entry.name for entry in links.iterdir()] == ["0012"]
