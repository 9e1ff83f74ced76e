"""Datasets of verl's as scenarios, their compute_score as hand reward, and how mistakes are told."""

import json
from pathlib import Path
from typing import Any

import pytest

from gavel.integrations.verl import verl_scenario as verl
from gavel.integrations.verl.dataset import read_tasks
from gavel.scenarios.function_model import ChatRequest, FunctionModel
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import ScenarioError, find_scenario
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.loop.evaluation import measure

REWARD = """
def strict(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "sums" and extra_info["index"] >= 0
    return float(solution_str.endswith(f"#### {ground_truth}"))

def as_dict(solution_str, ground_truth, **kwargs):
    return {"score": 1.0 if ground_truth in solution_str else 0.25, "acc": True}

async def later(data_source, solution_str, ground_truth, extra_info):
    return 0.5

def broken(solution_str):
    return None

def as_numpy(solution_str):
    import numpy
    return {"score": numpy.float32(0.5)}

def as_array(solution_str):
    import numpy
    return numpy.array([0.5, 1.0])

def as_text(solution_str):
    return "0.5"

def ending(solution_str):
    raise SystemExit(3)

not_a_function = 3
"""


def a_row(index: int, split: str = "train", **changes: Any) -> dict[str, Any]:
    return {
        "data_source": "sums",
        "prompt": [
            {"role": "system", "content": f"You add. ({split})"},
            {"role": "user", "content": f"{index} + {index}?"},
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(2 * index)},
        "extra_info": {"split": split, "index": index, "question": f"{index} + {index}?"},
        **changes,
    }


def written(path: Path, rows: list[Any]) -> Path:
    """As parquet, which turns a field that only some rows have into nulls, or as JSON lines."""
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "reward.py").write_text(REWARD)
    written(tmp_path / "test.parquet", [a_row(index, "test") for index in range(3)])
    return written(tmp_path / "train.parquet", [a_row(index) for index in range(10)])


def says(text: str) -> FunctionModel:
    async def turn(request: ChatRequest) -> dict[str, Any]:
        return {"role": "assistant", "content": text}

    return FunctionModel("policy", turn)


async def played(scenario: Any, text: str) -> Trajectory:
    trajectory = await rollout(says(text), scenario, scenario.tasks("train")[3])
    assert trajectory.status == "finished", trajectory.status_reason
    return trajectory


async def test_a_row_is_played_and_scored_as_verl_scores_it(data: Path):
    place = f"{data}?held_out={data.parent / 'test.parquet'}&reward={data.parent / 'reward.py'}:strict&success=1"
    scenario = find_scenario(f"verl:{place}")
    assert (len(scenario.tasks("train")), len(scenario.tasks("held_out"))) == (10, 3)
    right, wrong = await played(scenario, "so it is\n#### 6"), await played(scenario, "#### 7")
    assert right.messages() == [*a_row(3)["prompt"], {"role": "assistant", "content": "so it is\n#### 6"}]
    assert [scenario.hand_reward(each) for each in (right, wrong)] == [1.0, 0.0]
    assert [scenario.success(each) for each in (right, wrong)] == [True, False]
    assert measure(scenario, right)["success"] == 1.0
    task = scenario.tasks("train")[3]
    assert (task.user, task.reference, scenario.name) == ("3 + 3?", "6", "verl_train")


async def test_rewards_may_be_dictionaries_or_coroutines(data: Path):
    reward = data.parent / "reward.py"
    assert (await played_reward(data, f"{reward}:as_dict", "it is 6")) == 1.0
    assert (await played_reward(data, f"{reward}:as_dict", "no idea")) == 0.25
    assert (await played_reward(data, f"{reward}:later", "x")) == 0.5
    with pytest.raises(ScenarioError, match="compute_score gave None"):
        await played_reward(data, f"{reward}:broken", "x")


async def test_a_scalar_of_numpy_is_a_number_and_nothing_else_is_taken_for_one(data: Path):
    reward = data.parent / "reward.py"
    assert (await played_reward(data, f"{reward}:as_numpy", "x")) == 0.5
    for name in ("as_array", "as_text"):
        with pytest.raises(ScenarioError, match="compute_score gave"):
            await played_reward(data, f"{reward}:{name}", "x")


