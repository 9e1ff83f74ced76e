"""The directory that verl users launch."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

import gavel
from gavel.integrations.verl import verl_scenario as verl
from gavel.integrations.verl.launch import VerlExportError, VerlLaunch, export_verl
from gavel.scenarios.scenario import Scenario, find_scenario

pytest.importorskip("pyarrow")
from pyarrow import parquet

LAUNCH = VerlLaunch("returns_desk", "some/model", "http://judge:8080", group_size=4, train=20, held_out=5)


def test_the_rows_are_the_tasks_and_hide_their_data_from_the_agent(tmp_path: Path):
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


def test_the_dataset_reads_back_as_a_scenario(tmp_path: Path):
    export_verl(find_scenario("returns_desk"), LAUNCH, tmp_path / "out")
    back = verl(f"{tmp_path / 'out' / 'train.parquet'}?held_out={tmp_path / 'out' / 'test.parquet'}")
    assert [task.user for task in back.tasks("train")] == [
        task.user for task in find_scenario("returns_desk").tasks("train")[:20]
    ]


def test_the_reward_file_and_the_run_script_are_sound(tmp_path: Path):
    export_verl(find_scenario("returns_desk"), LAUNCH, tmp_path / "out")
    known: dict[str, object] = {}
    exec((tmp_path / "out" / "judge_reward.py").read_text(), known)
    assert callable(known["compute_score"])
    assert known["RUBRIC"] == find_scenario("returns_desk").rubric
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


def test_every_property_of_a_tool_has_a_type_as_verl_wants(tmp_path: Path):
    def search(text: str, most: int | None = None, tags: list[str] | None = None) -> str:
        """Search.

        Args:
            text: What for.
        """
        return text

    scenario = Scenario("finder", tools=[search], tasks=[gavel.Task(user=str(n)) for n in range(5)])
    export_verl(scenario, LAUNCH, tmp_path / "out")
    (tool,) = yaml.safe_load((tmp_path / "out" / "tools.yaml").read_text())["tools"]
    fields = tool["tool_schema"]["function"]["parameters"]["properties"]
    assert {name: field["type"] for name, field in fields.items()} == {
        "text": "string",
        "most": ["integer", "null"],
        "tags": ["array", "null"],
    }


def test_a_scenario_without_tools_is_a_single_turn(tmp_path: Path):
    scenario = Scenario("plain", tasks=[gavel.Task(user=str(n), reference="x") for n in range(5)], held_out=0.0)
    files = export_verl(scenario, LAUNCH, tmp_path / "out")
    assert "tools.yaml" not in {file.name for file in files}
    (row, *_) = parquet.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert (row["agent_name"], row["reward_model"]["ground_truth"]) == ("single_turn_agent", "x")
    assert "multi_turn" not in (tmp_path / "out" / "run.sh").read_text()


def test_what_verl_cannot_play_and_what_is_there_is_refused(tmp_path: Path):
    with pytest.raises(VerlExportError, match="a rollout of its own"):
        export_verl(find_scenario("verl:" + str(a_dataset(tmp_path))), LAUNCH, tmp_path / "out")
    with pytest.raises(VerlExportError, match="an environment"):
        export_verl(find_scenario("text_adventure"), LAUNCH, tmp_path / "out")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.txt").write_text("keep")
    with pytest.raises(VerlExportError, match="exists already"):
        export_verl(find_scenario("returns_desk"), LAUNCH, tmp_path / "there")


def a_dataset(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(f'{{"prompt": "{n}?"}}' for n in range(10)))
    return path
