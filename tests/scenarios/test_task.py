"""Tasks keep their name, whoever makes them and wherever they have been."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.seeds import seed_of
from gavel.scenarios.task import DrawnTasks, Task
from gavel.scenarios.trajectory import Trajectory

untimed = settings(deadline=None)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
hidden_states = st.dictionaries(st.text(), json_values, max_size=4)


def test_the_id_of_a_task_never_changes() -> None:
    assert Task(user="hello").id == "6083580e5818"
    assert Task(user="hello", data={"b": 1, "a": [True, None]}).id == "1607cf882e6a"


@untimed
@given(st.lists(st.tuples(st.text(), st.dictionaries(st.text(), st.integers(), max_size=2)), max_size=6))
def test_different_tasks_have_different_ids(contents: list) -> None:
    ids = {Task(user=user, data=data).id for user, data in contents}
    assert len(ids) == len({json.dumps(content, sort_keys=True) for content in contents})


@untimed
@given(st.text(), hidden_states)
def test_a_task_comes_back_from_the_metadata_of_a_stored_trajectory(user: str, data: dict) -> None:
    task = Task(user=user, data=data)
    stored = Trajectory(metadata={"task": task.model_dump(mode="json")}).to_json()
    assert Task.of(Trajectory.from_json(stored).metadata) == task


def test_the_seed_of_a_place_never_changes() -> None:
    assert seed_of(0, "train", 3, "1007", 2) == 1617203419219693553
    assert seed_of("evaluation") == 1777858146974599569


def test_every_bit_of_a_seed_is_used() -> None:
    seeds = [seed_of(number) for number in range(400)]
    for bit in range(62):
        assert 120 < sum(seed >> bit & 1 for seed in seeds) < 280


DRAWN: list[int] = []


def draw(number: int) -> Task:
    DRAWN.append(number)
    return Task(id=str(number), user=f"Do {number}.")


def test_tasks_are_a_sequence_like_any_other_and_drawn_when_they_are_asked_for():
    tasks = DrawnTasks(range(100, 110), draw)
    assert (len(tasks), DRAWN) == (10, [])
    assert tasks[-1].id == "109"
    assert [task.id for task in tasks[2:5]] == ["102", "103", "104"]
    assert DRAWN == [109, 102, 103, 104]
    assert tasks[3] in tasks
    assert next(task.id for task in reversed(tasks)) == "109"
    with pytest.raises(IndexError):
        tasks[10]


def test_a_scenario_draws_none_of_its_tasks_but_those_that_are_in_both_splits():
    def draw_once(number: int) -> Task:
        drawn.append(number)
        return Task(id=f"task {number}", user="Do it.")

    drawn: list[int] = []
    scenario = Scenario("x", tasks=DrawnTasks(range(500), draw_once), held_out=DrawnTasks(range(500, 900), draw_once))
    assert (len(scenario.tasks("held_out")), drawn) == (400, [])
    with pytest.raises(ScenarioError, match="both trained on and held out: task 9"):
        Scenario("x", tasks=DrawnTasks(range(10), draw_once), held_out=DrawnTasks(range(9, 20), draw_once))
    assert drawn == [9]
