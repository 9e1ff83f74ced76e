"""The day on a GPU, over small bases: every part measures, and a run that is killed goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, str(ROOT / "benchmarks" / "gpu_day.py"), "--tiny", "--limit-factor", "20"]


def read(out: Path) -> dict[str, dict[str, Any]]:
    return {file.stem: json.loads(file.read_text()) for file in out.glob("*.json")}


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_every_part_measures_the_same_step_as_its_peer_and_a_killed_run_goes_on(tmp_path: Path) -> None:
    parts = ["tests", "attention", "0.6b-16k", "4b-65k", "dense", "cycle", "mixture", "trl", "liger"]
    command = [*COMMAND, "--out", str(tmp_path), "--parts", *parts]
    first = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    while first.poll() is None and not (tmp_path / "0.6b-16k.json").exists():
        time.sleep(0.1)
    os.kill(first.pid, signal.SIGINT)  # it ends the process that measures
    first.wait()
    before = {name: (tmp_path / f"{name}.json").stat().st_mtime_ns for name in read(tmp_path)}
    assert 0 < len(before) < len(parts)
    subprocess.run(command, check=True, capture_output=True)
    found = read(tmp_path)
    assert set(found) == set(parts)
    assert {name: (tmp_path / f"{name}.json").stat().st_mtime_ns for name in before} == before
    assert not [name for name, each in found.items() if "failed" in each]
    counted = found["dense"]["checkpointed"]
    assert counted["loss"] == pytest.approx(found["dense"]["padded"]["loss"], abs=1e-3)
    assert max(found["dense"]["gradient_errors"].values()) < 1e-4
    linear = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128)
    operations = 6 * linear * 384 + 4 * 64 * 2048 * 256
    assert counted["mfu"] == pytest.approx(operations / counted["seconds"] / 989e12)
    assert found["trl"]["cosine_of_gradients"] > 0.9999
    assert found["trl"]["losses"]["own"] == pytest.approx(found["trl"]["losses"]["trl"], abs=1e-5)
    assert found["cycle"]["killed_after_steps"] >= 1
    assert [step["step"] for step in found["cycle"]["steps"]] == [1, 2, 3]
