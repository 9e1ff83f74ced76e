"""What a run tells of its judge: alarms, checks, and wins against earlier policies."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.judge.prompt.fenced_transcript import read_transcripts
from gavel.judge.rubric import Rubric
from gavel.scenarios.formats.row import RowError
from gavel.scenarios.scenario import find_scenario
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import JudgeChecks, LoopConfig, TrainConfig
from gavel.trainer.loop.evaluation import BASE, BEST, judge_wins
from gavel.trainer.loop.judge_alarms import WINDOW, JudgeAlarm, judge_alarms
from gavel.trainer.loop.train_loop import Checks, make_checks, train_scenario
from tests.judge.groups import broken, desk, saying
from tests.trainer.conftest import a_model, registered

STEPS = 45
Curve = Callable[[float], float]


def line(start: float, change: float = 0.0, until: float = 1.0) -> Curve:
    """A figure that changes by `change` over the part `until` of a run, and stays."""
    return lambda part: start + change * min(1.0, part / until)


def rows(*, seed: int = 0, steps: int = STEPS, **curves: Curve) -> list[dict[str, float]]:
    """Rows of a run that learns, with noise of a step of 128 rollouts; `curves` replace figures, by the part done."""
    dice = random.Random(seed)
    learning: dict[str, Curve] = {
        "judge_score": line(0.42, 0.4),
        "success": line(0.45, 0.4),
        "health/characters": line(200, 30),
        "health/length_correlation": line(0.2),
        "health/flagged": line(0.0),
        "health/unscored": line(0.01),
        "health/tie_rate": line(0.3, 0.3),
        "health/position_slope": line(0.0),
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


LONGER = {"health/characters": line(200, 600), "health/length_correlation": line(0.5)}
UNKNOWN = {"success": line(math.nan)}
FALLS = {"success": line(0.5, -0.4)}
HAND = {"reward/hand": line(-30, 20)}
SETTLING = {"reward/hand": line(0.1, 0.9, until=0.25)}
FLAT = {"success": line(0.45), "judge_score": line(0.42)}


@pytest.mark.parametrize(
    ("alarm", "curves"),
    [
        (JudgeAlarm.HACKED, {"success": line(0.45)}),
        (JudgeAlarm.PADDING, LONGER | UNKNOWN | {"turns": line(3.0)}),
        (JudgeAlarm.ADDRESSING, {"health/flagged": line(0.0, 0.2)}),
        (JudgeAlarm.UNSCORED, {"health/unscored": line(0.0, 0.5, until=0.5)}),
        (JudgeAlarm.TIED, {"health/tie_rate": line(0.3, 0.69)}),
        (JudgeAlarm.POSITION, {"health/position_slope": line(-0.08)}),
        (JudgeAlarm.CONTRADICTED, {"health/second_score": line(0.4)}),
        (JudgeAlarm.HAND_HACKED, HAND | FALLS | {"judge_score": line(math.nan)}),
        (JudgeAlarm.HAND_HACKED, SETTLING | FLAT | {"success": line(0.05)}),
    ],
)
def test_what_goes_wrong_raises_its_alarm_and_no_other(alarm, curves):
    found = raised(rows(**curves))
    assert set(found) == {alarm}
    assert 2 * WINDOW <= found[alarm] < STEPS
    assert alarm.sentence
    assert alarm.advice


INNOCENT = {
    "it learns": {},
    "it does not learn": FLAT,
    "longer attempts where success rises": LONGER,
    "longer attempts with more turns": LONGER | UNKNOWN | {"turns": line(2, 6)},
    "tied at full marks": {"health/tie_rate": line(0.95), "judge_score": line(0.96), "success": line(0.96)},
    "a hand-written reward while success is slow": HAND | FLAT,
    "a hand-written reward that takes success with it": SETTLING
    | {"success": line(0.05, 0.8, until=0.25), "judge_score": line(0.42)},
    "a hand-written reward that does not rise": {"reward/hand": line(0.5), "judge_score": line(0.42)} | FALLS,
    "a second judge that agrees": {"health/second_score": line(0.4, 0.35)},
}


@pytest.mark.parametrize("kind", INNOCENT)
def test_what_is_innocent_raises_hardly_any_alarm(kind):
    found = [raised(rows(seed=seed, **INNOCENT[kind])) for seed in range(20)]
    assert sum(map(bool, found)) <= 1


@pytest.mark.parametrize(
    ("alarm", "name", "figures", "first"),
    [
        (JudgeAlarm.GOLDEN, "golden_right", [0.9, 0.7, 0.7], 3),
        (JudgeAlarm.GOLDEN, "golden_right", [0.9, 0.7, 0.9, 0.85, 0.75], None),
        (JudgeAlarm.DRIFT, "anchor_drift", [0.02, -0.15, -0.12], 3),
        (JudgeAlarm.DRIFT, "anchor_drift", [0.2, -0.2, 0.2], None),
    ],
)
def test_a_judge_that_changed_is_told_after_two_checks_in_a_row(alarm, name, figures, first):
    history = rows(steps=5 * len(figures))
    for number, figure in enumerate(figures):
        history[5 * number][f"health/{name}"] = figure
    assert raised(history) == ({} if first is None else {alarm: 5 * (first - 1) + 1})


RIGHT, WRONG = ([{"role": "assistant", "content": said}] for said in ("Four. That is right.", "Five."))
GOLDEN = [{"name": "sum", "members": {"right": RIGHT, "wrong": WRONG}, "order": [["right"], ["wrong"]]}]


class LengthJudge:
    """Scores by the length of what an attempt shows; `sign` changes while a test goes on."""

    def __init__(self, sign: int = 1) -> None:
        self.sign = sign

    async def __call__(self, messages: list[dict[str, Any]], schema: dict[str, Any]) -> str:
        lengths = {label: len(str(shown)) for label, shown in read_transcripts(messages[1]["content"]).items()}
        order = sorted(set(lengths.values()))
        return json.dumps({label: 0.5 + 0.1 * self.sign * order.index(length) for label, length in lengths.items()})


async def test_a_golden_set_or_second_judge_that_cannot_be_used_is_told_before_and_counted_in_the_run(tmp_path: Path):
    model = a_model("never")
    with pytest.raises(RowError, match="cannot be read"):
        make_checks(Judge("constant"), None, JudgeChecks(every=1, golden=tmp_path / "none.json"), model)
    with pytest.raises(JudgeError):
        make_checks(Judge("constant"), None, JudgeChecks(second="no-such-provider/model"), model)
    checks = make_checks(judge := Judge("constant", orders=3), None, JudgeChecks(second="stand-in"), model)
    assert (checks.second.names, checks.second.orders) == (["gavel/stand-in"], 3)
    assert checks.second.budget is judge.budget
    assert not checks.golden
    groups = [await Judge(LengthJudge()).score(saying("!", "!!"))]
    checks = Checks(Judge("constant"), Judge("no-such-provider/model"), JudgeChecks(), model, [])
    assert await checks.metrics(0, groups) == {"checks/failed": 1.0}, "it costs no training"


@pytest.mark.slow
async def test_a_run_replays_golden_groups_and_anchors_every_n_steps_and_asks_the_second_judge_at_each(tmp_path):
    (tmp_path / "golden.json").write_text(json.dumps(GOLDEN))
    scenario = find_scenario("returns_desk")
    checks = JudgeChecks(every=2, golden=tmp_path / "golden.json", anchors=1, second_groups=1)
    small = {"tasks_per_step": 2, "group_size": 4, "max_tokens": 24, "evaluate_every": 9, "final_tasks": 1}
    judging = LengthJudge()

    async def run(steps: int) -> list[dict[str, Any]]:
        async with registered(tmp_path / "runs", "checked") as (model, backend):
            loop = LoopConfig(steps=steps, checks=checks, **small)
            second = Judge(LengthJudge(-1))
            await train_scenario(model, scenario, Judge(judging), loop, TrainConfig(), second=second)
            return backend.history(model, "train")

    await run(1)
    judging.sign = -1
    rows = await run(3)
    assert [row.get("health/golden_right") for row in rows] == [1, None, 0]
    assert ["health/anchor_drift" in row for row in rows] == [False, False, True]
    assert rows[2]["health/anchor_change"] > 0
    assert [row["step"] for row in rows if "health/second_tau" in row] == [1, 2, 3]
    assert rows[0]["health/second_tau"] < 0 < rows[1]["health/second_tau"]
    assert all(row["checks/calls"] >= 2 for row in rows)


JUDGE = Judge("stand-in", rubric=Rubric("- calls get_order before refund.\n- calls refund at most once."))


def tried(task: str, *, looking: bool = False) -> Trajectory:
    tools = ("get_order", "refund") if looking else ("refund",)
    return desk(*tools, ending=None, metadata={"task": {"id": task, "user": "Do it."}}, reward=0.123)


async def test_an_attempt_beats_ties_with_or_loses_against_each_rival_and_no_more_are_judged_than_asked_for():
    mine = [tried("a", looking=True), tried("b"), tried("c", looking=True), tried("d")]
    base = [tried("a"), tried("b", looking=True), tried("c", looking=True)]
    best = [tried("a", looking=True), tried("e")]
    await judge_wins(JUDGE, mine, {BASE: base, BEST: best}, 9)
    assert [each.metrics.get("wins/base") for each in mine] == [1.0, 0.0, 0.5, None]
    assert [each.metrics.get("wins/best") for each in mine] == [0.5, None, None, None]
    assert all(each.reward == 0.123 and each.judgement is None for each in (*mine, *base))
    assert not any(each.metrics for each in (*base, *best))
    for judge, found in ((JUDGE, [None, 0.0, 0.0, None, None, None]), (Judge(broken), [None] * 6)):
        mine = [tried("new"), *(tried(f"{n}") for n in range(5))]
        await judge_wins(judge, mine, {BASE: [tried(f"{n}", looking=True) for n in range(5)]}, 2)
        assert [each.metrics.get("wins/base") for each in mine] == found
