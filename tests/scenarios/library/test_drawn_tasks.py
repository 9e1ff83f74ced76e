import pytest

from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.task import DrawnTasks, Task

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
