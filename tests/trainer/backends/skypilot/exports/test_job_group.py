"""The job group: a trainer, the vLLM that samples for it, and a judge service."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gavel.trainer.backends.skypilot.cluster_settings import ClusterError
from gavel.trainer.backends.skypilot.exports.exported_job import GroupParts, job_group
from tests.trainer.backends.skypilot.exports.an_export import a_job

PARTS = GroupParts("Qwen/Qwen3-4B", lora_rank=20, judge="openai/gpt-5-mini", judge_secrets=("OPENAI_API_KEY",))


def parts_of(text: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    header, *tasks = yaml.safe_load_all(text)
    return header, {task["name"]: task for task in tasks}


def test_three_tasks_find_each_other_and_end_with_the_trainer() -> None:
    header, tasks = parts_of(job_group(a_job("train.py", cluster="long", num_nodes=2), PARTS))
    assert (header["name"], header["execution"], header["primary_tasks"]) == ("long", "parallel", ["trainer"])
    assert list(tasks) == ["trainer", "vllm", "judge"]
    assert tasks["trainer"]["envs"]["GAVEL_JUDGE_URL"] == "http://judge-0.long:8080"
    assert "--port 8080" in tasks["judge"]["run"]
    assert tasks["trainer"]["envs"]["GAVEL_VLLM_URL"] == "http://vllm-0.long:8000"
    assert "serve Qwen/Qwen3-4B --host 0.0.0.0 --port 8000" in tasks["vllm"]["run"]
    assert "--max-lora-rank 32" in tasks["vllm"]["run"]
    assert tasks["trainer"]["num_nodes"] == 2


def test_a_run_file_samples_from_the_group_s_vllm_and_needs_no_service() -> None:
    _, tasks = parts_of(job_group(a_job("run.toml"), GroupParts("Qwen/Qwen3-4B")))
    assert list(tasks) == ["trainer", "vllm"]
    command = "-m gavel train run.toml --model Qwen/Qwen3-4B --lora-rank 16 --engine http://vllm-0.gavel:8000"
    assert f"set -- {command}\n" in tasks["trainer"]["run"]


def test_a_scenario_s_name_needs_no_folder_and_is_judged_in_its_own_process() -> None:
    text = job_group(a_job("returns_desk", "--steps", "3"), PARTS)
    _, tasks = parts_of(text)
    assert list(tasks) == ["trainer", "vllm"]
    command = "-m gavel train returns_desk --steps 3 --model Qwen/Qwen3-4B --lora-rank 20"
    command += " --engine http://vllm-0.gavel:8000 --judge openai/gpt-5-mini"
    assert f"set -- {command}\n" in tasks["trainer"]["run"]
    assert "workdir" not in tasks["trainer"]
    assert tasks["trainer"]["secrets"] == {"OPENAI_API_KEY": None}
    assert "GAVEL_JUDGE_URL" not in tasks["trainer"]["envs"]
    assert "# sky jobs launch FILE --secret OPENAI_API_KEY\n" in text
    _, tasks = parts_of(job_group(a_job("desk.py:returns"), PARTS))
    assert "set -- -m gavel train desk.py:returns --model" in tasks["trainer"]["run"]
    assert tasks["trainer"]["workdir"] == "."


def test_trainer_and_vllm_see_the_same_runs_and_a_bucket_is_no_place_for_them() -> None:
    _, tasks = parts_of(job_group(a_job("run.toml"), GroupParts("Qwen/Qwen3-4B", shared="a-volume")))
    assert [task["volumes"] for task in tasks.values()] == [{"/gavel-runs": "a-volume"}] * 2
    assert tasks["trainer"]["envs"]["GAVEL_RUNS"] == "/gavel-runs"
    with pytest.raises(ClusterError, match=r"(?s)s3://bucket/runs: a mounted bucket.*sky volumes ls"):
        job_group(a_job("run.toml"), GroupParts("Qwen/Qwen3-4B", shared="s3://bucket/runs"))


def test_secrets_are_named_for_the_tasks_that_need_them_and_have_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1234567")
    text = job_group(a_job("train.py", secrets=("HF_TOKEN", "WANDB_API_KEY")), PARTS)
    _, tasks = parts_of(text)
    assert tasks["trainer"]["secrets"] == dict.fromkeys(["HF_TOKEN", "WANDB_API_KEY", "GAVEL_JUDGE_KEY"])
    assert tasks["vllm"]["secrets"] == {"HF_TOKEN": None}
    assert tasks["judge"]["secrets"] == dict.fromkeys(["GAVEL_JUDGE_KEY", "OPENAI_API_KEY"])
    for name in ("HF_TOKEN", "WANDB_API_KEY", "GAVEL_JUDGE_KEY", "OPENAI_API_KEY"):
        assert f" --secret {name}" in text
    assert "sk-1234567" not in text


def test_a_rank_that_vllm_cannot_serve_is_told() -> None:
    assert "--max-lora-rank 512" in job_group(a_job("run.toml"), GroupParts("Qwen/Qwen3-4B", lora_rank=257))
    with pytest.raises(ClusterError, match=r"up to 512, not 1000"):
        job_group(a_job("run.toml"), GroupParts("Qwen/Qwen3-4B", lora_rank=1000))


def test_a_server_is_no_job_group() -> None:
    with pytest.raises(ClusterError, match=r"(?s)runs a program to its end.*--job-group run.toml"):
        job_group(a_job(), PARTS)


@pytest.mark.parametrize("task", ["trainer", "vllm", "judge"])
@pytest.mark.parametrize("script", ["setup", "run"])
def test_shellcheck_finds_nothing(task: str, script: str, tmp_path: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed (Debian's package shellcheck)")
    _, tasks = parts_of(job_group(a_job("train.py"), PARTS))
    (tmp_path / "script").write_text(tasks[task][script])
    found = subprocess.run(["shellcheck", "--shell=bash", tmp_path / "script"], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
