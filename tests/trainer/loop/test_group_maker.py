"""Groups are rolled out, measured and rewarded, by agent where an episode has several; a policy is evaluated."""

import contextlib
import json
import math
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gavel.base.fields import FieldError
from gavel.judge.judge import Judge
from gavel.llm.types import Message
from gavel.scenarios.agent import Agent
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from gavel.scenarios.episode import Episode
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.seeds import seed_of
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import LoopConfig, Ppo, RewardName, TrainConfig
from gavel.trainer.loop.evaluation import EvaluationObserver, evaluate, evaluate_once
from gavel.trainer.loop.group_maker import programmed_parts, set_rewards
from gavel.trainer.loop.model_samples import (
    Play,
    SampledModel,
    joint_groups,
    sample_missing,
    stored_samples,
    wanted_samples,
)
from gavel.trainer.loop.train_loop import LoopError, Observer, StepReport, train_scenario
from gavel.trainer.loop.watchdog import Watchdog
from tests.judge.groups import choice, saying
from tests.trainer.conftest import a_model, registered


def a_scenario(**functions: Any) -> Scenario:
    return Scenario(name="desk", system="Answer.", tasks=[Task(user="a question")], held_out=0, **functions)


@pytest.mark.parametrize("weights", [{}, {"judge": 0.0}, {"judge": math.nan}, {"human": 1.0}])
def test_weights_that_make_no_reward_are_refused(weights: dict[str, float]) -> None:
    with pytest.raises(FieldError, match="reward"):
        LoopConfig(reward=weights)


