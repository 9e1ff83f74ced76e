"""The batch script, read by shellcheck and run under a stand-in for Slurm."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gavel.trainer.backends.skypilot.exports.exported_job import slurm_script
from gavel.trainer.backends.skypilot.own_package import OwnPackage
from tests.backend_server import free_port
from tests.limits import HANG_SECONDS
from tests.trainer.backends.skypilot.exports.an_export import a_job, checked

SLURM = Path(__file__).parents[4] / "fake_slurm"


@pytest.mark.parametrize("program", [None, "run.toml", "train.py"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_shellcheck_finds_nothing(program: str | None, nodes: int, tmp_path: Path) -> None:
    job = a_job(program, num_nodes=nodes, secrets=("HF_TOKEN",), setup="echo 'mine' \"$HOME\"")
    (tmp_path / "job.sh").write_text(slurm_script(job))
    checked("shellcheck", "--severity=style", str(tmp_path / "job.sh"))


def sbatch(script: str, folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """As Slurm runs a batch script: on the first of its nodes, with the environment that it was submitted from."""
    (folder / "job.sh").write_text(script)
    return subprocess.run(
        [SLURM / "sbatch", "job.sh"],
        cwd=folder,
        env={"PATH": f"{SLURM}:{os.environ['PATH']}", "HOME": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )


def test_every_node_gets_its_rank_and_the_names_of_all(tmp_path: Path) -> None:
    (tmp_path / "python").write_text(
        "#!/bin/sh\n"
        'echo "$SKYPILOT_NODE_RANK $SKYPILOT_NUM_NODES $SKYPILOT_NUM_GPUS_PER_NODE" $SKYPILOT_NODE_IPS "$@"\n'
    )
    (tmp_path / "python").chmod(0o755)
    job = a_job("train.py", num_nodes=3, accelerators="H100:4", secrets=("HF_TOKEN",))
    done = sbatch(slurm_script(job), tmp_path, GAVEL_PYTHON=str(tmp_path / "python"), HF_TOKEN="hf_1234567")
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        head = f"{rank} 3 4 localhost localhost localhost -m torch.distributed.run --nnodes 3 --node-rank {rank}"
        assert any(line.startswith(head) for line in done.stdout.splitlines()), done.stdout
    assert "hf_1234567" not in done.stdout + done.stderr


def test_a_secret_that_is_not_there_stops_it_before_anything_runs(tmp_path: Path) -> None:
    done = sbatch(slurm_script(a_job(secrets=("HF_TOKEN",))), tmp_path, GAVEL_BACKEND_KEY="k" * 20)
    assert done.returncode != 0
    assert "HF_TOKEN: is not set: export it before sbatch" in done.stderr


def test_gavel_is_installed_once_from_the_wheel_beside_the_script(tmp_path: Path) -> None:
    python = tmp_path / ".gavel" / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@" >>"$HOME/called"\n')
    python.chmod(0o755)
    done = sbatch(slurm_script(a_job("train.py", num_nodes=2)), tmp_path)
    assert done.returncode == 0, done.stderr
    called = (tmp_path / "called").read_text().splitlines()
    assert [line for line in called if "pip" in line][1].endswith(
        f"install {tmp_path}/gavel_rl-1.2-py3-none-any.whl[service,train]"
    )
    assert len(called) == 4


def test_a_node_that_fails_ends_the_job(tmp_path: Path) -> None:
    (tmp_path / "python").write_text('#!/bin/sh\n[ "$SKYPILOT_NODE_RANK" = 1 ] && exit 3\nexec sleep 60\n')
    (tmp_path / "python").chmod(0o755)
    job = a_job("train.py", num_nodes=2)
    assert sbatch(slurm_script(job), tmp_path, GAVEL_PYTHON=str(tmp_path / "python")).returncode == 3


@pytest.mark.slow
@pytest.mark.thorough
def test_two_nodes_of_slurm_train_a_run_together(tmp_path: Path) -> None:
    run = {"steps": 1, "tasks_per_step": 2, "group_size": 2, "evaluation_tasks": 4}
    lines = ["[loop]", *(f"{name} = {json.dumps(value)}" for name, value in run.items())]
    (tmp_path / "run.toml").write_text(
        'scenario = "returns_desk"\n[model]\nbase_model = "embedded/returns-desk"\nname = "clerk"\n' + "\n".join(lines)
    )
    job = a_job("run.toml", package=OwnPackage("id", "==1"), num_nodes=2, accelerators=None)
    given = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), "SLURM_JOB_ID": str(free_port())}
    done = sbatch(slurm_script(job), tmp_path, GAVEL_PYTHON=sys.executable, **given)
    assert done.returncode == 0, done.stdout + done.stderr
    metrics = (tmp_path / "runs" / "returns_desk" / "clerk" / "metrics.jsonl").read_text().splitlines()
    assert [row["step"] for row in map(json.loads, metrics) if row["split"] == "train"] == [1]
