"""What the embedded policies learned, and that the held-out tasks are not among it."""

import random

import pytest

from gavel.scenarios.scenario import find_scenario
from gavel.scenarios.scripted_players import Call
from gavel.trainer.embedded import SCENARIOS, embedded_path
from gavel.trainer.embedded.behavior_cloning import COURSES


@pytest.mark.parametrize("policy", SCENARIOS)
def test_every_policy_ships_and_was_cloned_from_its_own_scenario(policy: str) -> None:
    course = COURSES[policy]
    assert course.scenario is find_scenario(SCENARIOS[policy])
    shipped = {file.name for file in embedded_path(policy).iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= shipped


@pytest.mark.parametrize("policy", SCENARIOS)
def test_no_held_out_task_is_demonstrated(policy: str) -> None:
    course = COURSES[policy]
    demonstrated = {course.tasks[index].id for index in range(0, len(course.tasks), 97)}
    assert demonstrated.isdisjoint(task.id for task in course.scenario.tasks("held_out"))


@pytest.mark.parametrize("policy", SCENARIOS)
def test_every_clerk_of_every_stage_demonstrates(policy: str) -> None:
    course = COURSES[policy]
    for stage in course.stages:
        assert sum(stage.shares.values()) == pytest.approx(1)
        for clerk in stage.shares:
            assert isinstance(next(course.demonstrate(course.tasks[0], clerk, random.Random(0))), Call)
