"""LocalBackend as its users meet it: register, train, go on, and mistakes; what a run measures first is kept."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from peft.tuners.lora import LoraLayer

from gavel.base.errors import GavelError
from gavel.base.files import file_sha256
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import GroupJudgement
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.proof import PublishError
from gavel.trainer.backends.training_run import FILE, MemorySettings, SaveError
from gavel.trainer.config import LoraSettings, PolicySettings, TrainConfig
from gavel.trainer.data.token_sequences import TokenError
from gavel.trainer.engines.protocol import EngineError
from gavel.trainer.model import Model, NotRegisteredError
from gavel.trainer.runs.run_directory import RunDirectory, RunDirectoryError
from gavel.trainer.serving.answers import EndpointError
from tests.trainer.conftest import a_group, a_model, adapter_file, registered

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "lora",
    [
        LoraSettings(rank=4, rslora=True),
        LoraSettings(rank=4, alpha=64, targets=["q_proj", "layers.0.mlp.down_proj"]),
        LoraSettings(rank=4, dropout=0.3),
    ],
    ids=["rslora", "targets", "dropout"],
)
async def test_an_adapter_of_any_settings_is_published_exactly_and_goes_on(tmp_path: Path, lora: LoraSettings) -> None:
    async with registered(tmp_path, a_model("sampler", lora=lora)) as (sampler, _):
        groups = [await a_group(sampler, [0.0, 1.0, 0.5])]
    for root, lives in (("through", [2]), ("resumed", [1, 1])):
        for steps in lives:
            async with registered(tmp_path / root, a_model(lora=lora)) as (model, _):
                for _ in range(steps):
                    result = await model.train(groups, TrainConfig(learning_rate=1e-2))
                    assert result.metrics["publish_gap"] < 1e-4
        config = adapter_file(tmp_path / root, 2).with_name("adapter_config.json")
        assert json.loads(config.read_text())["use_rslora"] is lora.rslora
    through, resumed = (adapter_file(tmp_path / root, 2).read_bytes() for root in ("through", "resumed"))
    assert through == resumed


async def test_groups_without_a_signal_change_nothing_but_the_learning_rate_and_the_result_says_why(tmp_path: Path):
    config = TrainConfig(learning_rate=1e-3, total_steps=4)
    for name, restarts in (("clerk", False), ("other", True)):
        async with registered(tmp_path, name) as (model, backend):
            rewards: list[list[float | None]] = [[0.5, 0.5], [None, None], [None, None], [0.0, 1.0]]
            same, unscored, degenerate, group = [await a_group(model, each) for each in rewards]
            degenerate.judgement = GroupJudgement(status="degenerate")
            result = await model.train([same, unscored, degenerate], config)
            assert (result.trained, result.step) == (False, 1)
            for why in ("all have the same score", "without a member that can be trained", "are all identical"):
                assert re.search(f"1 group [a-z ]*{why}", result.reason)
            if restarts:
                await backend.close()
                await model.register(backend)
            assert (await model.train([same], config)).step == 2
            assert adapter_file(tmp_path, 1, name).read_bytes() == adapter_file(tmp_path, 2, name).read_bytes()
            result = await model.train([group], config)
        assert result.metrics["learning_rate"] == pytest.approx(1e-3 * 2 / 4)


async def test_what_cannot_be_trained_changes_nothing_nor_does_a_run_whose_directory_was_deleted(tmp_path: Path):
    async with registered(tmp_path) as (model, backend):
        group = await a_group(model, [0.0, 1.0])
        bare = TrajectoryGroup([each.model_copy(deep=True) for each in group])
        for choice in bare.trajectories[0].choices():
            del choice.__pydantic_extra__["token_ids"]
        with pytest.raises(TokenError, match="openai_client"):
            await model.train([bare])
        with pytest.raises(GavelError):
            await model.train(list(group))
        assert await model.get_step() == 0
        assert not (tmp_path / "tests" / "clerk" / "checkpoints").exists()
        shutil.rmtree(tmp_path / "tests")
        with pytest.raises(RunDirectoryError, match="deleted or replaced"):
            await model.train([group])
        assert not (tmp_path / "tests").exists()
        await model.register(backend)
        assert (await model.train([group])).step == 1


async def test_old_checkpoints_are_deleted_but_the_newest_whole_one_and_the_best(tmp_path: Path) -> None:
    async with registered(tmp_path) as (model, backend):
        group = await a_group(model, [0.0, 1.0])
        await model.log([Trajectory(reward=1.0)], "val")  # of the base model, which is no checkpoint
        for reward in (0.1, 0.9, 0.7, 0.9, 0.2, 0.3):
            await model.train([group])
            await model.log([Trajectory(reward=reward)], "val")
        await model.delete_checkpoints("val/reward", keep_last=2, keep_best=3)
        assert backend.checkpoints(model) == [2, 3, 4, 5, 6]
        await model.delete_checkpoints("val/reward")
        assert backend.checkpoints(model) == [4, 6]
        await model.delete_checkpoints("val/no_such_metric", keep_last=0, keep_best=5)
        assert backend.checkpoints(model) == [6]
        for _ in range(3):
            await model.train([group])
    for step in (8, 9):
        adapter_file(tmp_path, step).with_name("manifest.json").unlink()
    async with registered(tmp_path) as (again, backend):
        await again.delete_checkpoints(keep_last=1, keep_best=0)
        assert backend.checkpoints(again) == [7, 8, 9], "the newest whole one stays even behind damaged ones"
        await again.train([group])
        await again.delete_checkpoints(keep_last=1, keep_best=0)
        assert backend.checkpoints(again) == [8, 9]
        assert backend._directory(again).checkpoints.latest() == 8
    shutil.rmtree(adapter_file(tmp_path, 8).parent)
    metrics = tmp_path / "tests" / "clerk" / "metrics.jsonl"
    before = metrics.read_text()
    with pytest.raises(RunDirectoryError, match="none of its checkpoints is whole"):
        await a_model().register(LocalBackend(tmp_path))
    assert metrics.read_text() == before  # it does not begin again over its own metrics


async def test_a_state_that_no_run_wrote_is_never_run_and_the_one_before_is_taken(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "evil",))

    async with registered(tmp_path) as (model, backend):
        group = await a_group(model, [0.0, 1.0])
        for _ in range(3):
            await model.train([group])
        assert (await model.log([group], "val", step=1))["reward"] == 0.5
        assert [row["step"] for row in backend.history(model, "val")] == [1]
    for step, forged in ((2, {"other": 1}), (3, Evil())):
        manifest = adapter_file(tmp_path, step).with_name("manifest.json")
        state = manifest.with_name("trainer_state") / "state.pt"
        torch.save(forged, state)
        hashes = json.loads(manifest.read_text()) | {"trainer_state/state.pt": file_sha256(state)}
        manifest.write_text(json.dumps(hashes))
    async with registered(tmp_path) as (again, backend):
        assert await again.get_step() == 1
        await again.train([group])
    assert not (tmp_path / "evil").exists()


async def test_an_occupied_port_and_what_is_no_backend_are_named_and_leave_nothing_behind(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EndpointError, match=str(port)):
            await a_model().register(LocalBackend(tmp_path / "runs", port=port))
    assert not (tmp_path / "runs").exists()
    for given in ("local", LocalBackend, None):
        with pytest.raises(TypeError, match=r"gavel\.LocalBackend\(\)"):
            await a_model().register(given)  # type: ignore[arg-type]


async def test_registering_can_be_run_again_and_starts_an_engine_that_has_stopped(tmp_path: Path) -> None:
    async with registered(tmp_path) as (first, backend):
        await first.train([group := await a_group(first, [0.0, 1.0])])
        await (again := a_model()).register(backend)  # as in a notebook
        assert (await again.get_step(), again.inference_base_url) == (1, first.inference_base_url)
        backend._run(first)._engine.close()
        with pytest.raises(EngineError):
            await again.train([group])
        await first.register(backend)
        assert await first.get_step() == 2, "its checkpoint had been saved"
        assert {trajectory.policy_version for trajectory in await a_group(first, [0.0, 1.0])} == {2}
        async with registered(tmp_path) as (anew, _):
            assert await anew.get_step() == 2
            assert await a_group(anew, [0.0, 1.0])
            with pytest.raises(NotRegisteredError, match="register"):
                await first.get_step()


async def test_what_is_logged_stays_inside_the_run_directory_and_is_not_kept_twice(tmp_path: Path) -> None:
    model, run = Model(name="prompted", project="tests"), tmp_path / "runs" / "tests" / "prompted"
    group = TrajectoryGroup([Trajectory(reward=1.0)])
    async with LocalBackend(tmp_path / "runs") as backend:
        await model.register(backend)
        for split in ("../x", "/tmp/x", "", "val/../../../../x", "."):
            with pytest.raises(RunDirectoryError, match="split"):
                await model.log([group], split=split)
        await model.log([group], split="val/hard")
        await model.log([Trajectory(reward=0.1)], "val")
        (run / "metrics.jsonl").write_text("")  # as a kill leaves it before the row
        for reward in (0.2, 0.3):
            await model.log([Trajectory(reward=reward)], "val")
    assert (run / "trajectories/val/hard/000000.jsonl.zst").is_file()
    assert os.listdir(tmp_path) == ["runs"]
    groups = TrajectoryStore(run / "trajectories/val/000000.jsonl.zst")
    assert [trajectory.reward for group in groups for trajectory in group] == [0.2, 0.3]


async def test_closing_waits_for_the_step_in_progress(tmp_path: Path) -> None:
    async with registered(tmp_path) as (model, backend):
        learning = asyncio.create_task(model.train([await a_group(model, [0.0, 1.0])]))
        while not backend._run(model)._lock.locked():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        learning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await learning
    async with registered(tmp_path) as (again, backend):
        assert await again.get_step() == 1
        assert [row["step"] for row in backend.history(again, "train")] == [1]


@pytest.mark.parametrize(
    ("rate", "error", "told"),
    [(1e-3, SaveError, "step 2 could not be saved"), (1e20, PublishError, "lower the learning rate")],
)
async def test_a_step_that_is_not_saved_or_not_followed_is_no_checkpoint(rate, error, told, tmp_path, monkeypatch):
    async with registered(tmp_path) as (model, backend):
        await (other := a_model("other")).register(backend)
        group = await a_group(model, [0.0, 1.0])
        for each in (model, other):
            await each.train([group])
        with monkeypatch.context() as patched:
            if error is SaveError:
                patched.setattr(torch, "save", Mock(side_effect=RuntimeError("failed writing file")))
            with pytest.raises(error, match=told):
                await model.train([group], TrainConfig(learning_rate=rate))
        with pytest.raises(NotRegisteredError):
            await model.train([group])
        await model.register(backend)
        assert (await model.get_step(), backend.checkpoints(model)) == (1, [1])
        for each in (model, other):
            assert (await each.train([group])).step == 2
    assert adapter_file(tmp_path, 2).read_bytes() == adapter_file(tmp_path, 2, "other").read_bytes()


def storages(parameters: Iterable[torch.Tensor]) -> set[int]:
    return {each.untyped_storage().data_ptr() for each in parameters}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_learner_and_sampler_hold_the_base_once(tmp_path: Path, dtype) -> None:
    async with registered(tmp_path, a_model(policy=PolicySettings(dtype=dtype))) as (model, backend):
        run = backend._training[model.key]
        base = storages(run.policy.model.get_base_model().parameters())
        assert storages(run.policy.plain_model().parameters()) <= base or dtype == "float32"
        result = await model.train([await a_group(model, [0.0, 1.0, 0.5])], TrainConfig(learning_rate=1e-3))
        assert result.trained
        layers = [module for module in run.policy.model.modules() if isinstance(module, LoraLayer)]
        adapted = storages(layer.get_base_layer().weight for layer in layers)
        own = storages(run._engine._model.parameters()) - base
        assert len(own) == (len(adapted) if dtype == "float32" else 0), "of merged weights, in float32 alone"
        kept = (run.directory.path / "memory.json").read_text()
        assert json.loads(kept)["micro_batch_tokens"] == {"without_checkpointing": 16384}


@pytest.fixture
def directory(tmp_path):
    with contextlib.closing(RunDirectory(tmp_path, "tests", "run")) as directory:
        yield directory


@pytest.mark.parametrize(
    ("device", "chosen", "found"),
    [
        ("cpu", (False, 8000, None), {"without_checkpointing": 8000}),
        ("cuda", (None, 8000, 7000), {"with_checkpointing": 8000, "without_checkpointing": 7000}),
    ],
)
def test_what_is_measured_first_is_kept_by_later_steps_and_by_a_resumed_run(directory, device, chosen, found):
    fit = Mock(side_effect=[8000, 7000, 6000, 5000])  # less memory is free at every call
    first = MemorySettings(directory, device, fit).fill_in(TrainConfig())
    assert (first.gradient_checkpointing, first.micro_batch_tokens, first.whole_pass_tokens) == chosen
    for other in ("cpu", "cuda"):  # resumed, also on another device
        assert MemorySettings(directory, other, fit).fill_in(TrainConfig()) == first
    assert fit.call_count == len(found)
    kept = json.loads((directory.path / FILE).read_text())
    assert kept["micro_batch_tokens"] == found
    assert directory.path / FILE in directory.entries()
    for checkpointing, tokens in ((None, None), (False, {"without_checkpointing": -5})):  # something else
        directory.describe({"gradient_checkpointing": checkpointing, "micro_batch_tokens": tokens}, FILE)
        with pytest.raises(RunDirectoryError, match="memory settings") as caught:
            MemorySettings(directory, "cpu", Mock())
        assert "Restore the file, or delete it" in str(caught.value)
