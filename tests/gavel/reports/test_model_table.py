"""Figures of models: wins, unscored attempts, cost; and the same as JSON and CSV."""

import csv
import json
import math
from pathlib import Path

import pytest

from gavel.reports.model_table import (
    Episode,
    ModelTable,
    ScenarioTable,
    model_row,
    pair_wins,
    ranking,
    write_model_table,
    write_scenario_table,
)
from gavel.reports.statistics import TaskMean
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import Judgement
from gavel.scenarios.trajectory import Trajectory
from tests.gavel.reports.html_page import HOSTILE, shown
from tests.gavel.reports.made_runs import member


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


def test_json_and_csv_have_the_same_figures(tmp_path: Path) -> None:
    episodes = [Episode(str(n), 0, [Trajectory(metrics={"success": n > 1, "turns": 2})], 0.25, 1.0) for n in range(4)]
    rows = [model_row(name, episodes, GROUPS) for name in ("a", "b")]
    write_model_table(ModelTable("x", rows, 4, 1, ["judge"], "", pair_wins(GROUPS, ["a", "b"]), tmp_path))
    whole = json.loads((tmp_path / "evaluation.json").read_text())
    assert [row["success"]["value"] for row in whole["models"]] == [0.5, 0.5]
    assert whole["pairs"][0]["against"] == "b"
    header, *lines = csv.reader((tmp_path / "evaluation.csv").open())
    assert header == ["model", "figure", "value", "low", "high", "tasks"]
    assert all(len(line) == len(header) for line in lines)
    assert ["a", "cost_usd", "1", "", "", ""] in lines
    assert ["b", "turns", "2", "", "", ""] in lines


def test_a_page_of_hostile_models_and_attempts_holds_no_script(tmp_path: Path) -> None:
    names = [f"{HOSTILE}1", "two"]
    members = [member(score, hand=0.0) for score in (0.9, 0.1)]
    for name, each in zip(names, members, strict=True):
        each.metadata["model"] = name
    groups = [TrajectoryGroup(members, metadata={"task": HOSTILE})] * 3
    episodes = [Episode("0", n, [member(0.9, hand=0.0)], None, 1.0) for n in range(2)]
    rows = [model_row(name, episodes, groups, failed=1) for name in names]
    table = ModelTable(HOSTILE, rows, 2, 2, [HOSTILE], "0.20 USD", pair_wins(groups, names), tmp_path)
    text = shown(write_model_table(table).read_text())
    assert HOSTILE in text
    assert "pass@2" in text


def test_a_model_is_the_best_only_where_intervals_part() -> None:
    clear = {"a": TaskMean(0.9, 0.85, 0.95, 99), "b": TaskMean(0.5, 0.4, 0.6, 99), "c": TaskMean(None, None, None, 0)}
    assert ranking(clear, "Success")[0].startswith("a did best. Success: a 0.90")
    close = clear | {"b": TaskMean(0.88, 0.8, 0.92, 99)}
    assert "cannot be told apart" in ranking(close, "Success")[0]
    assert ranking({"c": clear["c"]}, "Success") == []


def table_of(scenario: str, successes: dict[str, list[float] | None], folder: Path, cost: float | None) -> ModelTable:
    def episodes(values: list[float] | None) -> list[Episode]:
        metrics = [{} if values is None else {"success": value} for value in values or [0.0] * 4]
        return [Episode(str(at), 0, [Trajectory(metrics=each)], cost, seconds=2.0) for at, each in enumerate(metrics)]

    rows = [model_row(name, episodes(values), []) for name, values in successes.items()]
    return ModelTable(scenario, rows, 4, 1, [], "", {}, folder / scenario)


def test_a_mean_counts_every_scenario_the_same_and_its_error_is_theirs(tmp_path: Path) -> None:
    one = table_of("one", {"m": [1.0, 0.0, 1.0, 1.0]}, tmp_path, 0.5)
    other = table_of("other", {"m": [0.0, 0.0, 1.0, 0.0] * 4}, tmp_path, 0.25)
    table = ScenarioTable([one, other], tmp_path)
    mean = table.mean("m")
    assert mean.value == pytest.approx((0.75 + 0.25) / 2)
    assert mean.tasks == 20
    widths = [each["m"].success for each in (one, other)]
    half = math.hypot(*((each.high or 0) - (each.low or 0) for each in widths)) / 2 / 2
    assert (mean.low, mean.high) == (pytest.approx(0.5 - half), pytest.approx(0.5 + half))
    assert table.cost("m") == pytest.approx(4 * 0.5 + 16 * 0.25)
    third = table_of("third", {"m": None}, tmp_path, None)
    assert ScenarioTable([one, third], tmp_path).cost("m") is None
    lacking = table_of("lacking", {"other": [1.0]}, tmp_path, 0.5)
    assert ScenarioTable([one, lacking], tmp_path).mean("m") == TaskMean(None, None, None, 0)


def test_the_page_and_its_files_hold_all_figures_and_no_markup_of_others(tmp_path: Path) -> None:
    one = table_of("one", {HOSTILE: [1.0, 0.0, 1.0, 1.0]}, tmp_path, 0.5)
    other = table_of("two", {HOSTILE: [0.0, 0.0, 1.0, 0.0]}, tmp_path, 0.5)
    page = write_scenario_table(ScenarioTable([one, other], tmp_path / "both", {HOSTILE: HOSTILE}))
    text = shown(page.read_text())
    for part in ("mean success", "Not evaluated", HOSTILE):
        assert part in text
    assert 'href="../one/report.html"' in page.read_text()
    rows = list(csv.DictReader((tmp_path / "both" / "evaluation.csv").open()))
    assert {row["scenario"] for row in rows} == {"one", "two"}
    stored = json.loads((tmp_path / "both" / "evaluation.json").read_text())
    assert [each["scenario"] for each in stored["scenarios"]] == ["one", "two"]
    assert stored["models"][0]["success"]["value"] == 0.5
