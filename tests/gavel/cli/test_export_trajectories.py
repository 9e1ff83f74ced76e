"""`gavel export trajectories`: of a run, by split and step, or of a file."""

import json
from pathlib import Path

from gavel.scenarios.trajectory_store import TrajectoryStore
from tests.forked import gavel
from tests.scenarios.formats.attempts import both, whole


def made_run(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "model.json").write_text(json.dumps({"name": "one", "project": "desk"}))
    (group,) = [stored.group for stored in both()]
    for split, step in (("train", 1), ("train", 2), ("val/hard", 2)):
        TrajectoryStore(path / "trajectories" / split / f"{step:06d}.jsonl.zst").extend([group])
    return path


def test_a_run_s_trajectories_are_written_and_what_is_lost_is_named(tmp_path: Path) -> None:
    made_run(tmp_path / "runs" / "desk" / "one")
    done = gavel("export", "trajectories", "desk/one", "--format", "atif", "-o", "all.jsonl", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "wrote 6 attempts of 3 groups as ATIF documents to all.jsonl"
    assert "left out or changed: 3 × tool call without an id" in done.stderr
    first, *_ = map(json.loads, (tmp_path / "all.jsonl").read_text().splitlines())
    assert (first["trajectory_id"], first["agent"]["model_name"]) == ("train/1/0/0", "one")
    chosen = ("--split", "val/hard", "--step", "2", "--format", "inspect", "-o", "hard.json")
    done = gavel("export", "trajectories", "desk/one", *chosen, cwd=tmp_path)
    assert "wrote 2 attempts" in done.stdout, done.stderr
    assert json.loads((tmp_path / "hard.json").read_text())["eval"]["task"] == "desk/one"


def test_a_file_of_another_program_is_written_in_a_third_one_s_format(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps({"messages": whole().messages()}) + "\n")
    done = gavel("export", "trajectories", "in.jsonl", "--format", "verifiers", "-o", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "reads as: OpenAI messages" in done.stderr
    (line,) = (tmp_path / "out" / "traces.jsonl").read_text().splitlines()
    assert len(json.loads(line)["traces"][0]["nodes"]) == 5


def test_what_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    (tmp_path / "in.jsonl").write_text("{}\n")
    form = ("--format", "atif", "-o", "out.jsonl")
    for arguments, told in (
        (("desk/none", *form), "there is no run and no file desk/none"),
        (("run", "--step", "9", *form), "no trajectories of that split and step"),
        (("in.jsonl", "--step", "9", *form), "is no run, so it has no splits and steps"),
        (("in.jsonl", *form), "in.jsonl"),
        (("run", "--format", "atif", "-o", "run"), "exists already"),
    ):
        done = gavel("export", "trajectories", *arguments, cwd=tmp_path)
        assert done.returncode == 1, done.stderr
        assert done.stderr.startswith("error: ")
        assert told in done.stderr
        assert "Traceback" not in done.stderr
    assert (
        "train (steps 1 to 2), val/hard (steps 2)"
        in gavel("export", "trajectories", str(run), "--step", "9", *form, cwd=tmp_path).stderr
    )
