"""`gavel report`: of a run as `gavel runs` lists it, or by its directory."""

import json
from pathlib import Path

from tests.forked import gavel
from tests.gavel.reports.made_runs import damage_row, made_run


def test_a_run_is_named_as_it_is_listed_or_by_its_directory(tmp_path: Path) -> None:
    run = made_run(tmp_path / "runs" / "desk" / "one")
    assert gavel("report", "desk/one", cwd=tmp_path, GAVEL_RUNS="runs").stdout.strip().endswith("one/report.html")
    assert (run / "report.html").is_file()
    done = gavel("report", str(run), "--out", "page.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    outcome, page = done.stdout.splitlines()[0], done.stdout.splitlines()[-1]
    assert ("success" in outcome, page) == (True, "Report: page.html")
    assert f"gavel view {run}" in done.stderr
    assert (tmp_path / "page.html").is_file()


def test_damaged_rows_are_told_once_on_the_page_and_on_the_command_line(tmp_path: Path) -> None:
    run = made_run(tmp_path / "runs" / "desk" / "one")
    assert "warning" not in gavel("report", "desk/one", cwd=tmp_path).stderr.lower()
    damage_row(run)
    done = gavel("report", "desk/one", cwd=tmp_path)
    assert done.returncode == 0
    told = "1 row of runs/desk/one/metrics.jsonl cannot be read (line 2)"
    assert done.stderr.count(told) == (run / "report.html").read_text().count(told) == 1


def test_a_damaged_description_is_told_and_the_figures_are_shown(tmp_path: Path) -> None:
    run = made_run(tmp_path / "runs" / "desk" / "one")
    (run / "model.json").write_text('{"base_model"')
    done = gavel("report", "desk/one", cwd=tmp_path)
    assert done.returncode == 0
    page = (run / "report.html").read_text()
    for told in ("runs/desk/one/model.json cannot be read", "restore it from a copy"):
        assert done.stderr.count(told) == page.count(told) == 1
    assert "Curves" in page


def test_scoring_into_a_file_leaves_the_judge_s_report_beside_it(tmp_path: Path) -> None:
    rows = [
        {
            "task": n,
            "messages": [{"role": "user", "content": f"Ask {n}."}, {"role": "assistant", "content": said}],
        }
        for n in range(3)
        for said in ("Here you are.", "")
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rubric = "- ends with a message to the customer."
    score = ("score", "rows.jsonl", "--by", "task", "--judge", "stand-in", "--rubric", rubric)
    done = gavel(*score, "--out", "judged.jsonl", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Report: judged.report.html" in done.stdout
    page = tmp_path / "judged.report.html"
    assert "How far can this judge be trusted?" in page.read_text()
    page.unlink()
    assert gavel("report", "judged.jsonl", cwd=tmp_path).stdout.strip() == "Report: judged.report.html"
    assert page.is_file()
    assert "Report:" not in gavel(*score, cwd=tmp_path).stdout


def test_the_report_of_a_demo_s_run_leaves_the_demo_s_page_alone(tmp_path: Path) -> None:
    run = made_run(tmp_path / "runs" / "demo" / "one")
    (run / "summary.json").write_text("{}")
    (run / "report.html").write_text("the demo's")
    assert gavel("report", "demo/one", cwd=tmp_path).stdout.strip().endswith("one/run.html")
    assert (run / "report.html").read_text() == "the demo's"
