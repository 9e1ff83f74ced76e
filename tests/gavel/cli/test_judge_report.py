"""`gavel judge report`: its table, the page that it writes, and its errors."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from gavel.base.errors import GavelError
from gavel.cli.judge import print_report, report
from gavel.reports.judge_trust import read_report
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import Judgement, Vote
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.trajectory_store import TrajectoryStore
from tests.gavel.cli.test_app import gavel, mistake
from tests.gavel.reports.judged_groups import judged
from tests.gavel.reports.made_runs import made_run


def printed(groups: list[TrajectoryGroup], reference: str | None = None, width: int = 160) -> str:
    text = io.StringIO()
    print_report(Console(file=text, width=width), read_report(groups, reference, "judged.jsonl"))
    return text.getvalue()


async def test_several_judges_and_a_reference_get_every_section() -> None:
    table = printed(await judged("one", "two"))
    for shown in (
        "one, two",
        "12 groups · 48 of 48 members scored · 192 votes",
        "Agreement with independent_reward",
        "Agreement between 2 judges",
        "Agreement between 4 calls on one group",
        "Kendall's tau-b",
        "ICC(2,4)",
        "Krippendorff's alpha",
        "position slope",
        "needs a reference of two values",
    ):
        assert shown in table
    assert "Without a reference" not in table


async def test_a_row_has_the_figure_its_interval_and_its_groups() -> None:
    groups = await judged("one")
    report = read_report(groups, "success", "judged.jsonl")
    auc = next(figure for section in report.sections for figure in section.figures if figure.name == "AUC")
    row = next(line for line in printed(groups, "success").splitlines() if line.startswith("AUC"))
    assert row.split()[:6] == ["AUC", auc.value, *auc.interval.split(), "12"]


async def test_notes_and_unscored_members_end_the_table() -> None:
    groups = await judged("one", groups=2, metric="depth")
    groups[0].trajectories.append(Trajectory(judgement=Judgement(reason="no vote: the judge was away")))
    text = " ".join(printed(groups).split())
    assert "these members have: depth, success" in text
    assert "1 unscored: no vote: the judge was away" in text


def test_control_characters_in_names_are_not_printed() -> None:
    def member(score: float, position: int) -> Trajectory:
        votes = [Vote(score=score, position=position, order=order, model="\x1b[2Jother") for order in (0, 1)]
        return Trajectory(judgement=Judgement(score=score, votes=votes), metrics={"\x1b[2Jmetric": score})

    group = TrajectoryGroup([member(0.2, 0), member(0.7, 1), Trajectory(judgement=Judgement(reason="\x1b[2Jreason"))])
    assert "\x1b" not in printed([group], "\x1b[2Jmetric")


async def test_the_command_prints_and_writes_beside_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = TrajectoryStore(tmp_path / "judged.jsonl.zst")
    store.extend(await judged("one", groups=2))
    report(store.path, None, None, None)
    assert (tmp_path / "judged.report.html").is_file()
    assert "judged.report.html" in capsys.readouterr().out.replace("\n", "")
    report(store.path, "success", None, tmp_path / "deep" / "page.html")
    assert "Agreement with success" in (tmp_path / "deep" / "page.html").read_text()


async def test_programs_read_unrounded_figures_and_where_the_page_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = TrajectoryStore(tmp_path / "judged.jsonl.zst")
    groups = await judged("one")
    store.extend(groups)
    report(store.path, "success", as_json=True)
    found = json.loads(capsys.readouterr().out)
    figures = {figure["name"]: figure for section in found["sections"] for figure in section["figures"]}
    expected = read_report(groups, "success", "judged.jsonl.zst").agreement
    assert expected is not None
    auc = figures["AUC"]
    assert (auc["value"], auc["low"], auc["high"]) == (expected.auc.value, expected.auc.low, expected.auc.high)
    assert auc["groups"] == 12
    assert (found["judges"], found["source"]) == (["one"], "judged.jsonl.zst")
    assert found["report"] == str(tmp_path / "judged.report.html")


async def test_a_page_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "judged.jsonl.zst")
    store.extend(await judged("one", groups=2))
    with pytest.raises(GavelError, match="cannot be written"):
        report(store.path, None, None, tmp_path)


def test_the_command_line_tells_what_to_do_with_a_file_that_was_not_judged(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('[{"role": "user", "content": "hello"}]\n')
    assert "gavel score" in mistake("judge", "report", "rows.jsonl", cwd=tmp_path)


def test_a_run_is_reported_by_its_name_and_scored_anew(tmp_path: Path) -> None:
    made_run(tmp_path / "runs" / "desk" / "one")
    done = gavel("judge", "report", "desk/one", "--reference", "success", cwd=tmp_path, GAVEL_RUNS="runs")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "desk" / "one" / "judge.report.html").is_file()
    assert "3 groups" in done.stdout
    again = gavel("score", "desk/one", "--judge", "constant", "--out", "o.jsonl", cwd=tmp_path, GAVEL_RUNS="runs")
    assert again.returncode == 0, again.stderr
    assert len((tmp_path / "o.jsonl").read_text().splitlines()) == 3
