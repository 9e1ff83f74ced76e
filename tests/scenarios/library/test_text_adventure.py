import random

import pytest

from gavel.scenarios.library.text_adventure import House, draw_house, scenario
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scripted_agent import Turns, played_by
from gavel.scenarios.task import Task

TASKS = scenario.tasks("held_out")[:64]


def house(task: Task) -> House:
    return House.model_validate(task.data["house"])


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
    def say(task: Task, opening: str, dice: random.Random) -> Turns:
        while True:
            yield command

    episode = await rollout(played_by(say, TASKS[0]), scenario, TASKS[0])
    assert answer in episode.messages()[3]["content"]


def test_all_houses_can_be_solved_within_the_turns():
    houses = [draw_house(number) for number in range(400)]
    assert max(each.shortest for each in houses) <= scenario.max_turns
    assert all(each.start != each.key != each.chest for each in houses)
