"""What a run tells of its judge: alarms, checks, and wins against earlier policies."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat.chat_completion import Choice

from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.judge.prompt.fenced_transcript import read_transcripts
from gavel.judge.rubric import Rubric
from gavel.llm.cassette import Cassette
from gavel.llm.types import Message
from gavel.scenarios.formats.row import RowError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.scenario import find_scenario
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.config import JudgeChecks, LoopConfig, TrainConfig
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.loop.evaluation import BASE, BEST, best_step, judge_wins
from gavel.trainer.loop.judge_alarms import WINDOW, JudgeAlarm, judge_alarms
from gavel.trainer.loop.train_loop import Checks, anchor_drift, checks_of, second_opinion, train_scenario
from gavel.trainer.model import TrainableModel

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


@pytest.mark.parametrize("curves", [{}, {"judge_score": lambda part: 0.42, "success": lambda part: 0.45}])
def test_noise_raises_hardly_any_alarm_in_a_run_that_learns_or_does_not(curves):
    assert sum(bool(raised(rows(seed=seed, **curves))) for seed in range(40)) <= 1


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


GOLDEN = [
    {
        "name": "sum",
        "members": {
            "right": [{"role": "assistant", "content": "Four. That is right."}],
            "wrong": [{"role": "assistant", "content": "Five."}],
        },
        "order": [["right"], ["wrong"]],
    }
]


class LengthJudge:
    """Scores by the length of what an attempt shows; `sign` and `shift` change while a test goes on."""

    def __init__(self, sign: int = 1, shift: float = 0.0) -> None:
        self.sign, self.shift, self.calls = sign, shift, 0

    async def __call__(self, messages: list[dict[str, Any]], schema: dict[str, Any]) -> str:
        self.calls += 1
        lengths = {label: len(str(shown)) for label, shown in read_transcripts(messages[1]["content"]).items()}
        order = sorted(set(lengths.values()))
        scores = {label: 0.5 + 0.1 * self.sign * order.index(length) for label, length in lengths.items()}
        return json.dumps({label: min(1.0, score + self.shift) for label, score in scores.items()})


def a_group(number: int) -> TrajectoryGroup:
    return TrajectoryGroup(
        Trajectory(messages_and_choices=[{"role": "assistant", "content": f"{number}{'!' * at}"}]) for at in range(1, 5)
    )


async def test_a_second_judge_scores_a_sample_and_its_agreement_is_told() -> None:
    groups = [await Judge(LengthJudge()).score(a_group(number)) for number in range(3)]
    for sign, tau in ((1, 1.0), (-1, -1.0)):
        second, asked = LengthJudge(sign), list[TrajectoryGroup]()
        found = await second_opinion(Judge(second, orders=2), groups, 2, asked)
        assert found["health/second_tau"] == pytest.approx(tau)
        assert found["health/second_sampled"] == pytest.approx(0.65)
        assert found["health/second_score"] == pytest.approx(0.5 + sign * 0.15)
        assert (len(asked), second.calls) == (2, 4)
    assert groups[0].trajectories[0].judgement is not None  # what is trained on keeps its own
    assert groups[0].trajectories[0].reward == pytest.approx(0.5)


async def test_anchors_show_how_far_the_judge_moved() -> None:
    model = LengthJudge()
    judge = Judge(model)
    groups = [await judge.score(a_group(number)) for number in range(2)]
    assert await anchor_drift(judge, groups, 2, []) == {"health/anchor_drift": 0, "health/anchor_change": 0}
    model.shift = 0.2
    found = await anchor_drift(judge, groups, 2, [])
    assert found == {
        "health/anchor_drift": pytest.approx(0.2),
        "health/anchor_change": pytest.approx(0.2),
    }
    model.sign, model.shift = -1, 0.3  # the order turns, and the mean stays
    found = await anchor_drift(judge, groups, 2, [])
    assert abs(found["health/anchor_drift"]) < 0.01
    assert found["health/anchor_change"] == pytest.approx(0.2)


async def test_a_judge_without_its_cassette_asks_again_and_counts_in_the_same_budget(tmp_path: Path) -> None:
    judge = Judge("constant", cassette=Cassette(tmp_path / "replies.sqlite"), orders=1)
    for of, calls in ((judge, 1), (judge, 0), (judge.without_cassette(), 1)):
        whole = (await of.score(a_group(0))).judgement
        assert whole is not None
        assert whole.calls == calls
    assert judge.budget.calls == 2


def test_a_golden_set_or_second_judge_that_cannot_be_used_is_told_before_the_run(tmp_path: Path) -> None:
    model = TrainableModel(name="never", project="tests", base_model=EMBEDDED_POLICY)
    with pytest.raises(RowError, match="cannot be read"):
        checks_of(Judge("constant"), None, JudgeChecks(every=1, golden=tmp_path / "none.json"), model)
    with pytest.raises(JudgeError):
        checks_of(Judge("constant"), None, JudgeChecks(second="no-such-provider/model"), model)
    checks = checks_of(judge := Judge("constant", orders=3), None, JudgeChecks(second="stand-in"), model)
    assert checks.second is not None
    assert (checks.second.names, checks.second.orders) == (["gavel/stand-in"], 3)
    assert checks.second.budget is judge.budget
    assert not checks.golden


async def test_a_check_that_fails_is_counted_and_costs_no_training() -> None:
    groups = [await Judge(LengthJudge()).score(a_group(0))]
    model = TrainableModel(name="never", project="tests", base_model=EMBEDDED_POLICY)
    checks = Checks(Judge("constant"), Judge("no-such-provider/model"), JudgeChecks(), model, [])
    found = await checks.metrics(0, groups)
    assert found == {"checks/failed": 1.0}


@pytest.mark.slow
async def test_a_run_replays_golden_groups_and_anchors_every_n_steps_and_asks_the_second_judge_at_each(
    tmp_path: Path,
) -> None:
    (tmp_path / "golden.json").write_text(json.dumps(GOLDEN))
    scenario = find_scenario("returns_desk")
    checks = JudgeChecks(every=2, golden=tmp_path / "golden.json", anchors=1, second_groups=1)
    loop = LoopConfig(
        steps=3, tasks_per_step=2, group_size=4, max_tokens=24, evaluate_every=9, final_tasks=1, checks=checks
    )
    model = TrainableModel(name="checked", project="tests", base_model=EMBEDDED_POLICY)
    judging = LengthJudge()

    async def run(steps: int) -> list[dict[str, Any]]:
        async with LocalBackend(tmp_path / "runs") as backend:
            await model.register(backend)
            config = loop.model_copy(update={"steps": steps})
            second = Judge(LengthJudge(-1))
            await train_scenario(model, scenario, Judge(judging), config, TrainConfig(), second=second)
            return backend.history(model, "train")

    def having(rows: list[dict[str, Any]], has: Callable[[dict[str, Any]], bool]) -> list[int]:
        return [row["step"] for row in rows if has(row)]

    await run(1)
    judging.sign = -1
    rows = await run(3)
    assert having(rows, lambda row: "health/golden_right" in row) == [1, 3]
    assert [row["health/golden_right"] for row in rows if "health/golden_right" in row] == [1, 0]
    assert having(rows, lambda row: "health/anchor_drift" in row) == [3]
    assert rows[2]["health/anchor_change"] > 0
    assert having(rows, lambda row: "health/second_tau" in row) == [1, 2, 3]
    assert rows[0]["health/second_tau"] < 0 < rows[1]["health/second_tau"]
    assert all(row["checks/calls"] >= 2 for row in rows)


def attempt(task: str, *calls: str, **fields: Any) -> Trajectory:
    """One that calls these tools; the rubric below wants `look` before `act`."""
    turns: list[Any] = []
    for at, name in enumerate(calls):
        call = {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        message = {"role": "assistant", "tool_calls": [call]}
        turns += [
            Choice.model_validate({"index": 0, "finish_reason": "tool_calls", "message": message}),
            {"role": "tool", "tool_call_id": f"c{at}", "content": "done"},
        ]
    return Trajectory(
        messages_and_choices=[{"role": "user", "content": "Do it."}, *turns],
        metadata={"task": {"id": task, "user": "Do it."}},
        reward=0.123,
        **fields,
    )


JUDGE = Judge("stand-in", rubric=Rubric("- calls look before act.\n- calls act at most once."))


async def test_an_attempt_beats_ties_with_or_loses_against_each_rival():
    mine = [attempt("a", "look", "act"), attempt("b", "act"), attempt("c", "look", "act"), attempt("d", "act")]
    base = [attempt("a", "act"), attempt("b", "look", "act"), attempt("c", "look", "act")]
    best = [attempt("a", "look", "act"), attempt("e", "act")]
    await judge_wins(JUDGE, mine, {BASE: base, BEST: best}, 9)
    assert [each.metrics.get("wins/base") for each in mine] == [1.0, 0.0, 0.5, None]
    assert [each.metrics.get("wins/best") for each in mine] == [0.5, None, None, None]
    assert all(each.reward == 0.123 and each.judgement is None for each in (*mine, *base))
    assert not any(each.metrics for each in (*base, *best))


async def test_no_more_are_judged_than_asked_for_and_of_tasks_that_both_have_tried():
    mine = [attempt("new", "act"), *(attempt(f"{n}", "act") for n in range(5))]
    await judge_wins(JUDGE, mine, {BASE: [attempt(f"{n}", "look", "act") for n in range(5)]}, 2)
    assert [each.metrics.get("wins/base") for each in mine] == [None, 0.0, 0.0, None, None, None]


async def test_agents_of_an_episode_are_compared_with_themselves():
    mine = [attempt("a", "look", "act", agent="x"), attempt("a", "act", agent="o")]
    await judge_wins(JUDGE, mine, {BASE: [attempt("a", "act", agent="x"), attempt("a", "look", "act", agent="o")]}, 9)
    assert [each.metrics["wins/base"] for each in mine] == [1.0, 0.0]


async def test_what_the_judge_leaves_unscored_has_no_metric_and_a_judge_that_fails_raises():
    async def silent(messages: list[Message], schema: dict[str, Any]) -> str:
        return "I would rather not."

    mine = [attempt("a", "look")]
    await judge_wins(Judge(silent), mine, {BASE: [attempt("a", "act")]}, 9)
    assert mine[0].metrics == {}

    async def broken(messages: list[Message], schema: dict[str, Any]) -> str:
        raise JudgeError("no money left", "Pay.")

    judge = Judge(broken)
    try:
        await judge_wins(judge, mine, {BASE: [attempt("a", "act")]}, 9)
    except JudgeError as error:
        assert "no money left" in str(error)  # noqa: PT017 - or it is unscored
    assert mine[0].metrics == {}


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ([], None),
        ([{"step": 0}], None),
        (
            [
                {"step": 0},
                {"step": 5, "wins/base": 0.6},
                {"step": 10, "wins/base": 0.7},
                {"step": 15, "wins/base": 0.7},
            ],
            15,
        ),
        ([{"step": 5, "wins/base": None}, {"step": 10, "wins/base": 0.1}], 10),
    ],
)
def test_the_best_step_is_that_which_beat_the_base_most_often(rows, best):
    assert best_step(rows) == best
