"""`gavel compare` end to end: killed and gone on with, of existing runs, and of judges on what is stored."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gavel.trainer.runs.run_listing import is_running
from tests.forked import gavel
from tests.gavel.cli.test_cli import EXAMPLES
from tests.gavel.reports.made_runs import damage_row, made_run
from tests.limits import HANG_SECONDS

SETTINGS = "--seeds 1 --steps 2 --evaluate-every 1 --tasks 2 --group-size 2 --evaluation-tasks 4 --final-tasks 4"
SMALL = ["returns_desk", "--rewards", "hand,constant", *SETTINGS.split()]


@pytest.mark.slow
@pytest.mark.thorough
def test_a_comparison_that_was_killed_goes_on_and_runs_nothing_twice(tmp_path: Path) -> None:
    place = tmp_path / "runs" / "compare" / "returns_desk"
    first = subprocess.Popen(
        [sys.executable, "-m", "gavel", "compare", *SMALL, "--parallel", "1"],
        cwd=tmp_path,
        env=os.environ | {"GAVEL_RUNS": "runs"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    hand = place / "hand-2-steps-seed-0"
    try:
        _wait(lambda: (hand / "metrics.jsonl").exists())
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait(HANG_SECONDS)
    _wait(lambda: not is_running(hand))  # the run ends with the process that started it
    done = gavel("compare", *SMALL, cwd=tmp_path, GAVEL_RUNS="runs")
    assert done.returncode == 0, done.stderr
    assert "hand - constant" in done.stdout
    written = (hand / "metrics.jsonl").read_text()
    again = gavel("compare", *SMALL, cwd=tmp_path, GAVEL_RUNS="runs")
    assert "2 finished before" in again.stdout
    assert (hand / "metrics.jsonl").read_text() == written
    figures = json.loads((place / "comparison.json").read_text())
    assert [list(arm["runs"][0]["heldout_success"]) for arm in figures["arms"]] == [["0", "1", "2"]] * 2
    assert (hand / "report.html").is_file()


def test_existing_runs_are_compared_without_a_claim(tmp_path: Path) -> None:
    for name in ("one", "two"):
        made_run(tmp_path / "runs" / "desk" / name)
    done = gavel("compare", "desk/one", str(tmp_path / "runs" / "desk" / "two"), cwd=tmp_path, GAVEL_RUNS="runs")
    assert done.returncode == 0, done.stderr
    assert "one - two: +0.00 (1 seed): not shown: one seed has no interval" in done.stdout
    assert (tmp_path / "runs" / "compare" / "runs" / "desk-one-desk-two" / "report.html").is_file()


def test_a_narrow_terminal_has_every_figure_whole(tmp_path: Path) -> None:
    for name in ("one", "two"):
        made_run(tmp_path / "runs" / "desk" / name)
    done = gavel("compare", "desk/one", "desk/two", cwd=tmp_path, GAVEL_RUNS="runs", COLUMNS="40")
    assert done.returncode == 0, done.stderr
    assert "…" not in done.stdout
    for figure in ("held-out success: 0.90", "steps to 0.80: 3", "reward's gap to success: +0.67", "cost, USD: 0.75"):
        assert done.stdout.count(figure) == 2


def test_damaged_files_of_runs_are_told_once_beside_the_figures(tmp_path: Path) -> None:
    for name in ("one", "two"):
        made_run(tmp_path / "runs" / "desk" / name)
    damage_row(tmp_path / "runs" / "desk" / "two")
    (tmp_path / "runs" / "desk" / "one" / "model.json").write_text("[]")
    done = gavel("compare", "desk/one", "desk/two", cwd=tmp_path, GAVEL_RUNS="runs")
    assert done.returncode == 0, done.stderr
    page = tmp_path / "runs" / "compare" / "runs" / "desk-one-desk-two" / "report.html"
    for told in ("desk/two/metrics.jsonl cannot be read (line 2)", "desk/one/model.json is not a JSON object"):
        assert (done.stdout + done.stderr).count(told) == page.read_text().count(told) == 1


def test_existing_runs_are_ranked_by_a_judge_that_is_not_told_whose_attempts_they_are(tmp_path: Path) -> None:
    made_run(tmp_path / "runs" / "desk" / "one", says="Your refund is on its way, and thank you for waiting.")
    made_run(tmp_path / "runs" / "desk" / "two", says="No.")
    (tmp_path / "r.txt").write_text("- ends with a message to the customer\n")
    arguments = ["desk/one", "desk/two", "--blind-judge", "stand-in", "--blind-rubric", "@r.txt", "--orders", "1"]
    done = gavel("compare", *arguments, cwd=tmp_path, GAVEL_RUNS="runs")
    assert done.returncode == 0, done.stderr
    assert "Ranked blind by gavel/stand-in in 3 groups of held-out attempts; a tie is half a win." in done.stdout
    place = tmp_path / "runs" / "compare" / "runs" / "desk-one-desk-two"
    figures = json.loads((place / "comparison.json").read_text())["blind"]
    assert figures["rubric"] == "- ends with a message to the customer"
    assert [(pair["reward"], pair["against"]) for pair in figures["pairs"]] == [("desk/one", "desk/two")]
    assert "ranked blind" in (place / "report.html").read_text()
    again = gavel("compare", *arguments, cwd=tmp_path, GAVEL_RUNS="runs")
    assert "blind ranking:" in done.stdout
    assert "blind ranking:" not in again.stdout  # it asked nothing


def test_runs_of_different_scenarios_are_not_compared_and_different_tasks_are_told(tmp_path: Path) -> None:
    for name, scenario in {"one": "returns_desk", "two": "booking_desk", "three": "returns_desk"}.items():
        made_run(tmp_path / "runs" / "desk" / name, scenario=scenario)
    done = gavel("compare", "desk/one", "desk/two", cwd=tmp_path, GAVEL_RUNS="runs")
    assert done.returncode == 1
    assert "different scenarios (desk/one: returns_desk, desk/two: booking_desk)" in " ".join(done.stderr.split())
    third = tmp_path / "runs" / "desk" / "three" / "experiment.json"
    third.write_text(third.read_text().replace('"seed": 0', '"seed": 7'))
    told = gavel("compare", "desk/one", "desk/three", cwd=tmp_path, GAVEL_RUNS="runs")
    assert told.returncode == 0, told.stderr
    assert "The runs had different seeds (0, 7)" in told.stdout


def test_runs_of_which_one_ended_early_are_told_apart(tmp_path: Path) -> None:
    for name, steps in {"one": 3, "two": 5}.items():
        made_run(tmp_path / "runs" / "desk" / name, steps=steps)
    told = gavel("compare", "desk/one", "desk/two", cwd=tmp_path, GAVEL_RUNS="runs")
    assert told.returncode == 0, told.stderr
    assert "The runs were last evaluated at different steps (desk/one: step 3, desk/two: step 5)" in told.stdout


def test_judges_are_compared_on_what_a_run_has_stored(tmp_path: Path) -> None:
    made_run(tmp_path / "runs" / "desk" / "one")
    (tmp_path / "r.txt").write_text("- ends with a message to the customer\n")
    done = gavel("compare", "--judges", "constant,stand-in", "desk/one", "--rubric", "@r.txt", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "runs" / "compare" / "judges" / "one" / "judges.json").read_text())
    assert {(row["judge"], row["reference"]) for row in rows} >= {("constant", "success"), ("constant", "stand-in")}


def test_a_dry_run_tells_what_the_judge_of_all_missing_runs_may_cost(tmp_path: Path) -> None:
    size = "--rewards judge,hand --seeds 2 --steps 3 --tasks 2 --group-size 4 --judges openai/gpt-5-mini --dry-run"
    told = gavel("compare", "returns_desk", *size.split(), cwd=tmp_path, OPENAI_API_KEY="none")
    assert told.returncode == 0, told.stderr
    assert f"{2 * 3 * 2 * 2} calls, about" in told.stdout  # runs, steps, groups, orders
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "options", ["--set model.from_checkpoint=nobody/nothing", "--model empty", "--judges nobody/nothing"]
)
def test_a_dry_run_refuses_what_a_run_would_before_it_prints_anything(options: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    command = ("compare", "returns_desk", "--rewards", "judge", "--seeds", "1", "--dry-run", *options.split())
    refused = gavel(*command, cwd=tmp_path)
    assert refused.returncode == 1
    assert "error: " in refused.stderr
    assert not refused.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_a_dry_run_of_stored_groups_asks_no_judge(tmp_path: Path) -> None:
    made_run(tmp_path / "runs" / "desk" / "one")
    told = gavel("compare", "--judges", "constant,openai/gpt-5-mini", "desk/one", "--dry-run", cwd=tmp_path)
    assert "openai/gpt-5-mini: 3 groups: no call" in told.stdout  # their members are identical
    assert told.returncode == 1  # the key is missing, which the estimate does not need
    assert "OPENAI_API_KEY" in told.stderr
    assert not (tmp_path / "runs" / "compare").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("desk/one desk/two --dry-run", "--dry-run: no effect here"),
        ("returns_desk --rewards taste", "there is no reward 'taste'"),
        ("no/run other/run", "no/run is no run"),
        ("desk/one", "what it is to be compared with is not said"),
        ("desk/one runs/desk/one", "a run is compared with itself"),
        ("desk/one desk/two --seeds 3 --judges constant", "--judges, --seeds: no effect here"),
        ("desk/one desk/two --orders 3", "--orders: no effect here"),
        ("desk/one --judges constant --steps 3 --margin 0.1", "--margin, --steps: no effect here"),
        ("returns_desk --out somewhere", "--out: no effect here"),
        ("returns_desk --blind-rubric short", "--blind-rubric is for a judge that ranks"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, arguments: str, said: str) -> None:
    for name in ("one", "two"):
        made_run(tmp_path / "runs" / "desk" / name)
    done = gavel("compare", *arguments.split(), cwd=tmp_path, GAVEL_RUNS="runs")
    assert done.returncode == 1
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def _wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_the_built_in_model_is_not_trained_on_a_foreign_scenario_unasked(tmp_path: Path) -> None:
    command = ("compare", str(EXAMPLES / "returns.py"), "--rewards", "judge", "--seeds", "1", "--steps", "1")
    refused = gavel(*command, cwd=tmp_path)
    assert refused.returncode == 1
    assert "--model smollm2-135m" in refused.stderr
    assert not list(tmp_path.iterdir())
