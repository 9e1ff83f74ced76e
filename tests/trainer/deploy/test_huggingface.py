"""What only Hugging Face does: a private repository of the Hub, and an Inference Endpoint that serves its commit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gavel.trainer.deploy.deploy import deploy, undeploy
from gavel.trainer.deploy.host import Deployment, open_host
from gavel.trainer.deploy.record import AdapterFacts, DeployError, read_facts, read_records
from tests.fake_hub import TOKEN, FakeHub
from tests.trainer.deploy.conftest import write_adapter
from tests.trainer.deploy.fakes.huggingface import FakeEndpoints
from tests.trainer.deploy.targets import HOSTS, ask_at_once

ADDRESS = "huggingface:desk"
Servers = tuple[FakeHub, FakeEndpoints]


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    with HOSTS["huggingface"]() as target:
        ask_at_once(monkeypatch, target.environment)
        hub, endpoints = target.servers
        assert isinstance(hub, FakeHub)
        assert isinstance(endpoints, FakeEndpoints)
        yield hub, endpoints


async def deployed(run: Path, adapter: AdapterFacts, **options: Any) -> Deployment:
    return await deploy(run, adapter, ADDRESS, deadline=60.0, options=options)


async def test_an_adapter_is_published_and_its_commit_served(
    servers: Servers, run: Path, adapter: AdapterFacts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    hub, endpoints = servers
    (adapter.directory / "README.md").write_text("---\nlibrary_name: peft\n---\n")
    (adapter.directory / "trainer_state").mkdir()
    (adapter.directory / "trainer_state" / "optimizer.pt").write_bytes(b"kept here")
    deployment = await deployed(run, adapter)
    name = deployment.record.remote_name
    repository = hub.repositories[f"desk/{name}"]
    assert repository.private
    assert sorted(repository.files) == ["README.md", "adapter_config.json", "adapter_model.safetensors"]
    assert repository.files["adapter_model.safetensors"] == adapter.files()[1].read_bytes()
    (made,) = endpoints.endpoints.values()
    assert made["model"]["revision"] == repository.commit
    assert {"--model=Qwen/Qwen3-8B", f"--lora-modules={name}=/repository"} <= set(made["model"]["args"])
    assert made["compute"]["scaling"] == {"minReplica": 0, "maxReplica": 1, "scaleToZeroTimeout": 15}
    assert "secrets" not in made["model"]
    assert deployment.base_url == f"{made['status']['url']}/v1"
    assert deployment.model_id == name
    assert await deployment.host.status(deployment.record) == "running"
    assert "0.8 USD an hour" in caplog.text


async def test_a_gated_base_gets_the_token_as_a_secret_and_nowhere_else(
    servers: Servers, run: Path, adapter: AdapterFacts
) -> None:
    deployment = await deployed(run, adapter, gated=True)
    (made,) = servers[1].endpoints.values()
    assert made["model"]["secrets"] == {"HF_TOKEN": TOKEN}
    assert TOKEN not in deployment.record.path.read_text()


async def test_an_endpoint_that_fails_is_told_and_removed(servers: Servers, run: Path, adapter: AdapterFacts) -> None:
    hub, endpoints = servers
    endpoints.fails_with = "the image cannot be pulled"
    with pytest.raises(DeployError, match="cannot be pulled") as failure:
        await deployed(run, adapter)
    assert "gavel undeploy" in failure.value.remedy
    await undeploy(read_records(run)[0])
    assert not endpoints.endpoints
    assert not hub.repositories


@pytest.mark.parametrize(("status", "remedy"), [(401, "HF_TOKEN"), (403, "HF_TOKEN"), (402, "credit"), (400, "docs")])
async def test_what_the_host_refuses_is_told_with_what_to_do(
    servers: Servers, run: Path, adapter: AdapterFacts, status: int, remedy: str
) -> None:
    servers[1].fail("POST", status, times=9)
    with pytest.raises(DeployError, match=str(status)) as refusal:
        await deployed(run, adapter)
    assert remedy in refusal.value.remedy


async def test_a_machine_that_is_not_there_is_told_before_an_endpoint_is_made(
    servers: Servers, run: Path, adapter: AdapterFacts
) -> None:
    with pytest.raises(DeployError, match="nvidia-h200 x1 is not available in us-east-1") as refusal:
        await deployed(run, adapter, instance_type="nvidia-h200")
    assert "nvidia-l4 x1" in refusal.value.remedy
    with pytest.raises(DeployError, match="nvidia-l4 x1 is not available in eu-nowhere-9") as elsewhere:
        await deployed(run, adapter, region="eu-nowhere-9")
    assert "aws us-east-1" in elsewhere.value.remedy
    assert "gavel undeploy" in elsewhere.value.remedy  # the adapter is on the Hub already
    assert not servers[1].made


def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    write_adapter(tmp_path / "other", rank=1024)
    facts = read_facts(tmp_path / "other", project="desk", name="clerk", step=1, base_model="embedded/returns-desk")
    misfits = open_host(ADDRESS).check(facts)
    words = "1024", "only on this machine"
    assert [word in misfit for word, misfit in zip(words, misfits, strict=True)] == [True, True]