async def test_a_reward_that_ends_the_program_is_told(data: Path):
    with pytest.raises(ScenarioError, match=r"ended with SystemExit\(3\)"):
        await played_reward(data, f"{data.parent / 'reward.py'}:ending", "x")


async def played_reward(data: Path, reward: str, text: str) -> float:
    scenario = verl(f"{data}?held_out={data.parent / 'test.parquet'}&reward={reward}")
    assert scenario.hand_reward is not None
    return scenario.hand_reward(await played(scenario, text))


def test_columns_may_hold_their_objects_as_json_text(tmp_path: Path):
    fields = ("prompt", "reward_model", "extra_info")
    row = a_row(3)
    text = row | {name: json.dumps(row[name]) for name in fields}
    (task,) = read_tasks(written(tmp_path / "rows.parquet", [text]), None)
    assert (task.user, task.reference) == ("3 + 3?", "6")
    assert {name: task.data[name] for name in fields} == {name: row[name] for name in fields}


def test_the_ground_truth_is_kept_from_the_judge_where_it_is_asked(data: Path):
    assert {task.reference for task in verl(f"{data}?reference=no").tasks("train")} == {None}


def test_rows_may_be_json_lines_with_a_prompt_of_text_and_little_else(tmp_path: Path):
    rows = [{"prompt": "Go."}, {"prompt": "Stop.", "reward_model": {"ground_truth": [1]}}]
    path = written(tmp_path / "rows.jsonl", rows)
    first, second = sorted(verl(f"{path}?tasks=2").tasks("train"), key=lambda task: task.user)
    assert (first.user, first.reference, second.reference) == ("Go.", None, "[1]")


def test_equal_rows_have_names_of_their_own_and_one_in_both_files_is_found_out(data: Path, tmp_path: Path):
    twice = written(tmp_path / "twice.jsonl", [a_row(1), a_row(1)])
    tasks = verl(f"{twice}?held_out={data.parent / 'test.parquet'}").tasks("train")
    assert len({task.id for task in tasks}) == 2
    with pytest.raises(ScenarioError, match="both trained on and held out"):
        verl(f"{data}?held_out={twice}")


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("?rewards=a:b", "has no option 'rewards'"),
        ("?turns=0", "no whole number from 1"),
        ("?turns=", "given twice, or empty"),
        ("?turns=2&turns=3", "given twice, or empty"),
        ("?success=1", "needs a reward"),
        ("?success=much&reward=a:b", "is no number"),
        ("?reference=maybe", "neither yes nor no"),
        ("?reward=nothing", "names no function"),
        ("?reward=gavel_has_no_such_module:f", "cannot be imported"),
        ("?reward=json:no_such_name", "cannot be imported"),
        ("?reward=REWARD:not_a_function", "is a int, and no function"),
        ("?reward=missing.py:f", "cannot be imported"),
        ("?held_out=missing.parquet", "missing.parquet"),
        ("?tools=missing.yaml", "missing.yaml"),
    ],
)
def test_a_mistake_in_the_address_is_told(data: Path, query: str, told: str):
    with pytest.raises(ScenarioError) as raised:
        find_scenario(f"verl:{data}{query.replace('REWARD', str(data.parent / 'reward.py'))}")
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"question": "x"}, "it has no prompt"),
        ({"prompt": []}, "no list of messages"),
        ({"prompt": [{"role": "system", "content": "x"}]}, "no list of messages"),
        ({"prompt": [{"role": "user"}]}, "no list of messages"),
        ({"prompt": ["x"]}, "no list of messages"),
        ({"prompt": "x", "extra_info": [1]}, "extra_info is no object"),
        ({"prompt": "x", "reward_model": "rule"}, "reward_model is no object"),
    ],
)
def test_a_row_of_another_shape_is_told_with_its_place(tmp_path: Path, row: dict[str, Any], told: str):
    path = written(tmp_path / "rows.jsonl", [a_row(0), row])
    with pytest.raises(ScenarioError) as raised:
        verl(str(path))
    assert told in str(raised.value)
    assert "2" in str(raised.value)
