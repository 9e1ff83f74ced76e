"""verl's own release: its reward loop with both hooks, and exported directories in its registry and configuration."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="make test-adapters installs verl")

import numpy as np
import ray
import torch
import verl
from omegaconf import DictConfig, OmegaConf, open_dict
from verl import DataProto
from verl.experimental.reward_loop.reward_loop import RewardLoopManager, RewardLoopWorker
from verl.tools.tool_registry import load_all_tools

import gavel
from gavel.integrations._rewards import member
from gavel.integrations.verl.launch import VerlLaunch, export_verl
from gavel.integrations.verl.tools import VerlTools
from gavel.scenarios.scenario import find_scenario
from gavel.scenarios.tools import Toolbox
from tests.integrations.conftest import JudgeService
from tests.integrations.judges import by_letters_and_position
from tests.integrations.tiny_policy import tiny_policy
from tests.judge.service.in_process import MODEL

pytestmark = pytest.mark.adapters

N = 4
ANSWERS = ["a b", "a a", "b b", "a c d e"]


@pytest.fixture
def config(tmp_path: Path) -> DictConfig:
    """verl's whole default configuration, with a tokenizer of this test."""
    _, tokenizer = tiny_policy()
    tokenizer.save_pretrained(tmp_path / "model")
    loaded = OmegaConf.load(Path(verl.__file__).parent / "trainer" / "config" / "_generated_ppo_trainer.yaml")
    assert isinstance(loaded, DictConfig)
    with open_dict(loaded):
        loaded.actor_rollout_ref.model.path = str(tmp_path / "model")
        loaded.actor_rollout_ref.model.tokenizer_path = None
        loaded.actor_rollout_ref.rollout.n = N
        loaded.reward.num_workers = 2
    return loaded


def with_manager(config: DictConfig, url: str, **options: Any) -> DictConfig:
    """As the command line of docs/adapters.md sets it."""
    with open_dict(config):
        config.reward.reward_manager.source = "importlib"
        config.reward.reward_manager.name = "JudgeRewardManager"
        config.reward.reward_manager.module.path = "pkg://gavel.integrations.verl.manager"
        config.reward.reward_kwargs = {"judge": {"service": url, **options}}
    return config


def with_compute_score(config: DictConfig, folder: Path, url: str) -> DictConfig:
    """With a file of the user's own."""
    program = f"import gavel\n\ncompute_score = gavel.integrations.verl.compute_score({url!r}, n={N}, run='own-file')\n"
    (folder / "judge_reward.py").write_text(program)
    with open_dict(config):
        config.reward.custom_reward_function.path = str(folder / "judge_reward.py")
    return config


def batch(prefix: str, tasks: tuple[str, ...] = ("one", "two")) -> DataProto:
    """Samples as verl's agent loop sends them to a reward worker: `N` of each task, right-padded."""
    _, tokenizer = tiny_policy()
    width, rows = 5, [(task, answer) for task in tasks for answer in ANSWERS]
    responses, masks = [], []
    for _, answer in rows:
        ids = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
        responses.append(ids + [tokenizer.pad_token_id] * (width - len(ids)))
        masks.append([1, 1] + [1] * len(ids) + [0] * (width - len(ids)))
    prompts = [[{"role": "user", "content": f"write {prefix} {task}"}] for task, _ in rows]
    objects: dict[str, list[Any]] = {
        "uid": [f"{prefix}-{task}" for task, _ in rows],
        "raw_prompt": prompts,
        "data_source": ["letters"] * len(rows),
        "reward_model": [{"style": "rule", "ground_truth": "a"}] * len(rows),
        "extra_info": [{"split": "train", "index": number} for number in range(len(rows))],
        "tool_extra_fields": [{"raw_prompt": prompt} for prompt in prompts],
    }
    return DataProto.from_dict(
        tensors={
            "prompts": torch.ones(len(rows), 2, dtype=torch.long),
            "responses": torch.tensor(responses),
            "attention_mask": torch.tensor(masks),
        },
        non_tensors={name: as_objects(values) for name, values in objects.items()},
    )


