import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.judge import Judge
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.library.booking_desk import CLERKS, Hotel, Room, demonstrate, looked_before_acting, scenario
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scripted_agent import played_by
from gavel.scenarios.task import Task

TASKS = [*scenario.tasks("train")[:40], *scenario.tasks("held_out")[:24]]


def clerk(name: str, task: Task, seed: int) -> Any:
    return played_by(lambda task, opening, dice: demonstrate(task, CLERKS[name], random.Random(seed)), task)


async def test_the_stand_in_judge_tells_right_books_from_wrong_ones_without_seeing_them():
    judge = Judge("stand-in", rubric=scenario.rubric, orders=1)
    successes = dict.fromkeys(CLERKS, 0.0)
    for number, task in enumerate(TASKS[::2]):
        attempts = [await rollout(clerk(name, task, number), scenario, task) for name in CLERKS]
        judged = await judge.score(TrajectoryGroup(attempts))
        for name, attempt in zip(CLERKS, judged.trajectories, strict=True):
            successes[name] += attempt.metrics["success"]
            assert looked_before_acting(attempt) == (name != "hasty")
            if judged.judgement is not None and judged.judgement.status != "degenerate":
                assert attempt.reward == 1.0 or name != "careful"
                assert attempt.reward != 1.0 or attempt.metrics["success"]
    assert successes["careful"] == len(TASKS[::2])
    assert 0 < successes["hasty"] < successes["sloppy"] < successes["careful"]


NIGHT = st.integers(1, 9)


@given(st.lists(st.tuples(st.sampled_from("AB"), NIGHT, NIGHT).map(lambda t: (t[0], *sorted(t[1:]))), max_size=12))
def test_no_room_is_ever_booked_twice_for_a_night(wishes: list[tuple[str, int, int]]):
    hotel = Hotel(rooms=[Room(number="A", beds=1, price=1), Room(number="B", beds=2, price=2)])
    taken: set[tuple[str, int]] = set()
    for room, first, last in wishes:
        nights = {(room, night) for night in range(first, last + 1)}
        if nights & taken:
            with pytest.raises(ValueError, match="taken"):
                hotel.book(room, "Ada", first, last)
        else:
            hotel.book(room, "Ada", first, last)
            taken |= nights
