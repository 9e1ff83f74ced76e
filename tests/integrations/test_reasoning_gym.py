"""reasoning-gym's own datasets and scorers."""

import pytest

pytest.importorskip("reasoning_gym", reason="make test-bridges installs reasoning-gym")

from reasoning_gym import create_dataset

from gavel.integrations.reasoning_gym.scenario import answer_of
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario, ScenarioError, find_scenario
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from tests.scenarios.scripts import scripted

pytestmark = pytest.mark.bridges


async def answered(scenario: Scenario, task: Task, said: str) -> Trajectory:
    return await rollout(scripted(said), scenario, task)


@pytest.mark.parametrize("name", ["leg_counting", "chain_sum", "countdown", "sudoku", "maze", "basic_arithmetic"])
async def test_the_dataset_s_answer_is_right_and_another_is_not(name: str):
    scenario = find_scenario(f"reasoning_gym:{name}?size=6&held_out=3&seed=4")
    entries = create_dataset(name, size=9, seed=4)
    assert scenario.success is not None
    assert scenario.hand_reward is not None
    for task in [*scenario.tasks(), *scenario.tasks("held_out")]:
        entry = entries[task.data["index"]]  # type: ignore[index]
        assert task.user == entry["question"]
        right = await answered(scenario, task, f"I think: <answer>{entry['answer']}</answer>")
        assert scenario.success(right)
        assert scenario.hand_reward(right) == entries.score_answer(entry["answer"], entry)
        for wrong in ("<answer>banana</answer>", "No tags here.", "<answer>", "", "<answer>(((</answer>"):
            found = await answered(scenario, task, wrong)
            assert not scenario.success(found)
            assert 0 <= scenario.hand_reward(found) < 1


def test_the_same_seed_gives_the_same_tasks_in_splits_that_share_none():
    one, same, other = [find_scenario(f"reasoning_gym:chain_sum?size=40&held_out=20&seed={seed}") for seed in (1, 1, 2)]
    assert [task.model_dump() for task in one.tasks()] == [task.model_dump() for task in same.tasks()]
    assert one.tasks()[0].user != other.tasks()[0].user
    asked = {split: {task.user for task in one.tasks(split)} for split in ("train", "held_out")}
    assert asked["train"].isdisjoint(asked["held_out"])
    assert len(asked["train"]) == len(one.tasks())


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("reasoning_gym:leg_countin", "leg_countin"),
        ("reasoning_gym:leg_counting?legs=3", "cannot be made"),
        ("reasoning_gym:leg_counting?min_animals=-3", "cannot be made"),
        ("reasoning_gym:leg_counting?size=0", "size"),
    ],
)
def test_an_address_that_is_none_is_told(address: str, said: str):
    with pytest.raises(ScenarioError, match=said) as caught:
        find_scenario(address)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("<answer>4</answer>", "4"),
        ("<answer>3</answer> no, <answer> 4 </answer>.", "4"),
        ("<answer>4", None),
        ("4", None),
        ("</answer>4<answer>", None),
    ],
)
def test_the_last_answer_counts(reply: str, answer: str | None):
    assert answer_of(reply) == answer
