"""Alarms from rows of figures: what raises which, and that noise raises hardly any."""

import math
import random
from collections.abc import Callable

import pytest

from gavel.trainer.loop.judge_alarms import WINDOW, JudgeAlarm, judge_alarms

STEPS = 45
LONGER: dict[str, Callable[[float], float]] = {
    "health/characters": lambda part: 200 + 600 * part,
    "health/length_correlation": lambda part: 0.5,
}


def rows(*, seed: int = 0, steps: int = STEPS, **curves: Callable[[float], float]) -> list[dict[str, float]]:
    """Rows of a run that learns, with noise of a step of 128 rollouts; `curves` replace figures, by the part done."""
    dice = random.Random(seed)
    learning: dict[str, Callable[[float], float]] = {
        "judge_score": lambda part: 0.42 + 0.4 * part,
        "success": lambda part: 0.45 + 0.4 * part,
        "health/characters": lambda part: 200 + 30 * part,
        "health/length_correlation": lambda part: 0.2,
        "health/flagged": lambda part: 0.0,
        "health/unscored": lambda part: 0.01,
        "health/tie_rate": lambda part: 0.3 + 0.3 * part,
        "health/position_slope": lambda part: 0.0,
    }
    noise = {"judge_score": 0.03, "success": 0.045, "health/characters": 8.0, "health/position_slope": 0.01}
    return [
        {
            name: curve(step / steps) + dice.gauss(0, noise.get(name, 0.005))
            for name, curve in {**learning, **curves}.items()
        }
        for step in range(steps)
    ]


def raised(history: list[dict[str, float]]) -> dict[JudgeAlarm, int]:
    """The step at which each alarm is first raised."""
    found: dict[JudgeAlarm, int] = {}
    for step in range(1, len(history) + 1):
        for alarm in judge_alarms(history[:step]):
            found.setdefault(alarm, step)
    return found


@pytest.mark.parametrize(
    ("alarm", "curves"),
    [
        (JudgeAlarm.HACKED, {"success": lambda part: 0.45 - 0.2 * part}),
        (JudgeAlarm.HACKED, {"success": lambda part: 0.45}),
        (JudgeAlarm.PADDING, LONGER | {"success": lambda part: math.nan}),
        (JudgeAlarm.PADDING, LONGER | {"success": lambda part: math.nan, "turns": lambda part: 3.0}),
        (JudgeAlarm.ADDRESSING, {"health/flagged": lambda part: 0.2 * part}),
        (JudgeAlarm.UNSCORED, {"health/unscored": lambda part: 0.5 if part > 0.5 else 0.0}),
        (JudgeAlarm.TIED, {"health/tie_rate": lambda part: 0.3 + 0.69 * part}),
        (JudgeAlarm.POSITION, {"health/position_slope": lambda part: -0.08}),
    ],
)
def test_what_goes_wrong_raises_its_alarm_and_no_other(alarm, curves):
    found = raised(rows(**curves))
    assert set(found) == {alarm}
    assert 2 * WINDOW <= found[alarm] < STEPS
    assert alarm.sentence
    assert alarm.advice


@pytest.mark.parametrize(
    "innocent", [{"success": lambda part: 0.45 + 0.4 * part}, {"turns": lambda part: 2 + 6 * part}]
)
def test_longer_attempts_are_no_padding_where_success_rises_or_turns_are_added(innocent):
    unknown = {"success": lambda part: math.nan}
    assert sum(bool(raised(rows(seed=seed, **LONGER | unknown | innocent))) for seed in range(20)) <= 1


FALLS = {"success": lambda part: 0.5 - 0.4 * part}


def test_a_hand_written_reward_that_rises_is_hacked_where_success_falls_and_not_where_it_is_only_slow():
    """With and without a judge, and on any scale."""
    counted = {"reward/hand": lambda part: -30 + 20 * part}
    alone = [
        {name: value for name, value in row.items() if name in ("reward/hand", "success")}
        for row in rows(**counted, **FALLS)
    ]
    assert set(raised(alone)) == {JudgeAlarm.HAND_HACKED}
    assert JudgeAlarm.HAND_HACKED in raised(rows(**counted, **FALLS))
    slow = {"success": lambda part: 0.45, "judge_score": lambda part: 0.42}
    assert sum(bool(raised(rows(seed=seed, **counted, **slow))) for seed in range(40)) <= 1
    falling = {"reward/hand": lambda part: 0.5, **FALLS, "judge_score": lambda part: 0.42}
    assert sum(JudgeAlarm.HAND_HACKED in raised(rows(seed=seed, **falling)) for seed in range(20)) <= 1


