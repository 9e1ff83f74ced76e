"""What only W&B Inference does: an artifact of the type lora, over a few bases."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gavel.trainer.deploy.deploy import deploy
from gavel.trainer.deploy.host import open_host
from gavel.trainer.deploy.record import AdapterFacts
from tests.trainer.deploy.fakes.wandb import FakeWandb, manifest_of
from tests.trainer.deploy.targets import HOSTS, ask_at_once

ADDRESS = "wandb:desk/serving"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWandb]:
    with HOSTS["wandb"]() as target:
        ask_at_once(monkeypatch, target.environment)
        (fake,) = target.servers
        assert isinstance(fake, FakeWandb)
        yield fake


@pytest.mark.slow
async def test_an_adapter_becomes_one_artifact_that_can_be_asked_for(
    server: FakeWandb, run: Path, adapter: AdapterFacts
) -> None:
    qwen = replace(adapter, base_model="Qwen/Qwen2.5-14B-Instruct")
    server.fail("CreateArtifactFiles", 500)
    server.fail("CommitArtifact", 429)
    deployment = await deploy(run, qwen, ADDRESS, deadline=120.0)
    name = deployment.record.remote_name
    (artifact,) = server.committed
    assert (artifact["type"], artifact["name"]) == ("lora", name)
    assert artifact["metadata"] == '{"wandb.base_model":"Qwen/Qwen2.5-14B-Instruct"}'
    assert sorted(manifest_of(server, artifact)) == ["adapter_config.json", "adapter_model.safetensors"]
    weights = server.files[f"/files/{artifact['id']}/adapter_model.safetensors"]
    assert weights == qwen.files()[1].read_bytes()
    assert deployment.model_id == f"wandb-artifact:///desk/serving/{name}:step12"


def test_what_does_not_fit_is_told(adapter: AdapterFacts) -> None:
    facts = replace(adapter, rank=32)
    rank, base = open_host(ADDRESS).check(facts)
    assert "16" in rank
    assert "Qwen/Qwen2.5-14B" in base
    assert len(open_host(ADDRESS, base="Qwen/Qwen3-8B").check(facts)) == 1
