"""What only Ollama does: a merged model, sent by hash, which the server converts."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gavel.trainer.deploy.deploy import deploy
from gavel.trainer.deploy.host import Deployment
from gavel.trainer.deploy.record import DeployError
from tests.trainer.deploy.fakes.ollama import FakeOllama
from tests.trainer.deploy.targets import HOSTS, ask_at_once
from tests.trainer.deploy.trained_run import facts_of, make_run

pytestmark = pytest.mark.slow  # it merges a real model


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "desk" / "clerk"))


@pytest.fixture
def ollama(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeOllama]:
    with HOSTS["ollama"]() as target:
        ask_at_once(monkeypatch, target.environment)
        (fake,) = target.servers
        assert isinstance(fake, FakeOllama)
        yield fake


async def deployed(run: Path, **options: Any) -> Deployment:
    return await deploy(run, facts_of(run, 12), "ollama", deadline=120.0, options=options)


async def test_a_merged_model_is_sent_and_made_again_from_what_the_server_still_has(
    ollama: FakeOllama, run: Path
) -> None:
    deployment = await deployed(run)
    name = deployment.model_id
    files = ollama.models[name]["files"]
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= files.keys()
    assert json.loads(ollama.blobs[files["config.json"]])["architectures"] == ["Qwen3ForCausalLM"]
    assert deployment.base_url == f"{ollama.url}/v1"
    assert [path.suffix for path in (run / "deployments").iterdir() if path.suffix not in (".json", ".lock")] == []
    sent = ollama.count("POST /api/blobs")
    ollama.models.clear()
    await deployed(run)
    assert ollama.made == [name, name]
    assert ollama.count("POST /api/blobs") == sent


async def test_a_quantized_one_is_another_model(ollama: FakeOllama, run: Path) -> None:
    deployment = await deployed(run, quantize="q8_0")
    assert deployment.model_id.endswith(":q8_0")
    assert ollama.models[deployment.model_id]["quantize"] == "q8_0"


async def test_a_failed_conversion_is_told_and_goes_on(ollama: FakeOllama, run: Path) -> None:
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
    assert not ollama.blobs
