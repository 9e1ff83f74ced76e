"""Episodes are kept one by one, and are those of the same model, tasks and settings."""

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.seeds import seed_of
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import LoopConfig
from gavel.trainer.loop.evaluation import EvaluationError
from gavel.trainer.loop.model_samples import (
    Play,
    SampledModel,
    sample_missing,
    stored_samples,
    wanted_samples,
)
from tests.judge.groups import choice

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
    wanted = list(wanted_samples(TASKS, 2))
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
            list(wanted_samples(many, 1)),
            tmp_path / "x.jsonl.zst",
            LoopConfig(concurrency=1),
            lambda group: None,
        )
    assert len(player.played) == 8
