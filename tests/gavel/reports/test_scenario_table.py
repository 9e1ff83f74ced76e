"""The table of scenarios by models: means, what is missing, and that hostile names stay text."""

import csv
import json
import math
from pathlib import Path

import pytest

from gavel.reports.model_statistics import TaskMean
from gavel.reports.model_table import Episode, ModelTable, model_row
from gavel.reports.scenario_table import ScenarioTable, seconds_of, write_scenario_table
from gavel.scenarios.trajectory import Trajectory
from tests.gavel.reports.html_page import HOSTILE, Page


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
    assert seconds_of(one["m"], other["m"]) == seconds_of(one["m"])


def test_a_model_without_a_figure_of_a_scenario_has_no_mean_and_an_unknown_cost_stays_so(tmp_path: Path) -> None:
    one = table_of("one", {"a": [1.0, 0.0], "b": [1.0, 1.0]}, tmp_path, 0.5)
    other = table_of("other", {"a": [1.0, 0.0]}, tmp_path, None)
    judged = table_of("judged", {"a": None, "b": None}, tmp_path, 0.0)
    table = ScenarioTable([one, other, judged], tmp_path)
    assert table.mean("b") == TaskMean(None, None, None, 0)
    assert table.mean("a").value == 0.5
    assert (table.cost("a"), table.cost("b")) == (None, 1.0)


def test_the_page_and_its_files_hold_all_figures_and_no_markup_of_others(tmp_path: Path) -> None:
    one = table_of("one", {HOSTILE: [1.0, 0.0, 1.0, 1.0]}, tmp_path, 0.5)
    other = table_of("two", {HOSTILE: [0.0, 0.0, 1.0, 0.0]}, tmp_path, 0.5)
    page = write_scenario_table(ScenarioTable([one, other], tmp_path / "both", {HOSTILE: HOSTILE}))
    text = page.read_text()
    shown = Page(text).text
    assert "mean success" in shown
    assert "Not evaluated" in shown
    assert 'href="../one/report.html"' in text
    assert HOSTILE not in text
    rows = list(csv.DictReader((tmp_path / "both" / "evaluation.csv").open()))
    assert {row["scenario"] for row in rows} == {"one", "two"}
    stored = json.loads((tmp_path / "both" / "evaluation.json").read_text())
    assert [each["scenario"] for each in stored["scenarios"]] == ["one", "two"]
    assert stored["models"][0]["success"]["value"] == 0.5