def test_each_part_is_kept_as_a_metric_and_a_failed_rollout_has_none() -> None:
    scenario = a_scenario(hand_reward=lambda t: len(t.messages()) / 4, success=lambda t: len(t.messages()) > 1)
    said: Message = {"role": "assistant", "content": "yes"}
    group = TrajectoryGroup(
        Trajectory(messages_and_choices=[said] * turns, reward=reward, status=status)
        for turns, reward, status in ((1, 0.5, "finished"), (2, None, "finished"), (1, None, "failed"))
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
    set_rewards(group, parts, weights | {"judge": 0.0})
    assert group.trajectories[1].reward == 0.5 + 1.0 - 1.0


@pytest.mark.parametrize(
    ("settings", "train", "said"),
    [
        ({"reward": {"judge": 1.0}}, TrainConfig(), "there is no judge"),
        ({"reward": {"judge": 0.5, "hand": 1.0}}, TrainConfig(advantage="shrunk"), "its weight must be 1"),
        ({"reward": {"success": 1.0}}, TrainConfig(), "success=…"),
        ({"reward": {"hand": 1.0}, "refill": 1}, TrainConfig(loss=Ppo()), "--refill"),
    ],
)
async def test_what_cannot_be_rewarded_is_refused_before_anything_runs(settings, train, said):
    model = a_model("refused")
    scenario = a_scenario(hand_reward=lambda t: 0.0)
    judge = Judge("constant") if train.advantage == "shrunk" else None
    with pytest.raises(LoopError) as error:
        await train_scenario(model, scenario, judge, LoopConfig(**settings), train)
    assert said in str(error.value)


SMALL: dict[str, Any] = {"tasks_per_step": 2, "group_size": 3, "max_tokens": 8, "evaluate_every": 9}
LOOP = LoopConfig(steps=2, evaluation_tasks=2, final_tasks=2, reward={"hand": 1.0}, **SMALL)


async def duel(model: Any, task: Task, episode: Episode) -> list[Trajectory]:
    """Who says the word with the higher checksum wins."""
    one = Agent(episode, "one", system="Say a word.")
    other = Agent(episode, "other", system="Say a better word.", steps_back=int(str(task.data.get("back", 0))))
    said = {agent: await agent.ask(task.user) for agent in (one, other)}
    best = max(said, key=lambda agent: sum(said[agent].encode()))
    for agent in said:
        agent.trajectory.metrics["won"] = agent is best
    one.trajectory.metrics["against"] = other.trajectory.policy_version or 0
    return [one.trajectory, other.trajectory]


TASKS = [Task(user=f"Word {number}") for number in range(8)]
WON = {"success": lambda each: bool(each.metrics["won"]), "hand_reward": lambda each: float(each.metrics["won"])}


async def trained(runs: Path, scenario: Scenario, versions: int = 1) -> list[StepReport]:
    seen = Mock(Observer)
    async with registered(runs, "small", versions=versions) as (model, _):
        await train_scenario(model, scenario, None, LOOP, TrainConfig(), seen)
    return [call.args[0] for call in seen.stepped.call_args_list]


@pytest.mark.slow
async def test_in_self_play_each_agent_is_compared_with_itself_and_all_turns_are_trained(tmp_path: Path):
    reports = await trained(tmp_path, Scenario("duel", rollout=duel, tasks=TASKS, **WON))
    assert [report.result.step for report in reports] == [1, 2]
    for report in reports:
        assert [[each.agent for each in group] for group in report.groups] == [["one"] * 3, ["other"] * 3] * 2
        wins = [each.reward for group in report.groups for each in group]
        assert sum(reward or 0.0 for reward in wins) == len(wins) / 2
        with_signal = [group for group in report.groups if len({each.reward for each in group}) > 1]
        assert report.result.metrics.get("trajectories_trained", 3 * len(with_signal)) == 3 * len(with_signal)
    (first, *_) = [json.loads(line) for line in (tmp_path / "tests" / "small" / "metrics.jsonl").open()]
    assert first["split"] == "held_out"
    assert first["success"] == 0.5


@pytest.mark.slow
async def test_an_older_policy_is_an_opponent_that_is_not_trained(tmp_path: Path):
    tasks = [task.model_copy(update={"data": {"back": 1}}) for task in TASKS]
    reports = await trained(tmp_path, Scenario("duel", rollout=duel, tasks=tasks, **WON), versions=2)
    for report in reports:
        members = [member for group in report.groups for member in group]
        assert [each.agent for each in members] == ["one"] * 6
        assert all(each.status != "failed" for each in members)
        assert {(each.policy_version, each.metrics["against"]) for each in members} == {(report.result.step - 1, 0)}


async def test_an_evaluation_stops_where_a_world_cannot_tell_how_episodes_ended_and_averages_what_some_have():
    class Boaster:
        async def reset(self, task: Task) -> None:
            self.won = task.data["wins"]

        def success(self, trajectory: Trajectory) -> bool:
            if not self.won:
                raise KeyError("score")
            return True

    async def play(model: Any, task: Task) -> Trajectory:
        found = {"rare": 8.0} if task.user == "Play 1." else {}
        return Trajectory(messages_and_choices=[{"role": "user", "content": task.user}], metrics=found)

    async def say(request: ChatRequest) -> Message:
        return {"content": "So I say."}

    speaker = FunctionModel("speaker", say)
    tasks = [Task(user=f"Play {number}.", data={"wins": number < 2}) for number in range(4)]
    scenario = Scenario("boaster", environment=Boaster, tasks=tasks[:1], held_out=tasks[1:])
    with pytest.raises(ScenarioError, match="cannot tell how 2 of 3 held-out episodes ended"):
        await evaluate(speaker, scenario, 3, LoopConfig())
    found = await evaluate(
        speaker, Scenario("rare", rollout=play, tasks=tasks[:1], held_out=tasks[1:]), 3, LoopConfig()
    )
    assert found.measures == {"rare": 8.0, "truncated": 0.0}


async def test_held_out_rollouts_that_fail_are_told_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    async def play(model: Any, task: Task) -> Trajectory:
        if task.user == "Task 1":
            raise ValueError("the backend is down")
        return Trajectory(messages_and_choices=[{"role": "user", "content": task.user}])

    async with registered(tmp_path) as (model, backend):
        scenario = Scenario("half", rollout=play, tasks=ALL[:1], held_out=ALL[1:])
        await evaluate_once(model, [scenario], 2, LoopConfig(), Watchdog(60), EvaluationObserver())
        (row,) = backend.history(model, "held_out")
    assert (row["failed"], row["trajectories"]) == (0.5, 1)
    assert "1 of 2 held-out rollouts of half failed" in caplog.text
    assert "the backend is down" in caplog.text


ALL = [Task(user=f"Task {number}") for number in range(3)]


class Player:
    """Plays, and remembers what and with which seed; fails the tasks of `broken`."""

    def __init__(self, broken: set[str] | None = None) -> None:
        self.played: list[tuple[str, int]] = []
        self.broken = broken or set()

    async def play(self, task: Task, seed: int) -> TrajectoryGroup:
        self.played.append((task.user, seed))
        status = "failed" if task.user in self.broken else "finished"
        reply = choice(task.user)
        return TrajectoryGroup([Trajectory(messages_and_choices=[reply], status=status, status_reason="broken")])

    def model(self, **identity: str) -> SampledModel:
        @contextlib.asynccontextmanager
        async def serve() -> AsyncGenerator[Play]:
            yield self.play

        return SampledModel("a model/of mine", identity, serve)


def test_the_file_is_that_of_a_model_its_settings_and_what_it_is_shown(tmp_path: Path) -> None:
    def file(api: str = "x", scenario: dict[str, Any] | None = None, **loop: Any) -> Path:
        shown = Scenario("tasks", tasks=ALL, **scenario or {})
        return Player().model(api=api).file(tmp_path, shown, LoopConfig(**loop))

    files = {file(), file("y"), file(scenario={"system": "Be brief."}), file(temperature=0.5), file(seed=1)}
    assert len(files) == 5
    assert file(scenario={"rubric": "Be kind."}, steps=3) in files
    assert all(file.parent == tmp_path / "samples" for file in files)


async def test_failed_episodes_are_not_kept_and_the_first_sample_is_that_of_a_training_run(tmp_path: Path) -> None:
    file, player = tmp_path / "x.jsonl.zst", Player({"Task 1"})
    heard: list[TrajectoryGroup | None] = []
    failed = await sample_missing(player.model(), wanted_samples(ALL, 2), file, LoopConfig(seed=7), heard.append)
    assert (len(failed), heard.count(None), len(heard)) == (2, 2, 6)
    assert len(await sample_missing(player.model(), [(ALL[1], 0)], file, LoopConfig(), print)) == 1  # others are kept
    assert set(stored_samples(file, ALL)) == {(ALL[task].id, number) for task in (0, 2) for number in (0, 1)}
    assert ("Task 0", seed_of(7, "evaluation", ALL[0].id)) in player.played
    assert len({seed for user, seed in player.played if user == "Task 0"}) == 2
    changed = [ALL[0].model_copy(update={"reference": "new"}), *ALL[1:]]
    assert {task for task, _ in stored_samples(file, changed)} == {ALL[2].id}


def test_a_group_holds_every_model_s_samples_of_a_task_without_earlier_rewards() -> None:
    one = {("a", 0): saying("x"), ("b", 0): saying("y")}
    for group in one.values():
        group.trajectories[0].reward = 0.9
    groups = joint_groups({"one": one, "two": {("a", 0): saying("z"), ("a", 1): saying("w")}})
    assert [group.metadata["task"] for group in groups] == ["a", "b"]
    assert [(m.metadata["model"], m.metadata["sample"]) for m in groups[0]] == [("one", 0), ("two", 0), ("two", 1)]
    assert all(member.reward is None for group in groups for member in group)
    (other,) = joint_groups({"one": {("a", 0): saying("v")}})
    assert len({group.metadata["attempts"] for group in (*groups, other)}) == 3
