"""The reward is a weighted sum of named rewards, and nothing that failed becomes a number."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.base.errors import GavelError
from gavel.base.fields import FieldError
from gavel.judge.judge import Judge
from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.scenario import Scenario, ScenarioError, find_scenario
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.config import LoopConfig, RewardName, TrainConfig
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.loop.group_maker import check_rewards, programmed_parts, set_rewards, weighted_reward
from gavel.trainer.loop.train_loop import LoopError, train_scenario
from gavel.trainer.model import TrainableModel

DESK = find_scenario("returns_desk")
BARE = Scenario(name="bare", system="Answer.", tasks=[Task(user="a question")], held_out=0)


def a_scenario(**functions: Any) -> Scenario:
    return Scenario(name="desk", system="Answer.", tasks=[Task(user="a question")], held_out=0, **functions)


def test_the_default_is_the_judges_score_unchanged() -> None:
    weights = LoopConfig().reward
    assert weights == {"judge": 1.0}
    assert weighted_reward({"judge": 0.1 + 0.2}, weights) == 0.1 + 0.2
    assert weighted_reward({"judge": None}, weights) is None


@given(
    judge=st.none() | st.floats(0, 1),
    hand=st.none() | st.floats(-5, 5),
    weights=st.tuples(st.floats(-2, 2), st.floats(-2, 2)),
)
def test_a_sum_is_none_exactly_when_a_weighted_part_is(judge, hand, weights) -> None:
    total = weighted_reward({"judge": judge, "hand": hand}, {"judge": weights[0], "hand": weights[1]})
    if (weights[0] and judge is None) or (weights[1] and hand is None):
        assert total is None
    else:
        assert total == pytest.approx(weights[0] * (judge or 0.0) + weights[1] * (hand or 0.0))


@pytest.mark.parametrize("weights", [{}, {"judge": 0.0}, {"judge": math.nan}, {"hand": math.inf}, {"human": 1.0}])
def test_weights_that_make_no_reward_are_refused(weights: dict[str, float]) -> None:
    with pytest.raises(FieldError, match="reward"):
        LoopConfig(reward=weights)  # type: ignore[arg-type]


def test_a_reward_without_weight_is_not_used() -> None:
    assert LoopConfig(reward={"judge": 1.0, "hand": 0.0}).reward == {"judge": 1.0}


@pytest.mark.parametrize(("name", "argument"), [("hand", "hand_reward"), ("success", "success")])
def test_a_function_that_the_scenario_lacks_is_named_with_the_remedy(name: str, argument: str) -> None:
    with pytest.raises(GavelError, match=argument) as error:
        check_rewards(BARE, {"judge": 1.0, name: 0.5})  # type: ignore[dict-item]
    assert f"Pass {argument}=" in error.value.remedy
    check_rewards(BARE, {"judge": 1.0, "constant": 0.5})
    check_rewards(DESK, {"hand": 1.0, "success": 1.0})


def test_each_part_is_kept_as_a_metric_and_a_failed_rollout_has_none() -> None:
    scenario = a_scenario(hand_reward=lambda t: len(t.messages()) / 4, success=lambda t: len(t.messages()) > 1)
    said: Message = {"role": "assistant", "content": "yes"}
    group = TrajectoryGroup(
        [
            Trajectory(messages_and_choices=[said], reward=0.5),
            Trajectory(messages_and_choices=[said, said], reward=None),
            Trajectory(messages_and_choices=[said], reward=None, status="failed"),
        ]
    )
    weights: dict[RewardName, float] = {"judge": 2.0, "hand": 1.0, "success": 1.0, "constant": -1.0}
    parts = [programmed_parts(scenario, trajectory, weights) for trajectory in group]
    set_rewards(group, parts, weights)
    assert [trajectory.reward for trajectory in group] == [2 * 0.5 + 0.25 + 0.0 - 1.0, None, None]
    assert [trajectory.metrics for trajectory in group] == [
        {"reward/judge": 0.5, "reward/hand": 0.25, "reward/success": 0.0, "reward/constant": 1.0},
        {"reward/hand": 0.5, "reward/success": 1.0, "reward/constant": 1.0},
        {},
    ]


def test_the_judge_alone_adds_no_metrics() -> None:
    group = TrajectoryGroup([Trajectory(reward=0.25), Trajectory(reward=None)])
    set_rewards(group, [{}, {}], {"judge": 2.0})
    assert [(trajectory.reward, trajectory.metrics) for trajectory in group] == [(0.5, {}), (None, {})]


def test_a_hand_reward_that_raises_says_which_function_it_was() -> None:
    scenario = a_scenario(hand_reward=lambda t: 1 / 0)
    with pytest.raises(ScenarioError, match="hand_reward of the scenario desk failed: ZeroDivisionError"):
        programmed_parts(scenario, Trajectory(), {"hand": 1.0})


async def never(messages: list[Message], schema: dict[str, Any]) -> str:
    raise AssertionError("the judge was called")


SMALL: dict[str, Any] = {
    "tasks_per_step": 4,
    "group_size": 4,
    "max_tokens": 48,
    "evaluate_every": 9,
    "evaluation_tasks": 2,
    "final_tasks": 2,
}


@pytest.mark.slow
async def test_without_a_weight_for_the_judge_it_is_not_called_and_groups_are_trained(tmp_path: Path) -> None:
    model = TrainableModel(name="hand", project="tests", base_model=EMBEDDED_POLICY)
    loop = LoopConfig(steps=1, reward={"hand": 1.0, "success": 0.5}, **SMALL)
    async with LocalBackend(tmp_path) as backend:
        await model.register(backend)
        await train_scenario(model, DESK, Judge(never), loop, TrainConfig(learning_rate=1e-3))
        (row,) = backend.history(model, "train")
        await train_scenario(model, DESK, None, loop, TrainConfig(learning_rate=1e-3))
    assert row["groups_trained"] > 0
    assert not any(name.startswith("judge") for name in row)
    assert row["reward"] == pytest.approx(row["reward/hand"] + 0.5 * row["reward/success"])
    for group in TrajectoryStore(tmp_path / "tests" / "hand" / "trajectories" / "train" / "000001.jsonl.zst"):
        assert group.judgement is None
        for trajectory in group:
            assert DESK.hand_reward is not None
            assert trajectory.metrics["reward/hand"] == DESK.hand_reward(trajectory)


@pytest.mark.slow
async def test_a_constant_reward_trains_nothing(tmp_path: Path) -> None:
    model = TrainableModel(name="control", project="tests", base_model=EMBEDDED_POLICY)
    loop = LoopConfig(steps=1, reward={"constant": 1.0}, **SMALL)
    async with LocalBackend(tmp_path) as backend:
        await model.register(backend)
        await train_scenario(model, DESK, None, loop, TrainConfig())
        (row,) = backend.history(model, "train")
    assert (row["groups_trained"], row["reward"]) == (0, 1.0)


async def test_a_hand_reward_that_always_raises_stops_the_run_with_the_reason(tmp_path: Path) -> None:
    def broken(trajectory: Trajectory) -> float:
        raise LookupError("no such key")

    scenario = a_scenario(hand_reward=broken)
    model = TrainableModel(name="broken", project="tests", base_model=EMBEDDED_POLICY)
    async with LocalBackend(tmp_path) as backend:
        await model.register(backend)
        with pytest.raises(LoopError, match=r"no member of this step has a reward.*no such key"):
            await train_scenario(model, scenario, None, LoopConfig(reward={"hand": 1.0}, **SMALL), TrainConfig())


@pytest.mark.parametrize(
    ("reward", "train", "said"),
    [
        ({"judge": 1.0}, TrainConfig(), "there is no judge"),
        ({"judge": 0.5, "hand": 1.0}, TrainConfig(advantage="shrunk"), "its weight must be 1"),
        ({"success": 1.0}, TrainConfig(), "success=…"),
    ],
)
async def test_what_cannot_be_rewarded_is_refused_before_anything_runs(
    tmp_path: Path, reward: Any, train: TrainConfig, said: str
) -> None:
    model = TrainableModel(name="refused", project="tests", base_model=EMBEDDED_POLICY)
    scenario = a_scenario(hand_reward=lambda t: 0.0)
    judge = Judge(never) if train.advantage == "shrunk" else None
    with pytest.raises(LoopError) as error:
        await train_scenario(model, scenario, judge, LoopConfig(reward=reward), train)
    assert said in str(error.value)
