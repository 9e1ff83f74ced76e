"""An exported directory and tools of a YAML, with verl's own registry, dataset and configuration."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="make test-adapters installs verl")

import verl as released
from omegaconf import OmegaConf
from verl.tools.tool_registry import load_all_tools

from gavel.integrations.verl.launch import VerlLaunch, export_verl
from gavel.integrations.verl.tools import VerlTools
from gavel.scenarios.scenario import find_scenario

pytestmark = pytest.mark.adapters

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
    config: Any = OmegaConf.load(Path(released.__file__).parent / "trainer" / "config" / "_generated_ppo_trainer.yaml")
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
    answer = await tools.call("add", '{"a": 2, "b": 3}', {"add": {"create_kwargs": {"unit": "m"}}})
    assert (answer.text, answer.reward, answer.error) == ("5 m", 0.5, False)
    for name, arguments, told in [
        ("add", '{"a": 2}', "Error executing tool 'add': KeyError"),
        ("add", "{", "Invalid JSON"),
        ("subtract", "{}", "Available tools: add"),
    ]:
        answer = await tools.call(name, arguments, {})
        assert answer.error
        assert told in answer.text
