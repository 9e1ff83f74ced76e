"""A run begins with the checkpoint of another one, the same policy at step 0; a run's export is whole or not there."""

import asyncio
import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from gavel.base.errors import GavelError
from gavel.base.files import new_folder
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends import run_export
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.run_export import export_run
from gavel.trainer.backends.training_run import TrainingRun
from gavel.trainer.config import LoraSettings, SftConfig, TrainConfig
from gavel.trainer.embedded import EMBEDDED_PATH
from gavel.trainer.policy.merged_model import ExportError
from gavel.trainer.runs.run_directory import RunDirectoryError
from gavel.trainer.runs.stores import StorageError
from tests.fake_hub import FakeHub
from tests.trainer.conftest import a_group, a_model, registered

pytestmark = pytest.mark.slow
_PROBE = [5, 9, 40, 7, 300, 12, 80, 61, 33]


SAID = [{"role": "user", "content": "May I return it?"}, {"role": "assistant", "content": "Yes, within a month."}]
DEMONSTRATION = Trajectory(messages_and_choices=SAID)


def starting(start, name="new", **lora):
    return a_model(name, "desk", lora=LoraSettings.model_validate(lora), from_checkpoint=start)


def origin(runs: Path) -> dict[str, object]:
    return json.loads((runs / "desk" / "new" / "model.json").read_text())["from_checkpoint"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")

    async def tune() -> None:
        async with registered(root, a_model("tuned", "sft")) as (model, _):
            for _ in range(3):
                await model.train_sft([DEMONSTRATION], SftConfig(learning_rate=1e-2))

    asyncio.run(tune())
    return root


def assert_begins_with(run: TrainingRun, checkpoint: Path) -> None:
    """Bit for bit."""
    begun = dict(run.policy.adapter_parameters())
    weights = load_file(checkpoint / "adapter_model.safetensors")
    assert all(torch.equal(begun[name], weight) for name, weight in weights.items())


@pytest.mark.parametrize("named", ["sft/tuned", "directory@2", "checkpoint"])
async def test_the_policy_of_step_0_is_the_checkpoint_bit_for_bit(runs: Path, tmp_path: Path, named: str) -> None:
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True)
    tuned = tmp_path / "sft" / "tuned"
    start = {"directory": str(tuned), "directory@2": f"{tuned}@2"}.get(named, named)
    step = 2 if named.endswith("2") else 3
    checkpoint = tuned / "checkpoints" / f"{step:06d}"
    model = starting(checkpoint if named == "checkpoint" else start)
    async with registered(tmp_path, a_model("tuned", "sft")) as (source, backend):
        await model.register(backend)
        assert await model.get_step() == 0
        assert_begins_with(backend._run(model), checkpoint)
        if step == 3:
            assert backend._run(model)._engine.score(_PROBE) == backend._run(source)._engine.score(_PROBE)
        recorded = await a_group(model, [0.0, 1.0, 0.5])
        first = await model.train([recorded], TrainConfig(learning_rate=1e-2, beta=0.1, reference="start"))
        assert first.metrics["kl"] == pytest.approx(0, abs=1e-6)  # from the state after SFT
    found = origin(tmp_path)
    assert (found["run"], found["step"], found["directory"]) == ("sft/tuned", step, str(checkpoint))
    card = (tmp_path / "desk" / "new" / "checkpoints" / "000001" / "README.md").read_text()
    assert f"`sft/tuned`, step {step}" in card


async def test_a_run_begins_with_a_checkpoint_that_is_in_a_store(runs: Path, tmp_path: Path, hub: FakeHub) -> None:
    shutil.copytree(runs, tmp_path / "there", dirs_exist_ok=True)
    async with registered(tmp_path / "there", a_model("tuned", "sft")) as (tuned, backend):
        await tuned.push("hf://desk/adapters", 2)
    start = "hf://desk/adapters/sft/tuned@2"
    here = tmp_path / "here"
    with pytest.raises(StorageError, match="no checkpoint of step 3; it has: 2"):
        await starting("hf://desk/adapters/sft/tuned@3").register(LocalBackend(here))
    async with registered(here, starting(start)) as (model, backend):
        assert_begins_with(backend._run(model), runs / "sft" / "tuned" / "checkpoints" / "000002")
    assert origin(here) == {"named": start, "directory": start, "run": "sft/tuned", "step": 2}
    assert not (here / "desk" / "new" / ".pulled").exists()
    hub.close()  # it is not needed again
    async with registered(here, starting(start)):
        pass
    with pytest.raises(RunDirectoryError, match=r"was begun from .*@2', not from .*@1'"):
        await starting("hf://desk/adapters/sft/tuned@1").register(LocalBackend(here))


