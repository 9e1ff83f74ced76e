import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from gavel.scenarios.library.text_adventure import House, draw_house, scenario
from gavel.scenarios.rollout import rollout
from gavel.scenarios.task import Task
from tests.scenarios.library.scripts import script

TASKS = scenario.tasks("held_out")[:64]


def house(task: Task) -> House:
    return House.model_validate(task.data["house"])


def expert(task: Task) -> Any:
    def steps() -> Generator[str, str, None]:
        known = house(task)
        for direction in known.way(known.start, known.key):
            yield f"go {direction}"
        yield "Take key."
        for direction in known.way(known.key, known.chest):
            yield f"go {direction}"
        yield "open chest"

    return script(steps)


def fool(task: Task) -> Any:
    def steps() -> Generator[str, str, None]:
        while True:
            yield "open chest"

    return script(steps)


async def test_an_expert_finds_the_treasure_by_the_shortest_way_and_a_fool_does_not():
    experts = await asyncio.gather(*(rollout(expert(task), scenario, task) for task in TASKS))
    for task, episode in zip(TASKS, experts, strict=True):
        assert episode.status == "finished"
        assert episode.metrics["success"] == 1
        assert episode.metrics["turns"] == house(task).shortest
        assert episode.messages()[-1]["content"].startswith("The chest is open")
    fools = await asyncio.gather(*(rollout(fool(task), scenario, task) for task in TASKS))
    assert {episode.status for episode in fools} == {"truncated"}
    assert sum(episode.metrics["success"] for episode in fools) == 0


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("dance", "does not know"),
        ("take key", "no key here"),
        ("go up", "does not know"),
        ("LOOK", "You are in the"),
        ("", "does not know"),
    ],
)
async def test_the_world_answers_every_command(command: str, answer: str):
    def steps() -> Generator[str, str, None]:
        while True:
            yield command

    episode = await rollout(script(steps), scenario, TASKS[0])
    assert answer in episode.messages()[3]["content"]


def test_all_houses_can_be_solved_within_the_turns():
    houses = [draw_house(number) for number in range(400)]
    assert max(each.shortest for each in houses) <= scenario.max_turns
    assert all(each.start != each.key != each.chest for each in houses)