def test_a_hand_written_reward_that_rises_no_more_has_taken_success_with_it_or_is_hacked():
    def settling(part: float) -> float:
        return 0.1 + 0.9 * min(1.0, 4 * part)

    flat = {"success": lambda part: 0.05, "judge_score": lambda part: 0.42}
    hacked = [raised(rows(seed=seed, **{"reward/hand": settling}, **flat)) for seed in range(20)]
    assert all(10 <= found.get(JudgeAlarm.HAND_HACKED, STEPS) <= 30 for found in hacked)
    learned = {"success": lambda part: 0.05 + 0.8 * min(1.0, 4 * part), "judge_score": lambda part: 0.42}
    found = [raised(rows(seed=seed, **{"reward/hand": settling}, **learned)) for seed in range(40)]
    assert sum(JudgeAlarm.HAND_HACKED in each for each in found) <= 1


def test_scores_that_rise_without_the_second_judge_s_are_contradicted():
    second = {"health/second_score": lambda part: 0.4}
    assert JudgeAlarm.CONTRADICTED in raised(rows(**second))
    agreeing = {"health/second_score": lambda part: 0.4 + 0.35 * part}
    assert raised(rows(**agreeing)) == {}
    seen = [
        {name: value for name, value in row.items() if name != "health/second_score" or step % 2}
        for step, row in enumerate(rows(**second))
    ]
    assert JudgeAlarm.CONTRADICTED in raised(seen)  # a step that it did not see is no step of its own
    assert raised([row for row in seen if "health/second_score" not in row]) == {}


@pytest.mark.parametrize(
    ("alarm", "name", "figures", "first"),
    [
        (JudgeAlarm.GOLDEN, "golden_right", [0.9, 0.7, 0.7], 3),
        (JudgeAlarm.GOLDEN, "golden_right", [0.9, 0.7, 0.9, 0.85, 0.75], None),
        (JudgeAlarm.GOLDEN, "golden_right", [0.5, 0.5, 0.9], None),
        (JudgeAlarm.DRIFT, "anchor_drift", [0.02, -0.15, -0.12], 3),
        (JudgeAlarm.DRIFT, "anchor_drift", [0.2, -0.2, 0.2], None),
        (JudgeAlarm.DRIFT, "anchor_drift", [0.3], None),
    ],
)
def test_a_judge_that_changed_is_told_after_two_checks_in_a_row(alarm, name, figures, first):
    history = rows(steps=5 * len(figures))
    for number, figure in enumerate(figures):
        history[5 * number][f"health/{name}"] = figure
    assert raised(history) == ({} if first is None else {alarm: 5 * (first - 1) + 1})


def test_members_that_are_tied_at_full_marks_are_tied_rightly():
    tied = {"health/tie_rate": lambda part: 0.95}
    assert set(raised(rows(**tied))) == {JudgeAlarm.TIED}
    learned = {"judge_score": lambda part: 0.96, "success": lambda part: 0.96}
    assert raised(rows(**tied, **learned)) == {}


def test_noise_raises_hardly_any_alarm_in_a_run_that_learns():
    assert sum(bool(raised(rows(seed=seed))) for seed in range(40)) <= 1


def test_a_run_that_learns_nothing_raises_none():
    flat = {"judge_score": lambda part: 0.42, "success": lambda part: 0.45}
    assert sum(bool(raised(rows(seed=seed, **flat))) for seed in range(40)) <= 1


def test_a_hacked_run_is_found_before_success_has_fallen_by_three_standard_errors():
    """Of 512 held-out tasks: .066 at .45, which are reached after 15 steps here."""
    hacked = {"judge_score": lambda part: 0.4 + 0.55 * min(1.0, 2 * part), "success": lambda part: 0.45 - 0.2 * part}
    steps = [raised(rows(seed=seed, **hacked)).get(JudgeAlarm.HACKED, STEPS) for seed in range(20)]
    assert sum(0.2 * step / STEPS < 3 * (0.45 * 0.55 / 512) ** 0.5 for step in steps) >= 19


def test_figures_that_are_missing_or_null_raise_nothing():
    history = rows(success=lambda part: 0.45)
    for row in history:
        row["success"] = None  # type: ignore[assignment]
    assert raised(history) == {}
    assert judge_alarms([{} for _ in range(STEPS)]) == []
    assert judge_alarms([]) == []


def test_scores_that_do_not_vary_at_all_are_compared_too():
    history = [{"judge_score": 0.2 if step < 10 else 0.9, "success": 0.5} for step in range(20)]
    assert JudgeAlarm.HACKED in raised(history)
