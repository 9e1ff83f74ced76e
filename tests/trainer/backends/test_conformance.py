"""What every backend does, whatever machine it trains on and whoever samples: the same cases for each."""

import functools
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from openai.types.chat.chat_completion import Choice

from gavel.base.errors import GavelError
from gavel.base.network import free_port
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.protocol import Backend
from gavel.trainer.backends.remote.client import RemoteBackend
from gavel.trainer.backends.server.app import create_app
from gavel.trainer.backends.skypilot.backend import SkyPilotBackend
from gavel.trainer.backends.skypilot.hosts import ThisMachine
from gavel.trainer.config import LoraSettings, SftConfig, TrainConfig, VllmSettings
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.engines import vllm_launch
from gavel.trainer.engines.vllm_launch import Served, ServerProcess
from gavel.trainer.model import Model, TrainableModel
from gavel.trainer.policy.loading import BaseModelError
from gavel.trainer.policy.policy import source_of
from gavel.trainer.runs.run_directory import NamedCheckpointError, RunDirectoryError
from tests.backend_server import KEY, serving
from tests.trainer.conftest import a_model, registered

CONTEXT = 1024
KINDS = [
    "local",
    "remote",
    pytest.param("sky-local", marks=pytest.mark.thorough),
    *(pytest.param(kind, marks=pytest.mark.vllm) for kind in ("local over vllm", "remote over vllm")),
]
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("kind", KINDS)]


_clusters = itertools.count()


