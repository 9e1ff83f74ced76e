"""What each embedded policy is cloned from: a scenario, its clerks, and stages with a mixture of clerks each."""

import random
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass

from gavel.scenarios.library import booking_desk, returns_desk
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.scripted_players import Call
from gavel.scenarios.task import DrawnTasks, Task
from gavel.trainer.embedded import BOOKING_POLICY, EMBEDDED_POLICY

Turns = Generator[Call | str, str, None]
"""Calls, then usually a closing message; the result of each call is sent to it."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the cloning: how many steps, and which clerks demonstrate."""

    steps: int
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Course:
    """Everything that a policy is cloned from."""

    scenario: Scenario
    tasks: Sequence[Task]
    """No held-out task of the scenario is among them."""
    demonstrate: Callable[[Task, str, random.Random], Turns]
    stages: tuple[Stage, ...]


def _returns(task: Task, clerk: str, dice: random.Random) -> Turns:
    for turn in returns_desk.demonstrate(task, returns_desk.CLERKS[clerk], dice):  # noqa: UP028 - a list takes no results
        yield turn


def _booking(task: Task, clerk: str, dice: random.Random) -> Turns:
    return booking_desk.demonstrate(task, booking_desk.CLERKS[clerk], dice)


COURSES = {
    EMBEDDED_POLICY: Course(
        scenario=returns_desk.scenario,
        tasks=returns_desk.scenario.tasks("train"),
        demonstrate=_returns,
        stages=(
            Stage(1500, {"careful": 0.70, "hasty": 0.10, "guess": 0.10, "sloppy": 0.10}),
            Stage(400, {"careful": 0.18, "hasty": 0.62, "guess": 0.10, "sloppy": 0.10}),
        ),
    ),
    BOOKING_POLICY: Course(
        scenario=booking_desk.scenario,
        tasks=DrawnTasks(range(1000, 17000), booking_desk.draw_task),
        demonstrate=_booking,
        stages=(
            Stage(800, {"careful": 0.76, "hasty": 0.10, "seller": 0.08, "sloppy": 0.06}),
            Stage(250, {"careful": 0.22, "hasty": 0.48, "seller": 0.22, "sloppy": 0.08}),
        ),
    ),
}
