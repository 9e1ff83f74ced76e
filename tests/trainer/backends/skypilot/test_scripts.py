"""The setup installs once, and the run script starts what the nodes and GPUs ask for."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gavel.trainer.backends.skypilot.cluster_task import run_script, setup_script
from gavel.trainer.backends.skypilot.own_package import OwnPackage
from tests.limits import HANG_SECONDS

PACKAGE = OwnPackage("abc", "==1.2")
_RECORDER = '#!/bin/sh\nprintf "%s\\n" "$*" >>"$HOME/called"\n'


def bash(script: str, home: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", "-c", script],
        env={"PATH": os.environ["PATH"], "HOME": str(home), **environment},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )


def recorder(path: Path) -> Path:
    """A program that writes down how it is called."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_RECORDER)
    path.chmod(0o755)
    return path


def called(home: Path) -> list[str]:
    return (home / "called").read_text().splitlines()


@pytest.mark.parametrize("script", [setup_script(PACKAGE, "echo more"), run_script(["-m", "gavel", "a b", "~/c d"])])
def test_shellcheck_finds_nothing(script: str, tmp_path: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed (Debian's package shellcheck)")
    (tmp_path / "script").write_text(script)
    found = subprocess.run(
        ["shellcheck", "--shell=bash", "--severity=style", str(tmp_path / "script")], capture_output=True, text=True
    )
    assert found.returncode == 0, found.stdout


def test_gavel_is_installed_once_and_again_for_another_package(tmp_path: Path) -> None:
    recorder(tmp_path / ".gavel" / "venv" / "bin" / "python")
    for _ in range(2):
        assert bash(setup_script(PACKAGE, 'echo more >>"$HOME/more"'), tmp_path).returncode == 0
    assert len(called(tmp_path)) == 2
    assert called(tmp_path)[1].endswith("install gavel-rl[service,train]==1.2")
    assert (tmp_path / "more").read_text() == "more\nmore\n"
    assert bash(setup_script(OwnPackage("def", "==1.3")), tmp_path).returncode == 0
    assert called(tmp_path)[-1].endswith("gavel-rl[service,train]==1.3")


def test_an_installation_that_fails_is_tried_again(tmp_path: Path) -> None:
    python = recorder(tmp_path / ".gavel" / "venv" / "bin" / "python")
    python.write_text(_RECORDER + "exit 1\n")
    assert bash(setup_script(PACKAGE), tmp_path).returncode != 0
    recorder(python)
    assert bash(setup_script(PACKAGE), tmp_path).returncode == 0
    assert len(called(tmp_path)) == 3


def test_without_a_python_it_says_what_is_missing(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "mkdir", "cat"):
        (tools / name).symlink_to(str(shutil.which(name)))
    done = bash(setup_script(PACKAGE), tmp_path, PATH=str(tools))
    assert done.returncode == 1
    assert "choose another image" in done.stderr


def test_one_process_is_started_plainly_and_arguments_stay_whole(tmp_path: Path) -> None:
    python = str(recorder(tmp_path / "python"))
    nodes = {"SKYPILOT_NUM_NODES": "1", "SKYPILOT_NUM_GPUS_PER_NODE": "1", "GAVEL_PYTHON": python}
    for given in (nodes, {"GAVEL_PYTHON": python}, nodes | {"SKYPILOT_NUM_GPUS_PER_NODE": "0.5"}):
        assert bash(run_script(["-m", "gavel", "x; echo $HOME", "~/runs"]), tmp_path, **given).returncode == 0
        assert called(tmp_path)[-1] == f"-m gavel x; echo $HOME {tmp_path}/runs"


def test_several_nodes_and_gpus_go_through_torchrun(tmp_path: Path) -> None:
    given = {
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_RANK": "1",
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
        "SKYPILOT_NUM_GPUS_PER_NODE": "8",
        "GAVEL_PYTHON": str(recorder(tmp_path / "python")),
    }
    assert bash(run_script(["train.py"]), tmp_path, **given).returncode == 0
    assert called(tmp_path) == [
        "-m torch.distributed.run --nnodes 2 --node-rank 1 --nproc-per-node 8 --master-addr 10.0.0.1 "
        "--master-port 29400 --max-restarts 0 train.py"
    ]


def test_the_exit_status_is_the_program_s(tmp_path: Path) -> None:
    given = {"GAVEL_PYTHON": sys.executable}
    assert bash(run_script(["-c", "import sys; sys.exit(7)"]), tmp_path, **given).returncode == 7
