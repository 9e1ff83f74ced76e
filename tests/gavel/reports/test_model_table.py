"""Figures of models: wins, unscored attempts, cost; and the same as JSON and CSV."""

import json
from pathlib import Path

import pytest

from gavel.reports.model_table import Episode, ModelTable, as_json, csv_rows, furthest_apart, model_row, pair_wins
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import Judgement
from gavel.scenarios.trajectory import Trajectory


def attempt(model: str, score: float | None) -> Trajectory:
    judgement = Judgement(score=score, reason=None if score is not None else "away")
    return Trajectory(metadata={"model": model}, judgement=judgement)


GROUPS = [
    TrajectoryGroup([attempt("a", 0.9), attempt("b", 0.1), attempt("c", 0.5)]),
    TrajectoryGroup([attempt("a", 0.5), attempt("b", 0.5), attempt("c", None)]),
    TrajectoryGroup([attempt("a", None), attempt("b", None), attempt("c", 0.2)]),
]


def test_wins_are_over_pairs_that_are_scored_and_a_tie_is_half() -> None:
    pairs = pair_wins(GROUPS, ["a", "b", "c"])
    assert pairs["a", "b"].value == pytest.approx(0.75)
    assert pairs["a", "b"].tasks == 2
    assert pairs["b", "c"].value == 0.0
    row = model_row("a", [], GROUPS)
    assert row.wins.value == pytest.approx((1.0 + 0.5) / 2)
    assert row.score.value == pytest.approx(0.7)
    assert row.unscored == {"away": 1}


def test_costs_that_are_not_known_are_not_added_up() -> None:
    episodes = [Episode("t", 0, [Trajectory(metrics={"success": True})], cost, 1.0) for cost in (0.5, None)]
    assert model_row("a", episodes, []).cost_usd is None
    assert model_row("a", episodes[:1], []).cost_usd == 0.5


def test_pass_at_k_is_over_tasks_with_so_many_samples() -> None:
    def episode(task: str, number: int, success: bool) -> Episode:
        return Episode(task, number, [Trajectory(metrics={"success": success})], 0.0, 1.0)

    row = model_row("a", [episode("t", 0, True), episode("t", 1, False), episode("u", 0, False)], [], failed=1)
    assert row.pass_at[1].value == pytest.approx(0.25)
    assert (row.pass_at[2].value, row.pass_at[2].tasks) == (1.0, 1)
    assert row.failed == 1


def test_the_groups_whose_scores_differ_most_come_first() -> None:
    assert furthest_apart(GROUPS) == [GROUPS[0]]


def test_json_and_csv_have_the_same_figures(tmp_path: Path) -> None:
    episodes = [Episode(str(n), 0, [Trajectory(metrics={"success": n > 1, "turns": 2})], 0.25, 1.0) for n in range(4)]
    rows = [model_row(name, episodes, GROUPS) for name in ("a", "b")]
    table = ModelTable("x", rows, 4, 1, ["judge"], "", pair_wins(GROUPS, ["a", "b"]), tmp_path)
    whole = json.loads(as_json(table))
    assert [row["success"]["value"] for row in whole["models"]] == [0.5, 0.5]
    assert whole["pairs"][0]["against"] == "b"
    header, *lines = csv_rows(table)
    assert header == ["model", "figure", "value", "low", "high", "tasks"]
    assert all(len(line) == len(header) for line in lines)
    assert ["a", "cost_usd", "1", "", "", ""] in lines
    assert ["b", "turns", "2", "", "", ""] in lines
