"""The Hub and its Inference Endpoints: one repository, one endpoint, whatever fails or is killed."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from gavel.trainer.deploy import host as host_module
from gavel.trainer.deploy.deploy import deploy, undeploy
from gavel.trainer.deploy.host import Deployment, open_host
from gavel.trainer.deploy.record import AdapterFacts, DeployError, DeploymentRecord, read_facts, read_records
from tests.fake_hub import TOKEN, FakeHub
from tests.trainer.deploy.conftest import write_adapter
from tests.trainer.deploy.fakes.huggingface import FakeEndpoints
from tests.trainer.deploy.fakes.scripted import Killed, dying_at

ADDRESS = "huggingface:desk"


@pytest.fixture
def endpoints(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> Generator[FakeEndpoints]:
    fake = FakeEndpoints(hub)
    monkeypatch.setattr(constants, "INFERENCE_ENDPOINTS_ENDPOINT", f"{fake.url}/v2")
    monkeypatch.setattr(host_module, "PAUSE", 0.01)
    monkeypatch.setattr(host_module, "_backoff", lambda _state: 0.01)
    yield fake
    fake.close()


async def deployed(run: Path, adapter: AdapterFacts, *, wait: bool = True, **options: Any) -> Deployment:
    return await deploy(run, adapter, ADDRESS, wait=wait, deadline=60.0, options=options)


async def test_an_adapter_is_published_served_and_removed(
    endpoints: FakeEndpoints, hub: FakeHub, run: Path, adapter: AdapterFacts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (adapter.directory / "README.md").write_text("---\nlibrary_name: peft\n---\n")
    deployment = await deployed(run, adapter)
    name = deployment.record.remote_name
    repository = hub.repositories[f"desk/{name}"]
    assert repository.private
    assert sorted(repository.files) == ["README.md", "adapter_config.json", "adapter_model.safetensors"]
    assert repository.files["adapter_model.safetensors"] == adapter.files()[1].read_bytes()
    (made,) = endpoints.endpoints.values()
    assert made["model"]["revision"] == repository.commit
    assert made["model"]["args"][-2:] == ["--lora-modules", f"{name}=/repository"]
    assert made["compute"]["scaling"] == {"minReplica": 0, "maxReplica": 1, "scaleToZeroTimeout": 15}
    assert "secrets" not in made["model"]
    assert deployment.base_url == f"{made['status']['url']}/v1"
    assert deployment.model_id == name
    assert await deployment.host.status(deployment.record) == "running"
    assert "0.8 USD an hour" in caplog.text
    assert TOKEN not in caplog.text + deployment.record.path.read_text()
    await deployed(run, adapter)
    assert len(endpoints.made) == repository.commits == 1
    await deployment.undeploy()
    await deployment.undeploy()
    assert not endpoints.endpoints
    assert not hub.repositories


async def test_the_hub_alone_serves_nothing_and_says_so(
    endpoints: FakeEndpoints, hub: FakeHub, run: Path, adapter: AdapterFacts
) -> None:
    published = await deployed(run, adapter, endpoint=False)
    assert published.model_id in hub.repositories
    assert not endpoints.calls
    assert "and not served" in published.record.smoke_test
    with pytest.raises(DeployError, match="is published, and not served"):
        published.openai_client()
    assert await published.host.status(published.record) == "published"
    await published.undeploy()
    assert not hub.repositories


@pytest.mark.parametrize("is_done", [False, True])
async def test_an_answer_that_is_lost_makes_nothing_twice(
    endpoints: FakeEndpoints, hub: FakeHub, run: Path, adapter: AdapterFacts, is_done: bool
) -> None:
    endpoints.fail("POST", 500, is_done=is_done)
    endpoints.fail("GET", 503, times=2)
    await deployed(run, adapter)
    assert len(endpoints.made) == len(hub.repositories) == 1


@pytest.mark.parametrize("stage", ["files", "endpoint"])
async def test_a_killed_deployment_goes_on_where_it_was(
    endpoints: FakeEndpoints,
    hub: FakeHub,
    run: Path,
    adapter: AdapterFacts,
    stage: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(DeploymentRecord, "finish", dying_at(stage))
        with pytest.raises(Killed):
            await deployed(run, adapter)
    await deployed(run, adapter)
    assert len(endpoints.made) == len(hub.repositories) == 1
    assert [repository.commits for repository in hub.repositories.values()] == [1]


async def test_a_half_made_deployment_is_removed(
    endpoints: FakeEndpoints, hub: FakeHub, run: Path, adapter: AdapterFacts
) -> None:
    endpoints.fails_with = "the image cannot be pulled"
    with pytest.raises(DeployError, match="cannot be pulled") as failure:
        await deployed(run, adapter)
    assert "gavel undeploy" in failure.value.remedy
    await undeploy(read_records(run)[0])
    assert not endpoints.endpoints
    assert not hub.repositories


@pytest.mark.parametrize(("status", "remedy"), [(401, "HF_TOKEN"), (403, "HF_TOKEN"), (402, "credit"), (400, "docs")])
async def test_what_the_host_refuses_is_told_with_what_to_do(
    endpoints: FakeEndpoints, run: Path, adapter: AdapterFacts, status: int, remedy: str
) -> None:
    endpoints.fail("POST", status, times=9)
    with pytest.raises(DeployError, match=str(status)) as refusal:
        await deployed(run, adapter)
    assert remedy in refusal.value.remedy
    assert TOKEN not in str(refusal.value)


async def test_a_machine_that_is_not_there_is_told_before_an_endpoint_is_made(
    endpoints: FakeEndpoints, run: Path, adapter: AdapterFacts
) -> None:
    with pytest.raises(DeployError, match="nvidia-h200 x1 is not available in us-east-1") as refusal:
        await deployed(run, adapter, instance_type="nvidia-h200")
    assert "nvidia-l4 x1" in refusal.value.remedy
    with pytest.raises(DeployError, match="nvidia-l4 x1 is not available in eu-nowhere-9") as elsewhere:
        await deployed(run, adapter, region="eu-nowhere-9")
    assert "It is in: aws us-east-1" in elsewhere.value.remedy
    assert "gavel undeploy" in elsewhere.value.remedy  # the adapter is on the Hub already
    assert not endpoints.made


async def test_an_endpoint_that_is_not_waited_for_is_finished_by_the_same_command(
    endpoints: FakeEndpoints, run: Path, adapter: AdapterFacts
) -> None:
    first = await deployed(run, adapter, wait=False)
    assert first.base_url == ""
    assert (await deployed(run, adapter)).base_url.endswith("/v1")
    assert len(endpoints.made) == 1


async def test_a_gated_base_gets_the_token_as_a_secret_and_nowhere_else(
    endpoints: FakeEndpoints, run: Path, adapter: AdapterFacts
) -> None:
    deployment = await deployed(run, adapter, gated=True)
    (made,) = endpoints.endpoints.values()
    assert made["model"]["secrets"] == {"HF_TOKEN": TOKEN}
    assert TOKEN not in deployment.record.path.read_text()


def test_what_does_not_fit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_adapter(tmp_path / "other", rank=1024)
    facts = read_facts(tmp_path / "other", project="desk", name="clerk", step=1, base_model="embedded/returns-desk")
    misfits = open_host(ADDRESS).check(facts)
    assert [word in misfit for word, misfit in zip(("1024", "endpoint=false"), misfits, strict=True)] == [True, True]
    assert open_host(ADDRESS, endpoint=False).check(facts) == []
    with pytest.raises(DeployError, match="no user or organisation"):
        open_host("huggingface")


async def test_without_a_token_nothing_is_asked(
    endpoints: FakeEndpoints, run: Path, adapter: AdapterFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(DeployError, match="HF_TOKEN is not set"):
        await deployed(run, adapter)
    assert not endpoints.calls


async def test_a_record_that_was_begun_anew_still_removes_what_has_its_name(
    endpoints: FakeEndpoints, hub: FakeHub, run: Path, adapter: AdapterFacts
) -> None:
    deployment = await deployed(run, adapter)
    deployment.record.stages.clear()  # as in a run directory that was restored from before it
    deployment.record.save()
    await undeploy(read_records(run)[0])
    assert not endpoints.endpoints
    assert not hub.repositories
