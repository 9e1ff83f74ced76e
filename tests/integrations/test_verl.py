"""verl without verl: its reward hooks over a judge service, its datasets as scenarios, scenarios as its directories.

With verl's own release they run in test_verl_release.py.
"""

import asyncio
import json
import math
import os
import random
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest
import torch
from pyarrow import parquet
from typer.testing import CliRunner

import gavel
from gavel.cli.app import app
from gavel.integrations._rewards import member
from gavel.integrations.verl import compute_score, verl_scenario
from gavel.integrations.verl.launch import VerlExportError, VerlLaunch, export_verl
from gavel.integrations.verl.manager import JudgeRewardManager
from gavel.scenarios.errors import JudgeError
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario, ScenarioError, find_scenario
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.loop.evaluation import measure
from tests.endpoint import says
from tests.integrations.conftest import JudgeService
from tests.integrations.judges import by_letters_and_position
from tests.judge.service.in_process import MODEL
from tests.scenarios.scripts import scripted

TASKS = ["one", "two", "three"]
ANSWERS = ["a b", "a a", "b b", "a c d e"]


def sample(task: str, answer: str, **info: Any) -> dict[str, Any]:
    """What verl's reward manager calls compute_score with."""
    prompt = [{"role": "user", "content": f"write {task}"}]
    extra = {"index": 3, "num_turns": None, "rollout_reward_scores": {}, "raw_prompt": prompt, **info}
    return {"data_source": "letters", "solution_str": answer, "ground_truth": "a", "extra_info": extra}


async def scored(compute: Callable[..., Awaitable[dict[str, Any]]], samples: list[dict[str, Any]]) -> list[float]:
    """The scores of samples that are sent at once, in random order."""
    order = random.Random(0).sample(range(len(samples)), len(samples))
    found = await asyncio.gather(*(compute(**samples[number]) for number in order))
    return [result["score"] for _, result in sorted(zip(order, found, strict=True), key=lambda pair: pair[0])]


@pytest.mark.slow
async def test_each_sample_gets_its_score_of_the_whole_group(service: JudgeService):
    service.endpoint.script = [by_letters_and_position]
    compute = compute_score(service.url, n=4)
    rewards = await scored(compute, [sample(task, answer) for task in TASKS for answer in ANSWERS])
    judge = gavel.Judge(gavel.Juror(MODEL, params=service.endpoint.params), orders=2)
    for number, task in enumerate(TASKS):
        members = [member(f"write {task}", answer) for answer in ANSWERS]
        judged = await judge.score(gavel.TrajectoryGroup(members, metadata={"truth": {"reference": "a"}}))
        assert rewards[4 * number : 4 * number + 4] == [trajectory.reward for trajectory in judged]


@pytest.mark.slow
async def test_a_prompt_that_comes_back_is_the_next_group(service: JudgeService):
    compute = compute_score(service.url, n=2)
    assert await scored(compute, [sample("task 2", "a b"), sample("task 2", "a")]) == [0.5, 1.0]
    assert await scored(compute, [sample("task 2", "b"), sample("task 2", "a")]) == [0.0, 1.0]
    two_groups = await scored(compute, [sample("task 2", answer) for answer in ("a", "b", "a b", "a c d e")])
    assert sorted(two_groups) == [0.0, 0.25, 0.5, 1.0]


@pytest.mark.slow
async def test_what_the_judge_cannot_score_is_an_error_or_equal_in_its_group(service: JudgeService):
    service.endpoint.script = [lambda request: says("I cannot tell.")]
    pair = [sample("task 3", "a b"), sample("task 3", "a")]
    with pytest.raises(JudgeError, match="not scored whole"):
        await scored(compute_score(service.url, n=2), pair)
    results = await asyncio.gather(
        *(compute_score(service.url, n=2, run="other", unscored="group")(**one) for one in pair)
    )
    assert [(one["score"], one["judge_unscored"]) for one in results] == [(0.5, 1.0)] * 2
    assert all(math.isnan(one["judge_score"]) and one["judge_explanation"] for one in results)


@pytest.mark.slow
async def test_a_sample_without_its_prompt_is_refused_and_the_field_can_be_named(service: JudgeService):
    bare = {**sample("task 6", "a"), "extra_info": {"question": "write task 6"}}
    with pytest.raises(JudgeError, match="no 'raw_prompt'"):
        await compute_score(service.url, n=2)(**bare)
    other = {**bare, "solution_str": "b"}
    assert await scored(compute_score(service.url, n=2, prompt="question"), [bare, other]) == [1.0, 0.0]


