"""`gavel report`: of a run as `gavel runs` lists it, or by its directory."""

from pathlib import Path

from tests.forked import gavel
from tests.gavel.reports.made_runs import made_run


def test_a_run_is_named_as_it_is_listed_or_by_its_directory(tmp_path: Path) -> None:
    run = made_run(tmp_path / "runs" / "desk" / "one")
    assert gavel("report", "desk/one", cwd=tmp_path, GAVEL_RUNS="runs").stdout.strip().endswith("one/report.html")
    assert (run / "report.html").is_file()
    done = gavel("report", str(run), "--out", "page.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").is_file()


def test_a_run_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    done = gavel("report", "desk/none", cwd=tmp_path)
    assert done.returncode == 1
    assert "there is no run desk/none" in done.stderr
