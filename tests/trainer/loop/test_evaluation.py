"""A policy is measured on held-out tasks; episodes are kept, and those of several models judged together."""

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from gavel.llm.types import Message
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.seeds import seed_of
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import LoopConfig
from gavel.trainer.loop.evaluation import EvaluationError, evaluate
from gavel.trainer.loop.model_samples import (
    Play,
    SampledModel,
    joint_groups,
    sample_missing,
    stored_samples,
    wanted_samples,
)
from tests.judge.groups import choice


async def answer(request: ChatRequest) -> Message:
    return {"content": "Done."}


MODEL = FunctionModel("script", answer)


async def test_an_evaluation_stops_where_a_world_cannot_tell_how_episodes_ended():
    class Boaster:
        async def reset(self, task: Task) -> None:
            self.won = task.data["wins"]

        def success(self, trajectory: Trajectory) -> bool:
            if not self.won:
                raise KeyError("score")
            return True

    tasks = [Task(user=f"Play {number}.", data={"wins": number < 2}) for number in range(4)]
    scenario = Scenario("boaster", environment=Boaster, tasks=tasks[:1], held_out=tasks[1:])

    with pytest.raises(ScenarioError, match="cannot tell how 2 of 3 held-out episodes ended"):
        await evaluate(MODEL, scenario, 3, LoopConfig())


async def test_a_metric_that_only_some_episodes_have_is_averaged_over_these():
    async def play(model: Any, task: Task) -> Trajectory:
        number = int(task.user)
        found = {"rare": 8.0} if number == 1 else {}
        return Trajectory(messages_and_choices=[{"role": "user", "content": task.user}], metrics=found)

    tasks = [Task(user=str(number)) for number in range(4)]
    scenario = Scenario("rare", rollout=play, tasks=tasks[:1], held_out=tasks[1:])
    found = await evaluate(MODEL, scenario, 3, LoopConfig())
    assert found.measures == {"rare": 8.0, "truncated": 0.0}


TASKS = [Task(user=f"Task {number}") for number in range(3)]


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


def a_scenario(**changed: object) -> Scenario:
    return Scenario("tasks", tasks=TASKS, **changed)  # pyright: ignore[reportArgumentType]


def test_the_file_is_that_of_a_model_its_settings_and_what_it_is_shown(tmp_path: Path) -> None:
    model, config = Player().model(api="x"), LoopConfig()
    files = {
        model.file(tmp_path, a_scenario(), config),
        Player().model(api="y").file(tmp_path, a_scenario(), config),
        model.file(tmp_path, a_scenario(system="Be brief."), config),
        model.file(tmp_path, a_scenario(), LoopConfig(temperature=0.5)),
        model.file(tmp_path, a_scenario(), LoopConfig(seed=1)),
    }
    assert len(files) == 5
    assert model.file(tmp_path, a_scenario(rubric="Be kind."), LoopConfig(steps=3)) in files
    assert all(file.parent == tmp_path / "samples" for file in files)


async def test_failed_episodes_are_not_kept_and_the_first_sample_is_that_of_a_training_run(tmp_path: Path) -> None:
    file, player = tmp_path / "x.jsonl.zst", Player({"Task 1"})
    heard: list[bool] = []
    wanted = wanted_samples(TASKS, 2)
    failed = await sample_missing(
        player.model(), wanted, file, LoopConfig(seed=7), lambda group: heard.append(group is None)
    )
    assert (failed, sum(heard), len(heard)) == (2, 2, 6)
    assert set(stored_samples(file, TASKS)) == {(TASKS[task].id, number) for task in (0, 2) for number in (0, 1)}
    assert ("Task 0", seed_of(7, "evaluation", TASKS[0].id)) in player.played
    assert len({seed for user, seed in player.played if user == "Task 0"}) == 2
    changed = [TASKS[0].model_copy(update={"reference": "new"}), *TASKS[1:]]
    assert {task for task, _ in stored_samples(file, changed)} == {TASKS[2].id}


async def test_a_model_that_only_fails_is_given_up(tmp_path: Path) -> None:
    many = [Task(user=f"Task {number}") for number in range(100)]
    player = Player({task.user for task in many})
    with pytest.raises(EvaluationError, match="every rollout of a model/of mine failed; the first: broken"):
        await sample_missing(
            player.model(),
            wanted_samples(many, 1),
            tmp_path / "x.jsonl.zst",
            LoopConfig(concurrency=1),
            lambda group: None,
        )
    assert len(player.played) == 8


def episode(text: str, *agents: str | None) -> TrajectoryGroup:
    return TrajectoryGroup(
        Trajectory(messages_and_choices=[{"role": "user", "content": "Say it."}, choice(text)], agent=agent, reward=0.9)
        for agent in agents or (None,)
    )


def test_a_group_holds_every_model_s_samples_of_a_task_without_earlier_rewards() -> None:
    groups = joint_groups(
        {
            "one": {("a", 0): episode("x"), ("b", 0): episode("y")},
            "two": {("a", 0): episode("z"), ("a", 1): episode("w")},
        }
    )
    assert [group.metadata["task"] for group in groups] == ["a", "b"]
    assert [(m.metadata["model"], m.metadata["sample"]) for m in groups[0]] == [("one", 0), ("two", 0), ("two", 1)]
    assert all(member.reward is None for group in groups for member in group)


def test_another_attempt_has_another_digest() -> None:
    (one,) = joint_groups({"one": {("a", 0): episode("x")}})
    (same,) = joint_groups({"one": {("a", 0): episode("x")}})
    (other,) = joint_groups({"one": {("a", 0): episode("y")}})
    (renamed,) = joint_groups({"two": {("a", 0): episode("x")}})
    assert one.metadata["attempts"] == same.metadata["attempts"]
    assert len({each.metadata["attempts"] for each in (one, other, renamed)}) == 3