@dataclass
class Item:
    """A `DataProtoItem`."""

    batch: dict[str, Any]
    non_tensor_batch: dict[str, Any]


class Letters:
    """A tokenizer of letters, 0 is padding."""

    def decode(self, ids: Any, skip_special_tokens: bool) -> str:
        return " ".join("?abcdefgh"[int(token)] for token in ids)


def row(uid: str, *ids: int, split: str = "train") -> list[Item]:
    """A `DataProto` of one sample: a prompt of two tokens, a response padded to four."""
    padding = [0] * (4 - len(ids))
    batch = {
        "responses": torch.tensor([*ids, *padding]),
        "attention_mask": torch.tensor([1] * (2 + len(ids)) + padding),
    }
    known = {"uid": uid, "data_source": "letters", "raw_prompt": [{"role": "user", "content": "write"}]}
    known |= {"reward_model": {"style": "rule", "ground_truth": "a"}, "extra_info": {"split": split, "index": 0}}
    return [Item(batch, known)]


def made(url: str, n: int = 2, val_n: int = 1, **options: Any) -> JudgeRewardManager:
    rollout = SimpleNamespace(n=n, val_kwargs=SimpleNamespace(n=val_n))
    reward = {"reward_kwargs": {"judge": {"service": url, **options}}}
    config = SimpleNamespace(reward=reward, actor_rollout_ref=SimpleNamespace(rollout=rollout))
    return JudgeRewardManager(config=config, tokenizer=Letters(), compute_score=None, reward_router_address=None)


@pytest.mark.slow
async def test_samples_of_one_uid_are_a_group_and_one_in_validation_is_no_number(service: JudgeService):
    manager = made(service.url)
    alone = await manager.run_single(row("u1", 1, split="test"))
    assert math.isnan(alone["reward_score"])
    assert alone["reward_extra_info"]["judge_unscored"] == 1.0
    assert service.endpoint.requests == []
    rows = [row("u1", 1, 2), row("u2", 2), row("u1", 1), row("u2", 1, 3, 4, 5)]
    results = await asyncio.gather(*map(manager.run_single, rows))
    assert [result["reward_score"] for result in results] == [0.5, 0.0, 1.0, 0.25]
    assert len({tuple(result["reward_extra_info"]) for result in [alone, *results]}) == 1


@pytest.mark.slow
async def test_a_sample_that_comes_too_late_has_the_reward_of_its_group_which_was_not_judged(service: JudgeService):
    manager = made(service.url, unscored="group", deadline=0.5)
    early = await manager.run_single(row("u4", 1))
    late = await manager.run_single(row("u4", 2))
    assert early["reward_score"] == late["reward_score"] == 0.5
    assert late["reward_extra_info"]["judge_unscored"] == 1.0
    assert service.endpoint.requests == []
    with pytest.raises(JudgeError):
        await made(service.url, deadline=0.5).run_single(row("u5", 1))


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
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "reward.py").write_text(REWARD)
    written(tmp_path / "test.parquet", [a_row(index, "test") for index in range(3)])
    return written(tmp_path / "train.parquet", [a_row(index) for index in range(10)])


async def played(scenario: Any, text: str) -> Trajectory:
    trajectory = await rollout(scripted(text), scenario, scenario.tasks("train")[3])
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


@pytest.mark.parametrize(
    ("name", "given"),
    [("as_dict", 0.25), ("later", 0.5), ("as_numpy", 0.5), ("broken", None)],
)
async def test_a_reward_may_have_any_form_that_verl_takes(data: Path, name: str, given: float | None):
    scenario = verl_scenario(f"{data}?reward={data.parent / 'reward.py'}:{name}")
    found = await played(scenario, "no idea")
    if given is None:
        with pytest.raises(ScenarioError, match="compute_score gave"):
            scenario.hand_reward(found)
    else:
        assert scenario.hand_reward(found) == given


