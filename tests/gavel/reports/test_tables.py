# pyright: reportArgumentType=false, reportUnknownMemberType=false
"""Tables of rewards, models and judges: their statistics, what is said of them, and their pages, JSON and CSV."""

import csv
import json
import math
import re
from itertools import combinations
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gavel.reports.comparison import compare_cells, outcome, read_cell, statement, write_comparison
from gavel.reports.judge_trust import groups_needed, read_report, render_report
from gavel.reports.model_table import (
    ModelTable,
    ScenarioTable,
    model_row,
    ranking,
    write_model_table,
    write_scenario_table,
)
from gavel.reports.statistics import (
    TaskMean,
    mean_of_scores,
    mean_over_seeds,
    paired_difference,
    pass_at_k,
    share,
)
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import Judgement
from gavel.scenarios.trajectory import Trajectory
from tests.gavel.reports.made import HOSTILE, judged, made_run, scored_member, shown
from tests.judge.groups import choice

DIFFERENCES = st.lists(st.floats(-1, 1), min_size=2, max_size=10).filter(lambda values: np.std(values) > 1e-6)


@given(DIFFERENCES, st.floats(0.01, 0.5))
def test_the_interval_and_the_two_one_sided_tests_are_scipy_s(values: list[float], margin: float) -> None:
    slow = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    mean, paired = mean_over_seeds(values), paired_difference(values, margin)
    assert mean.value is not None
    assert mean.half_width is not None
    assert (mean.value - mean.half_width, mean.value + mean.half_width) == pytest.approx(slow, abs=1e-9)
    assert (paired.low, paired.high) == pytest.approx(slow, abs=1e-9)
    lower = stats.ttest_1samp(values, -margin, alternative="greater")[1]
    upper = stats.ttest_1samp(values, margin, alternative="less")[1]
    assert paired.equivalent == paired.verdict.startswith("equivalent")
    if paired.equivalent:
        assert max(lower, upper) <= 0.025 + 1e-9


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([-0.01, 0.0, -0.02, 0.01, -0.01], "equivalent"),
        ([0.2, 0.22, 0.19, 0.21], "different, by more than 0.03"),
        ([0.02, 0.05, 0.03, 0.04], "different"),
        ([0.2, -0.1, 0.1], "inconclusive: too few seeds"),
        ([0.0], "inconclusive: one seed"),
        ([0.0, 0.0], "inconclusive: the seeds' differences"),
    ],
)
def test_verdicts(differences: list[float], verdict: str) -> None:
    assert paired_difference(differences, 0.03).verdict.startswith(verdict)


@pytest.mark.parametrize(("samples", "passed"), [(5, 0), (5, 2), (6, 6), (4, 1)])
def test_pass_at_k_is_the_share_of_draws_in_which_one_passes(samples: int, passed: int) -> None:
    outcomes = [number < passed for number in range(samples)]
    for k in range(1, samples + 1):
        draws = list(combinations(outcomes, k))
        assert pass_at_k(samples, passed, k) == pytest.approx(sum(map(any, draws)) / len(draws))
    with pytest.raises(ValueError, match="samples"):
        pass_at_k(samples, passed, samples + 1)


def test_an_interval_is_never_without_width_and_stays_within_0_and_1() -> None:
    for values in ([1.0] * 8, [0.0] * 8, [0.5] * 8, [0.0, 1.0] * 4):
        found = share(values, 8)
        low, value, high = found.low or 0.0, found.value or 0.0, found.high or 0.0
        assert 0 <= low <= value <= high <= 1
        assert low < high
    assert share([1.0], 1).low is None
    scores = mean_of_scores([1.0, 0.9, 0.8, 0.9])
    assert scores.low is not None
    assert (scores.low > 0, scores.high, mean_of_scores([0.4]).low) == (True, 1.0, None)
    assert share([], 0).value is None
    wilson = share([1.0] * 40 + [0.0] * 10, 50)
    assert (wilson.low, wilson.high) == (pytest.approx(0.670, abs=0.003), pytest.approx(0.888, abs=0.003))


FINALS = {"judge": (0.90, 0.88, 0.91), "hand": (0.91, 0.88, 0.90)}


