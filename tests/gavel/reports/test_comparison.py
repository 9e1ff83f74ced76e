"""Arms of runs, their paired differences and what is said of them."""

import csv
import json
from pathlib import Path
from statistics import fmean

import pytest

from gavel.reports.comparison import Comparison, compare_cells, outcome, read_cell, statement, write_comparison
from tests.gavel.reports.html_page import shown
from tests.gavel.reports.made_runs import made_run

FINALS = {"judge": (0.90, 0.88, 0.91), "hand": (0.91, 0.88, 0.90)}


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    cells = [
        read_cell(arm, seed, made_run(tmp_path / f"{arm}-{seed}", final=final, judged=arm == "judge"), None)
        for arm, finals in FINALS.items()
        for seed, final in enumerate(finals)
    ]
    return compare_cells(cells, "desk", tmp_path / "report", margin=0.03, threshold=0.89)


def test_differences_are_of_the_same_seeds_and_the_gap_is_what_the_score_rose_more_than_success(comparison) -> None:
    difference = comparison.paired["judge - hand"]
    assert (difference.seeds, difference.mean) == (3, pytest.approx(0.0))
    assert "(95 %: -0.02 to +0.02, 3 seeds)" in statement("judge - hand", difference)
    judge, hand = comparison.arms
    assert judge.hacking_gap.value == pytest.approx(2 / 3)
    assert hand.hacking_gap.value is None
    assert (judge.cost_text, hand.cost_text, judge.steps_text) == ("2.25", "–", "3 (2 of 3 seeds)")


def test_held_out_attempts_are_measured_before_and_after_training(comparison) -> None:
    judge, hand = comparison.arms
    assert (comparison.before["words"].value, comparison.before["words"].seeds) == (20.0, 6)
    assert judge.measures["words"].value == pytest.approx(10 * fmean(FINALS["judge"]))
    assert judge.alarms_text == "score gap: 3 of 3 runs, first at step 2"
    assert hand.alarms_text == "–"


def test_agreement_is_by_step(comparison) -> None:
    run = comparison.arms[0].runs[0]
    assert run.tau_judge_hand == {step: pytest.approx(-1) for step in (1, 2, 3)}
    assert all(tau > 0 for tau in run.tau_judge_truth.values())


def test_page_csv_and_json_have_the_figures_and_no_markup_of_trajectories(comparison: Comparison) -> None:
    page = write_comparison(comparison)
    text = shown(page.read_text())
    assert "before training" in text
    assert "score gap: 3 of 3 runs, first at step 2." in text
    with (page.parent / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    assert [float(row["heldout_success"]) for row in rows if row["reward"] == "hand" and row["step"] == "3"] == [
        *FINALS["hand"]
    ]
    figures = json.loads((page.parent / "comparison.json").read_text())
    assert figures["paired"]["judge - hand"]["equivalent"] is True


def test_a_reward_on_which_nothing_was_trained_is_told_before_any_difference(tmp_path: Path) -> None:
    def idle(name: str) -> Path:
        directory = made_run(tmp_path / name, final=0.5)
        rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()[:-1]]
        rows = [row | {"groups_trained": 0} if row["split"] == "train" else row for row in rows]
        (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return directory

    trained = read_cell("judge", 0, made_run(tmp_path / "judge"), None)
    untrained = read_cell("constant", 0, idle("constant"), None)
    said = outcome(compare_cells([trained, untrained], "desk", tmp_path, margin=0.03, threshold=0.8))
    assert "constant" in said[0]
    assert "nothing was trained" in said[0]
    assert said[1].startswith("judge - constant: +0.40")
    alone = outcome(compare_cells([untrained], "desk", tmp_path, margin=0.03, threshold=0.8))
    assert "says nothing about the rewards" in alone[-1]