def test_equal_rows_have_names_of_their_own_and_what_is_no_row_or_in_both_files_is_told(data: Path, tmp_path: Path):
    for row, told in [
        ({"prompt": [{"role": "system", "content": "x"}]}, "no list of messages"),
        ({"prompt": "x", "extra_info": [1]}, "extra_info is no object"),
    ]:
        with pytest.raises(ScenarioError, match=f"2.*{told}"):
            verl_scenario(str(written(tmp_path / "rows.jsonl", [a_row(0), row])))
    twice = written(tmp_path / "twice.jsonl", [a_row(1), a_row(1)])
    tasks = verl_scenario(f"{twice}?held_out={data.parent / 'test.parquet'}").tasks("train")
    assert len({task.id for task in tasks}) == 2
    with pytest.raises(ScenarioError, match="both trained on and held out"):
        verl_scenario(f"{data}?held_out={twice}")


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("?rewards=a:b", "rewards is no option"),
        ("?success=1", "needs a reward"),
        ("?reward=nothing", "names no function"),
        ("?reward=REWARD:not_a_function", "is a int, and no function"),
        ("?reward=missing.py:f", "there is no file"),
        ("?held_out=missing.parquet", "missing.parquet"),
    ],
)
def test_a_mistake_in_the_address_is_told(data: Path, query: str, told: str):
    with pytest.raises(ScenarioError) as raised:
        find_scenario(f"verl:{data}{query.replace('REWARD', str(data.parent / 'reward.py'))}")
    assert told in str(raised.value)


LAUNCH = VerlLaunch("returns_desk", "some/model", "http://judge:8080", group_size=4, train=20, held_out=5)


def test_the_rows_are_the_tasks_and_the_reward_file_and_the_run_script_are_sound(tmp_path: Path):
    scenario = find_scenario("returns_desk")
    files = export_verl(scenario, LAUNCH, tmp_path / "out")
    assert {file.name for file in files} == {
        *("train.parquet", "test.parquet", "judge_reward.py", "tools.yaml", "run.sh", "README.md")
    }
    rows = parquet.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert (len(rows), parquet.read_table(tmp_path / "out" / "test.parquet").num_rows) == (20, 5)
    task = scenario.tasks("train")[7]
    row = rows[7]
    assert row["prompt"] == [{"role": "system", "content": scenario.system}, {"role": "user", "content": task.user}]
    assert (row["data_source"], row["agent_name"], row["extra_info"]["index"]) == ("returns_desk", "tool_agent", 7)
    kwargs = row["extra_info"]["tools_kwargs"]
    assert set(kwargs) == {tool.name for tool in scenario.toolbox}
    assert gavel.Task.model_validate_json(kwargs["refund"]["create_kwargs"]["task"]) == task
    known: dict[str, object] = {}
    exec((tmp_path / "out" / "judge_reward.py").read_text(), known)
    assert callable(known["compute_score"])
    assert known["RUBRIC"] == scenario.rubric
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    told = subprocess.run(
        [tmp_path / "out" / "run.sh", "trainer.total_epochs=1"],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"},
        check=True,
        timeout=60,
    ).stdout.splitlines()
    assert told[:3] == ["-m", "verl.trainer.main_ppo", "algorithm.adv_estimator=grpo"]
    assert f"data.train_files={tmp_path / 'out' / 'train.parquet'}" in told
    assert "actor_rollout_ref.rollout.n=4" in told
    assert told[-1] == "trainer.total_epochs=1"


def test_a_scenario_without_tools_is_a_single_turn(tmp_path: Path):
    scenario = Scenario("plain", tasks=[gavel.Task(user=str(n), reference="x") for n in range(5)], held_out=0.0)
    files = export_verl(scenario, LAUNCH, tmp_path / "out")
    assert "tools.yaml" not in {file.name for file in files}
    (row, *_) = parquet.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert (row["agent_name"], row["reward_model"]["ground_truth"]) == ("single_turn_agent", "x")
    assert "multi_turn" not in (tmp_path / "out" / "run.sh").read_text()


def test_what_verl_cannot_play_and_what_is_there_is_refused_and_test_rows_are_no_more_than_others(tmp_path, data):
    with pytest.raises(VerlExportError, match="a rollout of its own"):
        export_verl(find_scenario(f"verl:{data}"), LAUNCH, tmp_path / "out")
    with pytest.raises(VerlExportError, match="an environment"):
        export_verl(find_scenario("maze"), LAUNCH, tmp_path / "out")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.txt").write_text("keep")
    with pytest.raises(VerlExportError, match="exists already"):
        export_verl(find_scenario("returns_desk"), LAUNCH, tmp_path / "there")
    asked = ["export-verl", "returns_desk", "--out", str(tmp_path / "a"), "--train", "10"]
    assert CliRunner().invoke(app, asked).exit_code == 0
    assert parquet.read_table(tmp_path / "a" / "test.parquet").num_rows == 10