def test_a_comparison_has_paired_differences_gaps_agreement_and_measures_and_so_have_its_files(tmp_path: Path) -> None:
    cells = [
        read_cell(arm, seed, made_run(tmp_path / f"{arm}-{seed}", final=final, judged=arm == "judge"), None)
        for arm, finals in FINALS.items()
        for seed, final in enumerate(finals)
    ]
    comparison = compare_cells(cells, "desk", tmp_path / "report", margin=0.03, threshold=0.89)
    difference = comparison.paired["judge - hand"]
    assert (difference.seeds, difference.mean) == (3, pytest.approx(0.0))
    assert "(95 %: -0.02 to +0.02, 3 seeds)" in statement("judge - hand", difference)
    judge, hand = comparison.arms
    assert judge.figures["hacking_gap"].value == pytest.approx(2 / 3), "what the score rose more than success"
    assert hand.figures["hacking_gap"].value is None
    assert (judge.cost_text, hand.cost_text, judge.steps_text) == ("2.25", "–", "3 (2 of 3 seeds)")
    assert (comparison.before["words"].value, comparison.before["words"].seeds) == (20.0, 6)
    assert judge.measures["words"].value == pytest.approx(10 * fmean(FINALS["judge"]))
    assert (judge.alarms_text, hand.alarms_text) == ("score gap: 3 of 3 runs, first at step 2", "–")
    assert judge.runs[0].tau_judge_hand == {step: pytest.approx(-1) for step in (1, 2, 3)}
    assert all(tau > 0 for tau in judge.runs[0].tau_judge_truth.values())
    page = write_comparison(comparison)
    text = shown(page.read_text())
    assert "before training" in text
    assert "score gap: 3 of 3 runs, first at step 2." in text
    with (page.parent / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    last = [float(row["heldout_success"]) for row in rows if row["reward"] == "hand" and row["step"] == "3"]
    assert last == [*FINALS["hand"]]
    figures = json.loads((page.parent / "comparison.json").read_text())
    assert figures["paired"]["judge - hand"]["equivalent"] is True


def test_a_reward_on_which_nothing_was_trained_is_told_before_any_difference(tmp_path: Path) -> None:
    idle = made_run(tmp_path / "constant", final=0.5)
    metrics = (idle / "metrics.jsonl").read_text()
    (idle / "metrics.jsonl").write_text(metrics.replace('"train", ', '"train", "groups_trained": 0, '))
    trained = read_cell("judge", 0, made_run(tmp_path / "judge"), None)
    untrained = read_cell("constant", 0, idle, None)
    said = outcome(compare_cells([trained, untrained], "desk", tmp_path, margin=0.03, threshold=0.8))
    assert "constant" in said[0]
    assert "nothing was trained" in said[0]
    assert said[1].startswith("judge - constant: +0.40")
    alone = outcome(compare_cells([untrained], "desk", tmp_path, margin=0.03, threshold=0.8))
    assert "says nothing about the rewards" in alone[-1]


def attempt(model: str, score: float | None) -> Trajectory:
    judgement = Judgement(score=score, reason=None if score is not None else "away")
    return Trajectory(metadata={"model": model}, judgement=judgement)


def test_wins_are_over_pairs_that_are_scored_and_a_tie_is_half() -> None:
    table = ((0.9, 0.1, 0.5), (0.5, 0.5, None), (None, None, 0.2))
    groups = [TrajectoryGroup(map(attempt, "abc", scores)) for scores in table]
    row = model_row("a", {}, groups)
    assert (row.wins.value, row.wins.tasks) == (pytest.approx((1.0 + 0.5) / 2), 2)
    assert model_row("b", {}, groups).wins.value == pytest.approx((0.0 + 0.5) / 2)
    assert row.score.value == pytest.approx(0.7)
    assert row.unscored == {"away": 1}


def test_a_model_is_the_best_only_where_intervals_part() -> None:
    clear = {"a": TaskMean(0.9, 0.85, 0.95, 99), "b": TaskMean(0.5, 0.4, 0.6, 99), "c": TaskMean(None, None, None, 0)}
    assert ranking(clear, "Success")[0].startswith("a did best. Success: a 0.90")
    close = clear | {"b": TaskMean(0.88, 0.8, 0.92, 99)}
    assert "cannot be told apart" in ranking(close, "Success")[0]
    assert ranking({"c": clear["c"]}, "Success") == []


def table_of(scenario: str, successes: dict[str, list[float] | None], folder: Path, cost: float | None) -> ModelTable:
    def episodes(values: list[float] | None) -> dict[tuple[str, int], TrajectoryGroup]:
        metrics = [{} if values is None else {"success": value} for value in values or [0.0] * 4]
        about = {"seconds": 2.0} | ({} if cost is None else {"cost_usd": cost})
        return {(str(n), 0): TrajectoryGroup([Trajectory(metrics=m)], metrics=about) for n, m in enumerate(metrics)}

    rows = [model_row(name, episodes(values), []) for name, values in successes.items()]
    return ModelTable(scenario, rows, 4, 1, [], "", folder / scenario)


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


def test_pages_and_files_hold_all_figures_and_no_markup_of_others(tmp_path: Path) -> None:
    names = [f"{HOSTILE}1", "two"]
    members = [scored_member(score, hand=0.0) for score in (0.9, 0.1)]
    for name, each in zip(names, members, strict=True):
        each.metadata["model"] = name
    groups = [TrajectoryGroup(members, metadata={"task": HOSTILE})] * 3
    episodes = {("0", n): TrajectoryGroup([scored_member(0.9, hand=0.0)]) for n in range(2)}
    rows = [model_row(name, episodes, groups, failed=1) for name in names]
    one = ModelTable("one", rows, 2, 2, [HOSTILE], "0.20 USD", tmp_path / "one")
    other = table_of("two", {names[0]: [0.0, 0.0, 1.0, 0.0]}, tmp_path, 0.5)
    first = shown(write_model_table(one).read_text())
    page = write_scenario_table(ScenarioTable([one, other], tmp_path / "both", {HOSTILE: HOSTILE}))
    for part in (HOSTILE, "pass@2"):
        assert part in first
    for part in ("mean success", "Not evaluated", HOSTILE):
        assert part in shown(page.read_text())
    assert 'href="../one/report.html"' in page.read_text()
    stored = json.loads((tmp_path / "both" / "evaluation.json").read_text())
    assert [each["scenario"] for each in stored["scenarios"]] == ["one", "two"]
    assert stored["models"][0]["success"]["value"] == pytest.approx((1.0 + 0.25) / 2)


def made(pairs: list[tuple[float, float]]) -> TrajectoryGroup:
    """A group of (score, truth)."""
    return TrajectoryGroup(
        Trajectory(
            messages_and_choices=[choice(f"{HOSTILE} {score}")],
            judgement=Judgement(score=score, explanation=HOSTILE),
            metrics={"truth": truth},
        )
        for score, truth in pairs
    )


RIGHT, WRONG = (made([(low, 0.0), (0.5, 0.5), (high, 1.0)]) for low, high in ((0.1, 0.9), (0.9, 0.1)))


def said(groups: list[TrajectoryGroup], reference: str | None = "truth") -> str:
    return read_report(groups, reference, "x").verdict


async def test_a_judge_is_called_good_bad_or_biased_only_where_the_interval_says_so() -> None:
    assert said([RIGHT] * 12).startswith("This judge ranks attempts as truth does (tau 1.00")
    assert "do not train on it" in said([WRONG] * 12)
    assert "shown early" in said(await judged("one", groups=30), "success")
    mixed = said([RIGHT] * 9 + [WRONG] * 3)
    assert "not settled" in mixed
    assert "groups would tell" in mixed
    assert "cannot be said without a reference" in said([RIGHT], None)
    report = read_report([WRONG] * 3, "truth", "x")
    figures = [figure for each in report.sections.values() for figure in each]
    assert "0.00 to 0.00" not in {figure.interval for figure in figures}
    assert {figure.interval for figure in figures} <= {"–", "needs 10 groups"}
    assert "Too few groups for a verdict: 3 groups" in report.verdict
    assert f"about {groups_needed([])} give" in report.verdict
    assert "judge at least 7 more" in " ".join(report.notes)


def words(groups: list[TrajectoryGroup], reference: str | None = None) -> str:
    """The text of the page, which is whole and loads nothing."""
    html = render_report(read_report(groups, reference, "judged.jsonl"))
    assert not re.search(r"url\(|@import|https?://|href=", html)
    assert "nan" not in html.lower().replace("nano", "")
    return shown(html)


async def test_the_page_has_the_sections_and_charts_that_its_groups_can_fill() -> None:
    page = words(await judged("one", "two"))
    for part in ("192 votes", "Agreement between 4 calls", "ICC(2,1)", "Agreement between judges"):
        assert part in page
    one = words(await judged("one"), "success")
    assert "higher value" in one
    assert "Agreement between judges" not in one
    assert "Score and" not in words(await judged("one", metric="depth"))
    assert words([TrajectoryGroup([Trajectory(judgement=Judgement(score=score)) for score in (0.2, 0.8)])])
