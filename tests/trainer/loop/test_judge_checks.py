"""Checks of a judge while it is trained on: what they ask, what they find, and that none of them stops a run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.judge.prompt.fenced_transcript import read_transcripts
from gavel.llm.cassette import Cassette
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.scenario import find_scenario
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.config import JudgeChecks, LoopConfig, TrainConfig
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.loop.train_loop import anchor_drift, checks_of, second_opinion, train_scenario
from gavel.trainer.model import TrainableModel

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


async def test_groups_that_were_not_scored_are_no_sample() -> None:
    identical = TrajectoryGroup([a_group(0).trajectories[0]] * 2)
    assert await second_opinion(Judge(LengthJudge()), [await Judge("constant").score(identical)], 2, []) == {}


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
    with pytest.raises(JudgeError, match="cannot be read"):
        checks_of(Judge("constant"), None, JudgeChecks(every=1, golden=tmp_path / "none.json"), model)
    with pytest.raises(JudgeError):
        checks_of(Judge("constant"), None, JudgeChecks(second="no-such-provider/model"), model)
    checks = checks_of(judge := Judge("constant", orders=3), None, JudgeChecks(second="stand-in"), model)
    assert checks.second is not None
    assert (checks.second.names, checks.second.orders) == (["gavel/stand-in"], 3)
    assert checks.second.budget is judge.budget
    assert not checks.golden


async def test_a_check_that_fails_is_counted_and_costs_no_training(caplog: pytest.LogCaptureFixture) -> None:
    groups = [await Judge(LengthJudge()).score(a_group(0))]
    second = Judge("stand-in", rubric="be good", alone="scored")  # has no rule to check
    model = TrainableModel(name="never", project="tests", base_model=EMBEDDED_POLICY)
    checks = checks_of(Judge("constant"), second, JudgeChecks(), model)
    found = await checks.metrics(0, groups)
    assert "health/second_score" not in found
    assert found == {"checks/failed": 1.0} or found["checks/calls"] > 0


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