async def test_step_0_of_a_run_is_exported_with_the_checkpoint_that_it_began_with(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True)
    async with registered(tmp_path, starting("sft/tuned")) as (model, _):
        (tmp_path / "sft" / "tuned").rename(tmp_path / "gone")
        await model.train_sft([DEMONSTRATION])
        merged = AutoModelForCausalLM.from_pretrained(await model.export("merged", step=0))
    base = AutoModelForCausalLM.from_pretrained(EMBEDDED_PATH)
    assert not all(map(torch.equal, merged.parameters(), base.parameters()))


@pytest.mark.parametrize(
    ("start", "lora", "said", "remedy"),
    [
        ("sft/none", {}, "there is no run", "gavel runs"),
        ("sft/tuned@9", {}, "step 9", "Kept beside it: 1, 2, 3"),
        ("sft", {}, "neither a run nor an adapter", "Name a run"),
        ("@3", {}, "there is no run", "Name a run"),
        ("sft/tuned", {"rank": 8}, "rank 16", "--lora-rank 16 --lora-alpha 32"),
        ("sft/tuned", {"rslora": True}, "this run has rank 16 and alpha 32 with rsLoRA", "--no-rslora"),
        ("sft/tuned", {"targets": ["q_proj"]}, "only it has", "--lora-target q_proj"),
    ],
)
async def test_what_cannot_be_begun_with_is_refused_and_leaves_no_run(runs, start, lora, said, remedy):
    with pytest.raises(GavelError) as error:
        await starting(start, "refused", **lora).register(LocalBackend(runs))
    assert said in error.value.message
    assert remedy in str(error.value)
    assert not (runs / "desk" / "refused").exists()


async def test_a_damaged_checkpoint_is_refused_and_so_is_a_damaged_copy(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True)
    checkpoint = tmp_path / "sft" / "tuned" / "checkpoints" / "000003"
    file = checkpoint / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    async with LocalBackend(tmp_path) as backend:
        for start in ("sft/tuned@3", str(checkpoint)):
            with pytest.raises(GavelError, match="damaged"):
                await starting(start, "refused").register(backend)
        await (model := starting("sft/tuned")).register(backend)  # the newest that is whole
        assert (await model.get_step(), origin(tmp_path)["step"]) == (0, 2)
    (tmp_path / "desk" / "new" / "start" / "000000" / "adapter_model.safetensors").unlink()
    with pytest.raises(RunDirectoryError, match="damaged or missing"):
        await model.register(LocalBackend(tmp_path))


@pytest.fixture
def run(runs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs / "sft" / "tuned", tmp_path / "runs" / "sft" / "tuned"))


def test_the_newest_step_is_exported_and_loads_as_a_plain_model(run: Path) -> None:
    path = export_run(run)
    assert path == run / "exports" / "000003-merged-float32"
    ids, exports = torch.tensor([[4, 8, 15, 16, 23]]), (path, export_run(run, step=1), export_run(run, step=0))
    outputs = [AutoModelForCausalLM.from_pretrained(each)(ids).logits for each in exports]
    assert not torch.allclose(outputs[0], outputs[1])
    assert not torch.allclose(outputs[1], outputs[2])
    card = (path / "README.md").read_text()
    assert all(words in card for words in ("library_name: transformers", "merged into it", "nats"))


@pytest.mark.parametrize("what", ["directory", "broken link", "other export"])
def test_nothing_is_written_over(run: Path, tmp_path: Path, what: str) -> None:
    out = tmp_path / "mine"
    if what == "directory":
        out.mkdir()
    elif what == "broken link":
        out.symlink_to(tmp_path / "nowhere")
    else:
        export_run(run, step=1, out=out)
    with pytest.raises(ExportError, match="is there already"):
        export_run(run, out=out)


def test_an_export_that_fails_leaves_nothing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_export, "write_merged", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(ExportError, match="No space left"):
        export_run(run, out=tmp_path / "out")
    assert {entry.name for entry in tmp_path.iterdir()} == {"runs"}


def test_an_export_that_another_process_is_writing_is_left_to_it(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with new_folder(out), pytest.raises(ExportError, match="another process is writing"):
        export_run(run, out=out)
    shutil.rmtree(out)
    assert export_run(run, out=out) == out == export_run(run, out=out)


@pytest.mark.parametrize("step", [1, 7])
def test_a_step_that_is_damaged_or_not_kept_is_named(run: Path, step: int) -> None:
    if step == 1:
        (run / "checkpoints" / "000001" / "adapter_model.safetensors").write_bytes(b"torn")
    with pytest.raises(RunDirectoryError, match=f"step {step} is") as caught:
        export_run(run, step=step)
    assert "Kept: 1, 2, 3" in caught.value.remedy


def test_a_trained_run_without_checkpoints_is_not_its_base(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(RunDirectoryError, match="was trained, but none of its checkpoints is whole") as error:
        export_run(run)
    assert "RUN@0" in error.value.remedy
    assert export_run(run, step=0).is_dir()
