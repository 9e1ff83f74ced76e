"""What is read of a run directory."""

from pathlib import Path

import pytest

from gavel.reports.run_figures import (
    agreement_over_training,
    cost_of,
    read_run,
    run_charts,
    step_rows,
)
from tests.gavel.reports.made_runs import made_run


def test_a_cost_that_a_step_does_not_tell_is_not_known(tmp_path: Path) -> None:
    rows = read_run(made_run(tmp_path / "run")).rows
    assert cost_of(rows) == pytest.approx(0.75)
    del rows[2]["judge/cost_usd"]
    assert cost_of(rows) is None


def test_agreement_is_by_step_and_finds_who_is_placed_most_differently(tmp_path: Path) -> None:
    found = agreement_over_training(made_run(tmp_path / "run"), None)
    assert found.judge_hand == {step: pytest.approx(-1) for step in (1, 2, 3)}
    assert all(tau > 0 for tau in found.judge_truth.values())
    assert {each.places for each in found.disagreements} == {1.0}


def test_a_run_has_a_row_for_each_step_and_each_evaluation(tmp_path: Path) -> None:
    found = step_rows(read_run(made_run(tmp_path / "run", judged=False)).rows)
    assert [(row.step, row.held_out) for row in found] == [(3, 0.9), (2, None), (1, None), (0, 0.5)]
    assert found[1].figures == {"success": 0.5, "loss": -0.1}
    assert found[1].left_out == [(2, "groups whose members all have the same score")]
    assert found[3].left_out == []


def test_what_tells_whether_training_is_healthy_is_drawn_and_success_has_its_interval(tmp_path: Path) -> None:
    names = {"loss": -0.1, "kl": 0.2, "entropy": 1.0, "gradient_norm": 3.0}
    rows = [{"split": "train", "step": step, **names} for step in (1, 2)]
    rows += [{"split": "held_out", "step": step, "success": 0.5, "trajectories": 100.0} for step in (0, 2)]
    drawn = {curve.name: curve for _, _, chart in run_charts(rows) for curve in chart.curves}
    assert drawn.keys() == {"success", *names}
    assert drawn["success"].band
    assert not drawn["loss"].band
    assert run_charts([]) == []
