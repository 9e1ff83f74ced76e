"""A run begins with the checkpoint of another one, the same policy at step 0; a run's export is whole or not there."""

import asyncio
import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from gavel.base.errors import GavelError
from gavel.base.files import new_folder
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends import run_export
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.run_export import export_run
from gavel.trainer.backends.training_run import TrainingRun
from gavel.trainer.config import LoraSettings, SftConfig
from gavel.trainer.embedded import EMBEDDED_PATH
from gavel.trainer.policy.merged_model import ExportError
from gavel.trainer.runs.run_directory import RunDirectoryError
from gavel.trainer.runs.stores import StorageError
from tests.fake_hub import FakeHub
from tests.trainer.conftest import a_model, registered

pytestmark = pytest.mark.slow
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
        await starting(f"{tmp_path}/sft/tuned@1", "other").register(backend)
        assert_begins_with(backend._run(model), checkpoint.with_name("000002"))
    (tmp_path / "desk" / "new" / "start" / "000000" / "adapter_model.safetensors").unlink()
    with pytest.raises(RunDirectoryError, match="damaged or missing"):
        await model.register(LocalBackend(tmp_path))


@pytest.fixture
def run(runs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs / "sft" / "tuned", tmp_path / "runs" / "sft" / "tuned"))


def test_the_newest_step_is_exported_with_all_that_serving_needs_and_loads_as_a_plain_model(run: Path) -> None:
    path = export_run(run)
    assert path == run / "exports" / "000003-merged-float32"
    ids, exports = torch.tensor([[4, 8, 15, 16, 23]]), (path, export_run(run, step=1), export_run(run, step=0))
    outputs = [AutoModelForCausalLM.from_pretrained(each)(ids).logits for each in exports]
    assert not torch.allclose(outputs[0], outputs[1])
    assert not torch.allclose(outputs[1], outputs[2])
    assert {"model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= {file.name for file in path.iterdir()}
    ours, theirs = (AutoTokenizer.from_pretrained(each) for each in (path, EMBEDDED_PATH))
    assert (ours.get_vocab(), ours.chat_template) == (theirs.get_vocab(), theirs.chat_template)
    card = (path / "README.md").read_text()
    assert all(words in card for words in ("library_name: transformers", "merged into it", "nats"))


def test_an_export_that_fails_leaves_nothing_and_nothing_is_written_over(run: Path, tmp_path: Path, monkeypatch):
    directory, link, other, out = (tmp_path / name for name in ("directory", "link", "other", "out"))
    with monkeypatch.context() as patched:
        patched.setattr(run_export, "write_merged", Mock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(ExportError, match="No space left"):
            export_run(run, out=out)
    assert {entry.name for entry in tmp_path.iterdir()} == {"runs"}
    directory.mkdir()
    link.symlink_to(tmp_path / "nowhere")
    export_run(run, step=1, out=other)
    for taken in (directory, link, other):
        with pytest.raises(ExportError, match="is there already"):
            export_run(run, out=taken)
    with new_folder(out), pytest.raises(ExportError, match="another process is writing"):
        export_run(run, out=out)
    shutil.rmtree(out)
    assert export_run(run, out=out) == out == export_run(run, out=out)


def test_a_step_that_is_damaged_or_not_kept_is_named_and_a_trained_run_without_any_is_not_its_base(run: Path) -> None:
    (run / "checkpoints" / "000001" / "adapter_model.safetensors").write_bytes(b"torn")
    for step in (1, 7):
        with pytest.raises(RunDirectoryError, match=f"step {step} is") as caught:
            export_run(run, step=step)
        assert "Kept: 1, 2, 3" in caught.value.remedy
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(RunDirectoryError, match="was trained, but none of its checkpoints is whole") as error:
        export_run(run)
    assert "RUN@0" in error.value.remedy
    assert export_run(run, step=0).is_dir()