@pytest.fixture(autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAVEL_STATE", str(tmp_path_factory.mktemp("state")))


@functools.cache
def a_vllm_server() -> ServerProcess:
    directory = Path(tempfile.mkdtemp(prefix="gavel-vllm-"))
    base = source_of(EMBEDDED_POLICY)
    served = Served(base, torch.float32, "cpu", rank=LoraSettings().rank, slots=8, max_context=CONTEXT, versions=1)
    settings = VllmSettings(python=os.environ["GAVEL_TEST_VLLM_PYTHON"])
    return vllm_launch._start(settings, served, directory / "vllm.log")


def a_local_backend(kind: str, runs: Path) -> LocalBackend:
    if not kind.endswith("over vllm"):
        return LocalBackend(runs)
    return LocalBackend(runs, engine=VllmSettings(urls=(a_vllm_server().url,)), max_context=CONTEXT)


@asynccontextmanager
async def a_backend(kind: str, runs: Path) -> AsyncIterator[Backend]:
    if kind.startswith("local"):
        async with a_local_backend(kind, runs) as local:
            yield local
        return
    if kind == "sky-local":
        cluster = f"conformance-{next(_clusters)}"
        launched = await SkyPilotBackend.launch(
            cluster, None, host=ThisMachine(), port=free_port(), runs=str(runs), say=lambda _: None, patience=60
        )
        try:
            yield launched
        finally:
            await launched.down()
        return
    with serving(create_app(a_local_backend(kind, runs), key=KEY, root=runs)) as url:
        async with RemoteBackend(url, KEY, patience=60) as remote:
            yield remote


@asynccontextmanager
async def a_run(kind: str, runs: Path, name: str = "clerk", start: str | None = None) -> AsyncIterator[Any]:
    model = a_model(name, from_checkpoint=start)
    async with a_backend(kind, runs) as backend:
        await model.register(backend)
        yield model, backend


@asynccontextmanager
async def a_checkpoint(runs: Path) -> AsyncIterator[Path]:
    async with registered(runs, "first") as (first, _):
        await first.train([await a_group(first, 0.0, 1.0)], TrainConfig(learning_rate=1e-2))
    yield runs / "tests" / "first" / "checkpoints" / "000001"
    shutil.rmtree(runs)


async def a_group(model: TrainableModel, *rewards: float) -> TrajectoryGroup:
    client, name = model.openai_client(), model.get_inference_name()
    question: list[Any] = [{"role": "user", "content": "Where is order 1001?"}]
    completion = await client.chat.completions.create(model=name, messages=question, max_tokens=4, n=len(rewards))
    turns = zip(completion.choices, rewards, strict=True)
    return TrajectoryGroup(
        [Trajectory(messages_and_choices=[*question, turn], reward=reward) for turn, reward in turns]
    )


async def test_a_step_is_trained_measured_saved_and_served(kind: str, tmp_path: Path) -> None:
    async with a_run(kind, tmp_path) as (model, backend):
        assert (await model.get_step(), backend.checkpoints(model), backend.versions(model)) == (0, [], 1)
        group = await a_group(model, 0.0, 1.0)
        result = await model.train([group], TrainConfig(learning_rate=1e-3), metrics={"mine": np.float32(2)})
        assert (result.step, result.trained, result.metrics["trajectories_trained"]) == (1, True, 2)
        assert model.get_inference_name() == "clerk@1"
        (member,) = await a_group(model, 0.0)
        turn = member.messages_and_choices[-1]
        assert isinstance(turn, Choice)
        assert (turn.model_extra or {})["policy_version"] == 1
        assert backend.checkpoints(model) == [1]
        with pytest.raises(GavelError, match="another split"):
            await model.log([group], "train")  # its step has stored it
        means = await model.log([group], "val")
        assert means["reward"] == 0.5
        (stored,) = await backend.logged(model, "val", 1)
        assert [member.messages() for member in stored] == [member.messages() for member in group]
        assert await backend.logged(model, "val", 0) == await backend.logged(model, "other", 1) == []
        await model.log([group], "earlier", step=0)
        assert (len(await backend.logged(model, "earlier", 0)), await backend.logged(model, "earlier", 1)) == (1, [])
        backend.record(model, {"note": "by hand", "loss": 0.25}, "extra")
        assert [(row["step"], row["mine"]) for row in backend.history(model, "train")] == [(1, 2.0)]
        assert {row["split"] for row in backend.history(model)} == {"train", "val", "earlier", "extra"}
    names = {file.name for file in (tmp_path / "tests" / "clerk" / "checkpoints" / "000001").iterdir()}
    assert {"adapter_model.safetensors", "tokenizer.json", "README.md"} <= names


async def test_a_run_goes_on_where_it_was_and_another_begins_with_it_and_mistakes_are_told(kind: str, tmp_path: Path):
    async with a_run(kind, tmp_path) as (model, backend):
        await model.train([await a_group(model, 0.0, 1.0)], TrainConfig(learning_rate=1e-2))
        await (fork := a_model("fork", from_checkpoint="tests/clerk@1")).register(backend)
        assert (await fork.get_step(), await model.get_step()) == (0, 1)
        with pytest.raises(NamedCheckpointError, match="there is no run"):
            await a_model("other", from_checkpoint="tests/nothing").register(backend)
        for reference in (str(tmp_path / "none"), "nowhere", "7"):
            with pytest.raises(BaseModelError, match="'start'"):
                await backend.prepare(model, TrainConfig(beta=0.1, reference=reference))
    async with a_run(kind, tmp_path) as (again, backend):
        assert await again.get_step() == 1
        with pytest.raises(RunDirectoryError, match="lora: rank"):
            await a_model(lora=LoraSettings(rank=2)).register(backend)
        assert (await again.train([await a_group(again, 0.0, 1.0)])).step == 2
        await again.delete_checkpoints(keep_last=1, keep_best=0)
        assert backend.checkpoints(again) == [2]


async def test_demonstrations_are_trained_and_a_policy_is_exported(kind: str, tmp_path: Path) -> None:
    said: list[Any] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    async with a_run(kind, tmp_path / "there") as (model, _):
        result = await model.train_sft([Trajectory(messages_and_choices=said)], SftConfig(learning_rate=1e-3))
        assert (result.step, result.trained) == (1, True)
        made = await model.export("adapter", out=tmp_path / "here")
        pushed = await model.push(str(tmp_path / "store"), step="latest")
    assert pushed == str(tmp_path / "store" / "tests" / "clerk" / "checkpoints" / "000001")
    pulled = await TrainableModel.pull(f"{tmp_path}/store/tests/clerk", name="copy", runs=tmp_path / "pulled")
    assert (pulled.name, pulled.base_model, pulled.lora) == ("copy", model.base_model, model.lora)
    async with registered(tmp_path / "pulled", pulled):
        assert await pulled.get_step() == 1
    assert made == tmp_path / "here"
    exported = (made / "adapter_model.safetensors").read_bytes()
    run = tmp_path / "there" / "tests" / "clerk"
    assert exported == (run / "checkpoints" / "000001" / "adapter_model.safetensors").read_bytes()


async def test_whatever_a_client_captures_is_one_trajectory(kind: str, tmp_path: Path) -> None:
    async with a_run(kind, tmp_path) as (model, _):
        async with model.capture() as capture:
            headers = {"Authorization": f"Bearer {capture.api_key}"}
            body = {"model": "clerk", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
            async with httpx.AsyncClient(headers=headers) as client:
                answer = await client.post(f"{capture.base_url}/chat/completions", json=body)
                streamed = await client.post(f"{capture.base_url}/chat/completions", json=body | {"stream": True})
        assert answer.status_code == 200
        assert streamed.text.endswith("data: [DONE]\n\n")
    choices = [item for item in capture.trajectory.messages_and_choices if not isinstance(item, dict)]
    branches = [item for history in capture.trajectory.additional_histories for item in history.messages_and_choices]
    assert len(choices) + sum(not isinstance(item, dict) for item in branches) == 2


async def test_a_prompted_model_s_trajectories_and_the_settings_of_a_run_are_kept(kind: str, tmp_path: Path) -> None:
    async with a_run(kind, tmp_path) as (model, backend):
        for _ in range(2):
            backend.pin(model, {"seed": 1})
        with pytest.raises(RunDirectoryError, match="seed 1, not 2"):
            backend.pin(model, {"seed": 2})
        gpt = Model(name="gpt", project="tests", inference_base_url="http://127.0.0.1:9/v1", inference_api_key="k")
        await gpt.register(backend)
        assert await gpt.get_step() == 0
        assert (await gpt.log([Trajectory(reward=0.5)], "val"))["reward"] == 0.5
        assert (await gpt.log(metrics={"accuracy": 0.25}, split="seen"))["accuracy"] == 0.25


@pytest.mark.parametrize("named", ["directory", "run"])
async def test_a_run_begins_with_a_checkpoint_of_the_backend_s_machine(kind, named, tmp_path, monkeypatch):
    monkeypatch.setenv("GAVEL_RUNS", str(tmp_path / "here"))
    async with a_checkpoint(tmp_path / "here") as adapter:
        start = str(adapter) if named == "directory" else "tests/first@1"
        if named == "run":
            if not kind.startswith("local"):
                async with a_backend(kind, tmp_path / "there") as backend:
                    with pytest.raises(NamedCheckpointError, match=r"(?s)is on this machine.*gavel push"):
                        await a_model("second", from_checkpoint=start).register(backend)
            shutil.copytree(tmp_path / "here", tmp_path / "there", dirs_exist_ok=True)
        async with a_run(kind, tmp_path / "there", "second", start):
            pass
        kept = tmp_path / "there" / "tests" / "second" / "start" / "000000" / "adapter_model.safetensors"
        assert kept.read_bytes() == (adapter / "adapter_model.safetensors").read_bytes()
        record = json.loads((tmp_path / "there/tests/second/model.json").read_text())["from_checkpoint"]
        assert (record["named"], record["run"], record["step"]) == (start, "tests/first", 1)
    async with a_run(kind, tmp_path / "there", "second", start):  # goes on without the other run
        pass
    async with a_backend(kind, tmp_path / "there") as backend:
        with pytest.raises(RunDirectoryError, match="was begun from"):
            await a_model("second", from_checkpoint="tests/other").register(backend)


@pytest.mark.parametrize("reference", ["directory", "start"])
async def test_a_divergence_is_from_an_adapter_of_this_machine_or_from_the_start(kind, reference, tmp_path):
    there = tmp_path / "there"
    async with a_checkpoint(tmp_path / "here") as adapter, a_run(kind, there, "second", str(adapter)) as (model, _):
        named = str(adapter) if reference == "directory" else "start"
        config = TrainConfig(beta=0.1, learning_rate=1e-3, reference=named)
        await model.backend.prepare(model, config)
        result = await model.train([await a_group(model, 0.0, 1.0)], config)
        assert result.metrics["kl"] == pytest.approx(0.0, abs=1e-6)
        (kept,) = (there / "tests" / "second" / "reference").iterdir()
        weights = (kept / "adapter_model.safetensors").read_bytes()
        assert weights == (adapter / "adapter_model.safetensors").read_bytes()
        card = (there / "tests" / "second" / "checkpoints" / "000001" / "README.md").read_text()
        assert "`tests/first`, step 1" in card
    async with a_run(kind, there, "second") as (model, _):
        assert (await model.train([await a_group(model, 0.0, 1.0)], config)).step == 2