def as_objects(values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


async def in_python(service: JudgeService, prefix: str, task: str) -> list[float | None]:
    judge = gavel.Judge(gavel.Juror(MODEL, params=service.endpoint.params), orders=2)
    members = [member(f"write {prefix} {task}", answer) for answer in ANSWERS]
    group = gavel.TrajectoryGroup(members, metadata={"truth": {"reference": "a"}})
    return [trajectory.reward for trajectory in await judge.score(group)]


@pytest.mark.parametrize("hook", ["manager", "compute_score"])
async def test_a_reward_worker_gives_each_sample_the_score_of_its_group(
    hook: str, config: DictConfig, tmp_path: Path, service: JudgeService
):
    service.endpoint.script = [by_letters_and_position]
    if hook == "manager":
        worker = RewardLoopWorker(with_manager(config, service.url))
    else:
        worker = RewardLoopWorker(with_compute_score(config, tmp_path, service.url))
    results = await worker.compute_score_batch(batch(hook))
    rewards = [result["reward_score"] for result in results]
    assert rewards[:N] == await in_python(service, hook, "one")
    assert rewards[N:] == await in_python(service, hook, "two")
    assert {result["reward_extra_info"]["judge_unscored"] for result in results} == {0.0}


def test_groups_over_two_worker_processes_of_ray_are_judged_whole(config: DictConfig, service: JudgeService):
    service.endpoint.script = [by_letters_and_position]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        data = batch("ray", ("one", "two"))
        data.reorder(torch.tensor([0, 4, 1, 5, 2, 6, 3, 7]))  # each worker is sent a half of each group
        scored = RewardLoopManager(with_manager(config, service.url)).compute_rm_score(data)
    finally:
        ray.shutdown()
    by_uid = {"ray-one": [], "ray-two": []}
    for uid, row in zip(data.non_tensor_batch["uid"], scored.batch["rm_scores"].sum(dim=-1).tolist(), strict=True):
        by_uid[uid].append(row)
    for task in ("one", "two"):
        expected = asyncio.run(in_python(service, "ray", task))
        assert by_uid[f"ray-{task}"] == pytest.approx(expected)  # verl keeps float32


CALCULATOR = """
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse


class Calculator(BaseTool):
    released = []

    async def create(self, instance_id=None, **kwargs):
        return kwargs["create_kwargs"].get("unit", ""), ToolResponse()

    async def execute(self, instance_id, parameters, **kwargs):
        value = parameters["a"] + parameters["b"]
        return ToolResponse(text=f"{value} {instance_id}"), 0.5, {}

    async def release(self, instance_id, **kwargs):
        self.released.append(instance_id)
"""
YAML = """
tools:
  - class_name: calculator_of_a_test.Calculator
    config: {type: native}
    tool_schema:
      type: function
      function:
        name: add
        description: Adds.
        parameters:
          type: object
          properties: {a: {type: number}, b: {type: number}}
          required: [a, b]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    launch = VerlLaunch("returns_desk", "some/model", "http://127.0.0.1:1", group_size=4, train=8, held_out=4)
    export_verl(find_scenario("returns_desk"), launch, tmp_path / "out")
    return tmp_path / "out"


async def test_verls_registry_makes_the_exported_tools_and_they_answer_for_the_rows_task(folder: Path):
    from pyarrow import parquet

    tools = {tool.name: tool for tool in load_all_tools(str(folder / "tools.yaml"), None)}
    (row, *_) = parquet.read_table(folder / "train.parquet").to_pylist()
    task = find_scenario("returns_desk").tasks("train")[0]
    kwargs = row["extra_info"]["tools_kwargs"]["look_up_order"]
    tool = tools["look_up_order"]
    instance, _ = await tool.create(create_kwargs=kwargs["create_kwargs"])
    order = next(word for word in task.user.replace(".", " ").split() if word.isdigit())
    response, reward, metrics = await tool.execute(instance, {"order_id": order}, agent_data=None)
    await tool.release(instance)
    expected = await find_scenario("returns_desk").toolbox.call("look_up_order", f'{{"order_id": "{order}"}}', task)
    assert (response.text, reward, metrics) == (expected.content, 0.0, {"tool_error": 0.0})


def test_the_run_scripts_options_are_known_to_verls_configuration(folder: Path):
    config: Any = OmegaConf.load(Path(verl.__file__).parent / "trainer" / "config" / "_generated_ppo_trainer.yaml")
    lines = (folder / "run.sh").read_text().splitlines()
    names = [line.strip().partition("=")[0] for line in lines if "=" in line and line.startswith("    ")]
    assert len(names) > 8
    for name in names:
        assert OmegaConf.select(config, name, default="absent") != "absent", name


async def test_a_tool_of_verls_own_base_class_is_called_as_its_agent_loop_calls_it(tmp_path: Path):
    (tmp_path / "calculator_of_a_test.py").write_text(CALCULATOR)
    (tmp_path / "tools.yaml").write_text(YAML)
    tools = VerlTools(tmp_path / "tools.yaml")
    assert tools.schemas[0]["function"]["name"] == "add"
    metrics: dict[str, Any] = {"tool_reward": 0.0}
    offered = Toolbox(())
    tools.offer(offered, {"add": {"create_kwargs": {"unit": "m"}}}, metrics)
    answer = await offered.call("add", '{"a": 2, "b": 3}')
    assert (answer.content, answer.error, metrics) == ("5 m", False, {"tool_reward": 0.5})
    for name, arguments, told in [
        ("add", '{"a": 2}', "Error executing tool 'add': KeyError"),
        ("add", "{", "Invalid JSON"),
        ("subtract", "{}", "add"),
    ]:
        answer = await offered.call(name, arguments)
        assert answer.error
        assert told in answer.content
