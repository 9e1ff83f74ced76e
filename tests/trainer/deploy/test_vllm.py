"""What only a vLLM of one's own does: it reads the adapter from a directory, and forgets it when it is restarted."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gavel.trainer.config import VllmSettings
from gavel.trainer.deploy.deploy import deploy
from gavel.trainer.deploy.host import Deployment
from gavel.trainer.deploy.record import AdapterFacts, DeployError, read_records
from gavel.trainer.deploy.smoke_test import SmokeTest
from gavel.trainer.embedded import EMBEDDED_PATH
from gavel.trainer.engines.vllm_launch import Served, vllm_engine
from gavel.trainer.runs.run_directory import read_description
from tests.trainer.deploy.fakes.vllm import BASE, FakeVllm
from tests.trainer.deploy.trained_run import LORA, facts_of, make_run

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Of the embedded base, whose tokenizer has none."""


@pytest.fixture
def server() -> Iterator[FakeVllm]:
    running = FakeVllm()
    yield running
    running.close()


@pytest.fixture
def served(adapter: AdapterFacts) -> AdapterFacts:
    return replace(adapter, base_model=BASE)


async def to(server: FakeVllm, run: Path, adapter: AdapterFacts, **options: Any) -> Deployment:
    return await deploy(run, adapter, f"vllm:{server.url}", options=options)


async def test_a_copy_is_loaded_and_again_after_a_restart(server: FakeVllm, run: Path, served: AdapterFacts) -> None:
    deployment = await to(server, run, served)
    (directory,) = map(Path, server.adapters.values())
    assert (directory / "adapter_model.safetensors").read_bytes() == served.files()[1].read_bytes()
    assert run / "deployments" in directory.parents, "a checkpoint may be deleted"
    assert (deployment.base_url, deployment.key_variable) == (f"{server.url}/v1", None)
    server.adapters.clear()
    assert await deployment.host.status(deployment.record) == "not loaded there"
    await to(server, run, served)
    assert list(server.adapters) == [deployment.model_id]
    await deployment.undeploy()
    assert not directory.exists()


async def test_a_server_that_takes_no_adapters_or_has_another_base_is_told_how_to_start(
    server: FakeVllm, run: Path, served: AdapterFacts
) -> None:
    server.loads_adapters = False
    with pytest.raises(DeployError, match="takes no adapters") as refusal:
        await to(server, run, served)
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" in refusal.value.remedy
    assert "--max-lora-rank 8" in refusal.value.remedy
    server.loads_adapters = True
    other = replace(served, base_model="org/other")
    with pytest.raises(DeployError, match="serves org/base, not org/other") as refusal:
        await to(server, run, other)
    assert "base=" in refusal.value.remedy
    assert server.made == []
    await to(server, run, other, base=BASE)
    assert len(server.adapters) == 1


async def test_the_server_reads_the_path_that_it_sees(server: FakeVllm, run: Path, served: AdapterFacts) -> None:
    with pytest.raises(DeployError, match="does not lie in /elsewhere"):
        await to(server, run, served, path_map="/elsewhere=/x")
    await to(server, run, served, path_map=f"{run.parents[1]}=/mnt/runs")
    (record,) = read_records(run)
    assert list(server.adapters.values()) == [f"/mnt/runs/desk/clerk/deployments/{record.id}"]


@pytest.mark.slow
@pytest.mark.vllm
async def test_a_real_vllm_serves_the_step_and_what_it_should_not_serve_is_found_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    (tmp_path / "server").mkdir()
    served = Served(str(EMBEDDED_PATH), torch.float32, "cpu", LORA.rank, 8, 256, versions=4)
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    settings = VllmSettings(python=os.environ["GAVEL_TEST_VLLM_PYTHON"], arguments=["--chat-template", str(template)])
    engine = vllm_engine(settings, served, tmp_path / "server")
    lines: list[str] = []
    try:
        address, adapter = f"vllm:{engine._url}", facts_of(run, 12)
        description = read_description(run / "model.json")
        deployment = await deploy(run, adapter, address, description=description, report=lines.append)
        assert "it serves step 12" in deployment.record.smoke_test
        other = await deploy(run, facts_of(run, 11), address)
        for model_id, found in ((other.model_id, "step 11"), (str(EMBEDDED_PATH), "the base without an adapter")):
            wrong = replace(deployment, model_id=model_id)
            with pytest.raises(DeployError, match=f"it serves {found}, not step 12"):
                await SmokeTest(run, 12, adapter.directory, description)(wrong, lines.append)
        await deployment.undeploy()
        assert await deployment.host.status(deployment.record) == "not loaded there"
        assert await other.host.status(other.record) == "serving"
    finally:
        engine.close()
