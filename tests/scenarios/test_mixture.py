"""Several scenarios in one run: shares, curricula, and whose tasks a step has."""

from collections import Counter

import pytest

from gavel.scenarios.mixture import Mixture, read_weights, scenario_references
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.task import Task


def world(name: str, tasks: int = 40) -> Scenario:
    return Scenario(name, tasks=[Task(user=f"{number} of {name}?") for number in range(tasks)])


A, B, C = world("a"), world("b"), world("c", tasks=3)


def counts(mixture: Mixture, groups: int, step: int, seed: int = 0) -> Counter[str]:
    return Counter(planned.scenario.name for planned in mixture.plan(groups, seed=seed, step=step))


def test_shares_are_those_of_the_weights_in_every_step_and_exact_on_average() -> None:
    mixture = Mixture([A, B], {"a": 3})
    assert all(counts(mixture, 8, step) == {"a": 6, "b": 2} for step in range(10))
    steps = [counts(mixture, 2, step) for step in range(400)]
    assert all(step["a"] in (1, 2) for step in steps)
    assert sum(step["a"] for step in steps) == pytest.approx(600, abs=45)


def test_a_curriculum_brings_a_scenario_in_at_its_step() -> None:
    mixture = Mixture([A, B], {"a": {0: 1, 30: 0}, "b": {20: 1}})
    assert [counts(mixture, 4, step) for step in (0, 19, 20, 29, 30)] == [
        {"a": 4},
        {"a": 4},
        {"a": 2, "b": 2},
        {"a": 2, "b": 2},
        {"b": 4},
    ]


def test_a_single_scenario_is_planned_as_it_always_was() -> None:
    planned = Mixture.of(A).plan(5, seed=3, step=7)
    assert [each.task for each in planned] == A.sample("train", 5, seed=3, step=7)
    assert len(Mixture.of(C).plan(16, seed=0, step=0)) == len(C.tasks())


def test_a_scenario_with_fewer_tasks_than_groups_repeats_them_under_other_numbers() -> None:
    planned = [each for each in Mixture([A, C]).plan(16, seed=0, step=0) if each.scenario is C]
    assert len(planned) == 8
    assert len({(each.task.id, each.repeat) for each in planned}) == 8
    assert len({each.task.id for each in planned}) == len(C.tasks())


def test_settings_name_a_weight_from_a_step_on() -> None:
    assert read_weights({"a": 2, "20:b": 1, "40:b": 3, "0:c": 5}) == {"a": {0: 2}, "b": {20: 1, 40: 3}, "c": {0: 5}}


@pytest.mark.parametrize(
    ("scenarios", "weights", "problem"),
    [
        ([], None, "needs a scenario"),
        ([A, world("a")], None, "two scenarios of the mixture are called a"),
        ([A, B], {"x": 1.0}, "'x' has a weight"),
        ([A, B], {"a": -1.0}, "no weight"),
        ([A, B], {"a": float("nan")}, "no weight"),
        ([A, B], {"a": {-3: 1.0}}, "no weight"),
        ([A, B], {"a": 0.0, "b": {20: 1.0}}, "at step 0 every scenario"),
        ([A, B], {"a": {0: 1.0, 30: 0.0}, "b": {0: 1.0, 20: 0.0}}, "at step 30 every scenario"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused_with_a_remedy(
    scenarios: list[Scenario], weights: dict[str, float | dict[int, float]] | None, problem: str
) -> None:
    with pytest.raises(ScenarioError, match=problem) as error:
        Mixture(scenarios, weights)
    assert error.value.remedy


def test_names_joined_by_a_plus_are_several_scenarios_and_a_file_with_one_is_not(tmp_path) -> None:
    assert scenario_references("returns_desk+agentgym:http://127.0.0.1:1/") == [
        "returns_desk",
        "agentgym:http://127.0.0.1:1/",
    ]
    named = "agentgym:weather+http://127.0.0.1:36005"
    assert scenario_references(named) == [named]
    assert scenario_references(f"{named}+openenv:http://127.0.0.1:2") == [named, "openenv:http://127.0.0.1:2"]
    file = tmp_path / "a+b.py"
    file.write_text("")
    assert scenario_references(str(file)) == [str(file)]
    assert scenario_references(f"{file}:one") == [f"{file}:one"]


def test_a_plus_in_the_path_of_an_address_is_none_between_two(tmp_path) -> None:
    rows = tmp_path / "a+b" / "train.jsonl"
    rows.parent.mkdir()
    rows.write_text("")
    for path in (rows, rows.with_name("not-there.jsonl"), rows.parent, f"{rows}?reward={rows.parent}/r.py:score"):
        assert scenario_references(f"verl:{path}") == [f"verl:{path}"]
    assert scenario_references(f"verl:{rows}?tasks=2+returns_desk") == [f"verl:{rows}?tasks=2", "returns_desk"]
    assert scenario_references("returns_desk + one.py:a+two.py") == ["returns_desk ", " one.py:a", "two.py"]
