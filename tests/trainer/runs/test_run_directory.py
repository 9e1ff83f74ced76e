"""One process at a time, one description for ever, nothing left behind by a run that never began."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gavel.trainer.runs.run_directory import (
    FORMAT_VERSION,
    FormatVersionError,
    RunDirectory,
    RunDirectoryError,
    runs_root,
)

HOLDER = """
import sys
from pathlib import Path
from gavel.trainer.runs.run_directory import RunDirectory
held = RunDirectory(Path(sys.argv[1]), "project", "name")
print("held", flush=True)
sys.stdin.read()
"""
DESCRIPTION = {"base_model": "embedded/returns-desk", "lora": {"rank": 16}}


def open_run(root: Path) -> RunDirectory:
    return RunDirectory(root, "project", "name")


def everything_in(root: Path) -> list[Path]:
    return sorted(path.relative_to(root) for path in root.rglob("*"))


def test_a_second_handle_on_the_same_run_is_refused_until_the_first_is_closed(tmp_path):
    first = open_run(tmp_path)
    with pytest.raises(RunDirectoryError, match="another process is using") as error:
        open_run(tmp_path)
    assert "another name" in error.value.remedy
    RunDirectory(tmp_path, "project", "other").close()
    first.close()
    open_run(tmp_path).close()


@pytest.mark.slow
def test_another_process_keeps_its_run_until_it_is_gone(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunDirectoryError, match="another process is using"):
            open_run(tmp_path)
        holder.kill()
    open_run(tmp_path).close()


def test_a_directory_that_was_deleted_or_replaced_in_use_is_not_written_again(tmp_path):
    first = open_run(tmp_path)
    first.check_held()
    shutil.rmtree(first.path)
    with pytest.raises(RunDirectoryError, match="deleted or replaced"):
        first.check_held()
    with pytest.raises(RunDirectoryError, match="deleted or replaced"):
        first.describe({"base_model": "b"}, "memory.json")
    second = open_run(tmp_path)
    with pytest.raises(RunDirectoryError, match="deleted or replaced") as error:
        first.check_held()
    assert "another --name" in error.value.remedy
    second.check_held()
    first.close()
    second.check_held()
    second.close()


@pytest.mark.parametrize("blocked", [".", "project", "project/name"])
def test_a_directory_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path, blocked):
    file = tmp_path / "runs" / blocked
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("in the way")
    with pytest.raises(RunDirectoryError, match="cannot be written") as error:
        open_run(tmp_path / "runs")
    assert "GAVEL_RUNS" in error.value.remedy
    assert file.read_text() == "in the way"


@pytest.mark.parametrize("name", ["..", "../elsewhere", "a/b"])
def test_a_name_never_leads_to_another_directory(tmp_path, name):
    for project, run in ((name, "clerk"), ("orders", name)):
        with pytest.raises(RunDirectoryError, match="cannot be the name"):
            RunDirectory(tmp_path / "runs", project, run)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "problem"), [("", "is empty"), ("n" * 300, "too long"), ("ä" * 150, "300 bytes")])
def test_a_name_is_neither_empty_nor_longer_than_a_directory_can_have(tmp_path, name, problem):
    with pytest.raises(RunDirectoryError, match=problem) as error:
        RunDirectory(tmp_path, "desk", name)
    assert "--name" in error.value.remedy


@pytest.mark.parametrize("content", ["[]", '{"base_model"', ""])
def test_a_damaged_description_is_refused_with_the_remedy(tmp_path, content):
    run = open_run(tmp_path)
    (run.path / "model.json").write_text(content)
    with pytest.raises(RunDirectoryError, match=r"model\.json") as error:
        run.check(DESCRIPTION)
    assert "--fresh" in error.value.remedy
    run.close()


@pytest.mark.parametrize("left", ["checkpoint", "metrics", "experiment"])
def test_a_run_whose_description_is_missing_is_not_continued(tmp_path, left):
    run = open_run(tmp_path)
    run.check(DESCRIPTION)
    match left:
        case "checkpoint":
            run.checkpoints.save(1, lambda directory: (directory / "adapter.bin").touch())
        case "metrics":
            run.metrics.log(1, "train", {"reward": 0.5})
        case _:
            run.describe({}, "experiment.json")
    with pytest.raises(RunDirectoryError, match=r"model\.json is missing") as error:
        run.check(DESCRIPTION)
    assert "Restore model.json" in error.value.remedy
    run.close()


def test_metrics_of_a_prompted_model_and_files_of_others_are_no_run(tmp_path):
    run = open_run(tmp_path)
    run.metrics.log(0, "val", {"reward": 0.5})
    (run.path / "notes.txt").touch()
    run.check(DESCRIPTION)
    run.close()


def test_a_run_goes_on_with_the_description_that_it_was_begun_with(tmp_path):
    run = open_run(tmp_path)
    run.describe(DESCRIPTION)
    run.close()
    again = open_run(tmp_path)
    again.describe(DESCRIPTION)
    again.close()


def test_another_base_model_is_refused_naming_both(tmp_path):
    run = open_run(tmp_path)
    run.describe(DESCRIPTION)
    with pytest.raises(RunDirectoryError, match=r"embedded/returns-desk.*Qwen/Qwen3-8B") as error:
        run.check(DESCRIPTION | {"base_model": "Qwen/Qwen3-8B"})
    assert "another --name" in error.value.remedy
    with pytest.raises(RunDirectoryError, match="lora"):
        run.check(DESCRIPTION | {"lora": {"rank": 8}})
    run.check(DESCRIPTION)
    run.close()


def test_a_description_carries_the_format_version_and_an_unversioned_one_is_still_read(tmp_path):
    run = open_run(tmp_path)
    run.describe(DESCRIPTION)
    file = run.path / "model.json"
    assert json.loads(file.read_text()) == {"format_version": FORMAT_VERSION, **DESCRIPTION}
    file.write_text(json.dumps(DESCRIPTION))
    run.check(DESCRIPTION)
    with pytest.raises(RunDirectoryError, match="lora"):
        run.check(DESCRIPTION | {"lora": {"rank": 8}})
    run.close()


def test_a_description_of_a_newer_gavel_is_refused_with_the_remedy(tmp_path):
    run = open_run(tmp_path)
    (run.path / "model.json").write_text(json.dumps({"format_version": FORMAT_VERSION + 1, **DESCRIPTION}))
    with pytest.raises(FormatVersionError, match=r"model.json has format version") as error:
        run.check(DESCRIPTION)
    assert "Upgrade Gavel" in error.value.remedy
    run.close()


def test_a_run_that_never_began_leaves_nothing_behind(tmp_path):
    run = open_run(tmp_path / "runs")
    run.close()
    run.discard_if_new()
    assert everything_in(tmp_path) == []


def test_discarding_spares_what_was_there_before(tmp_path):
    (tmp_path / "runs" / "project" / "neighbour").mkdir(parents=True)
    run = open_run(tmp_path / "runs")
    run.close()
    run.discard_if_new()
    assert everything_in(tmp_path) == [Path("runs"), Path("runs/project"), Path("runs/project/neighbour")]


def test_discarding_spares_a_run_that_was_begun(tmp_path):
    begun = open_run(tmp_path)
    begun.describe(DESCRIPTION)
    begun.close()
    begun.discard_if_new()
    assert (begun.path / "model.json").exists()
    again = open_run(tmp_path)
    again.close()
    again.discard_if_new()
    assert (begun.path / "model.json").exists()


def test_the_parts_of_a_run_are_where_they_are_documented(tmp_path):
    run = open_run(tmp_path)
    run.metrics.log(1, "train", {"reward": 0.5})
    run.checkpoints.save(1, lambda directory: (directory / "adapter.bin").touch())
    run.trajectories("train", 1).extend([])
    run.describe(DESCRIPTION)
    run.close()
    base = tmp_path / "project" / "name"
    assert (base / "metrics.jsonl").is_file()
    assert (base / "checkpoints" / "000001" / "adapter.bin").is_file()
    assert (base / "model.json").is_file()
    assert run.trajectories("train", 1).path == base / "trajectories" / "train" / "000001.jsonl.zst"


def test_runs_are_kept_where_the_caller_or_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.delenv("GAVEL_RUNS", raising=False)
    assert runs_root() == Path("runs")
    monkeypatch.setenv("GAVEL_RUNS", str(tmp_path))
    assert runs_root() == tmp_path
    assert runs_root("elsewhere") == Path("elsewhere")
