"""Ollama over its own package: one merged model, sent by hash, whatever fails or is killed."""

import json
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from gavel.trainer.deploy import host as host_module
from gavel.trainer.deploy.deploy import deploy, undeploy
from gavel.trainer.deploy.host import Deployment, open_host
from gavel.trainer.deploy.record import DeployError, DeploymentRecord, read_records
from tests.trainer.deploy.fakes.ollama import FakeOllama
from tests.trainer.deploy.fakes.scripted import Killed, dying_at
from tests.trainer.deploy.trained_run import facts_of, make_run

pytest.importorskip("ollama")
pytestmark = pytest.mark.slow  # it merges a real model


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "desk" / "clerk"))


@pytest.fixture
def ollama(monkeypatch: pytest.MonkeyPatch) -> Generator[FakeOllama]:
    fake = FakeOllama()
    monkeypatch.setenv("OLLAMA_HOST", fake.url)
    monkeypatch.setattr(host_module, "_backoff", lambda _state: 0.01)
    yield fake
    fake.close()


async def deployed(run: Path, **options: Any) -> Deployment:
    return await deploy(run, facts_of(run, 12), "ollama", deadline=120.0, options=options)


async def test_a_merged_model_is_made_once_and_removed(ollama: FakeOllama, run: Path) -> None:
    deployment = await deployed(run)
    name = deployment.model_id
    files = ollama.models[name]["files"]
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= files.keys()
    assert json.loads(ollama.blobs[files["config.json"]])["architectures"] == ["Qwen3ForCausalLM"]
    assert deployment.base_url == f"{ollama.url}/v1"
    assert [path.suffix for path in (run / "deployments").iterdir() if path.suffix not in (".json", ".lock")] == []
    await deployed(run)
    assert ollama.made == [name]
    assert await deployment.host.status(deployment.record) == "there"
    await deployment.undeploy()
    await deployment.undeploy()
    assert not ollama.models


async def test_one_that_was_removed_there_is_made_again_from_what_it_still_has(ollama: FakeOllama, run: Path) -> None:
    name = (await deployed(run)).model_id
    sent = ollama.count("POST /api/blobs")
    ollama.models.clear()
    await deployed(run)
    assert ollama.made == [name, name]
    assert ollama.count("POST /api/blobs") == sent


async def test_a_quantized_one_is_another_model(ollama: FakeOllama, run: Path) -> None:
    deployment = await deployed(run, quantize="q8_0")
    assert deployment.model_id.endswith(":q8_0")
    assert ollama.models[deployment.model_id]["quantize"] == "q8_0"
    with pytest.raises(DeployError, match="no quantization 'q9'"):
        open_host("ollama", quantize="q9")


@pytest.mark.parametrize("is_done", [False, True])
async def test_an_answer_that_is_lost_makes_nothing_twice(ollama: FakeOllama, run: Path, is_done: bool) -> None:
    ollama.fail("POST /api/blobs", 500, is_done=is_done)
    ollama.fail("POST /api/show", 503)
    await deployed(run)
    assert len(ollama.made) == 1
    ollama.fail("DELETE", 500, is_done=is_done)
    await undeploy(read_records(run)[0])
    assert not ollama.models


async def test_a_killed_deployment_goes_on_where_it_was(
    ollama: FakeOllama, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(DeploymentRecord, "finish", dying_at("model"))
        with pytest.raises(Killed):
            await deployed(run)
    await deployed(run)
    assert len(ollama.made) == 1


async def test_a_failed_creation_is_told_and_goes_on(ollama: FakeOllama, run: Path) -> None:
    ollama.fails_with = "no space left on device"
    with pytest.raises(DeployError, match="no space left on device"):
        await deployed(run)
    ollama.fails_with = ""
    sent = ollama.count("POST /api/blobs")
    await deployed(run)
    assert ollama.count("POST /api/blobs") == sent


async def test_an_architecture_that_it_does_not_convert_is_told_with_the_commands_that_do(
    ollama: FakeOllama, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gavel.trainer.deploy.ollama._CONVERTED", ("Llama",))
    with pytest.raises(DeployError, match="does not convert Qwen3ForCausalLM") as refusal:
        await deployed(run)
    assert "convert_hf_to_gguf.py" in refusal.value.remedy
    assert "ollama create" in refusal.value.remedy
    assert not ollama.blobs


async def test_a_server_that_is_not_there_is_told(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")
    monkeypatch.setattr(host_module, "PATIENCE", 0.01)
    with pytest.raises(DeployError, match="does not answer as Ollama does") as refusal:
        await deployed(run)
    assert "ollama serve" in refusal.value.remedy
