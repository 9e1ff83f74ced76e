"""A run's export: whole or not there, never over something else, the same for the model and for the run directory."""

import asyncio
import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from gavel.trainer.backends import run_export
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.run_export import export_run
from gavel.trainer.config import TrainConfig
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.model import TrainableModel
from gavel.trainer.policy.merged_model import ExportError
from gavel.trainer.runs.run_directory import RunDirectoryError
from tests.forked import gavel, start_script
from tests.trainer.backends.test_local import a_group

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """The directory of a run of two steps."""
    root = tmp_path_factory.mktemp("runs")

    async def train() -> None:
        model = TrainableModel(name="clerk", project="desk", base_model=EMBEDDED_POLICY)
        async with LocalBackend(root) as backend:
            await model.register(backend)
            for _ in range(2):
                await model.train([await a_group(model, [0.0, 1.0, 0.5])], TrainConfig(learning_rate=1e-2))

    asyncio.run(train())
    return root / "desk" / "clerk"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "runs" / "desk" / "clerk"))


def test_the_newest_step_is_exported_and_loads_as_a_plain_model(run: Path) -> None:
    path = export_run(run)
    assert path == run / "exports" / "000002-merged-float32"
    merged = AutoModelForCausalLM.from_pretrained(path)
    first = AutoModelForCausalLM.from_pretrained(export_run(run, step=1))
    base = AutoModelForCausalLM.from_pretrained(export_run(run, step=0))
    ids = torch.tensor([[4, 8, 15, 16, 23]])
    outputs = [model(ids).logits for model in (merged, first, base)]
    assert not torch.allclose(outputs[0], outputs[1])
    assert not torch.allclose(outputs[1], outputs[2])
    card = (path / "README.md").read_text()
    assert "library_name: transformers" in card
    assert "merged into it" in card
    assert "nats" in card


def test_an_adapter_is_the_checkpoint_without_the_trainers_state(run: Path) -> None:
    path = export_run(run, "adapter")
    names = {entry.name for entry in path.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "README.md"} <= names
    assert not names & {"trainer_state", "manifest.json"}


def test_the_same_export_again_returns_what_is_there(run: Path) -> None:
    path = export_run(run)
    before = (path / "model.safetensors").stat().st_mtime_ns
    assert export_run(run) == path
    assert (path / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize("what", ["directory", "file", "broken link", "other export"])
def test_nothing_is_written_over(run: Path, tmp_path: Path, what: str) -> None:
    out = tmp_path / "mine"
    if what == "directory":
        out.mkdir()
    elif what == "file":
        out.write_text("mine")
    elif what == "broken link":
        out.symlink_to(tmp_path / "nowhere")
    else:
        export_run(run, step=1, out=out)
    with pytest.raises(ExportError, match="is there already"):
        export_run(run, out=out)


def test_an_export_that_fails_leaves_nothing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_export, "write_merged", full)
    with pytest.raises(ExportError, match="No space left"):
        export_run(run, out=tmp_path / "out")
    assert {entry.name for entry in tmp_path.iterdir()} == {"runs"}


_SLOW = """
import sys, time
from pathlib import Path
from gavel.trainer.backends import run_export
write = run_export.write_merged
def slow(*arguments):
    write(*arguments)
    print("written", flush=True)
    time.sleep(600)
run_export.write_merged = slow
run_export.export_run(Path(sys.argv[1]), out=Path(sys.argv[2]))
"""


def test_a_kill_leaves_no_half_export_and_the_next_one_succeeds(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (tmp_path / "slow.py").write_text(_SLOW)
    exporting = start_script(tmp_path / "slow.py", str(run), str(out), cwd=tmp_path)
    exporting.wait_for("written\n")
    with pytest.raises(ExportError, match="another process is writing"):
        export_run(run, out=out)
    exporting.send(signal.SIGKILL)
    assert exporting.end().returncode == -signal.SIGKILL
    assert not out.exists()
    assert export_run(run, out=out) == out
    assert {entry.name for entry in tmp_path.iterdir()} == {"runs", "out", "slow.py"}


@pytest.mark.parametrize("step", [1, 7])
def test_a_step_that_is_damaged_or_not_kept_is_named(run: Path, step: int) -> None:
    if step == 1:
        (run / "checkpoints" / "000001" / "adapter_model.safetensors").write_bytes(b"torn")
    with pytest.raises(RunDirectoryError, match=f"step {step} is") as caught:
        export_run(run, step=step)
    assert "Kept: 1, 2" in caught.value.remedy


def test_a_trained_run_without_checkpoints_is_not_its_base(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(RunDirectoryError, match="was trained, but none of its checkpoints is whole") as error:
        export_run(run)
    assert "--step 0" in str(error.value)
    assert export_run(run, step=0).is_dir()


async def test_a_model_exports_its_live_step(run: Path) -> None:
    model = TrainableModel(name="clerk", project="desk", base_model=EMBEDDED_POLICY)
    async with LocalBackend(run.parent.parent) as backend:
        await model.register(backend)
        path = await model.export(dtype="bfloat16")
    assert path.name == "000002-merged-bfloat16"
    assert json.loads((path / "config.json").read_text())["dtype"] == "bfloat16"


def test_the_command_prints_where_it_is(run: Path) -> None:
    runs = run.parent.parent
    done = gavel("export", "desk/clerk", "--dtype", "float16", cwd=runs.parent, GAVEL_RUNS=str(runs))
    assert done.stdout.strip() == str(run / "exports" / "000002-merged-float16")
    assert done.returncode == 0
