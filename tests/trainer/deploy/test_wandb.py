"""W&B Inference over W&B's own SDK, whose server is on loopback: one artifact, whatever fails or is killed."""

from pathlib import Path
from typing import Any

import pytest

from gavel.trainer.deploy.deploy import deploy, undeploy
from gavel.trainer.deploy.host import Deployment, open_host
from gavel.trainer.deploy.record import AdapterFacts, DeployError, DeploymentRecord, read_facts, read_records
from tests.trainer.deploy.conftest import write_adapter
from tests.trainer.deploy.fakes.scripted import Killed, dying_at
from tests.trainer.deploy.fakes.wandb import KEY, FakeWandb, manifest_of

pytest.importorskip("wandb")
pytestmark = pytest.mark.slow  # the SDK starts a process of its own
ADDRESS = "wandb:desk/serving"


@pytest.fixture
def qwen(run: Path) -> AdapterFacts:
    directory = write_adapter(run / "checkpoints" / "000012")
    return read_facts(directory, project="desk", name="clerk", step=12, base_model="Qwen/Qwen2.5-14B-Instruct")


async def deployed(run: Path, adapter: AdapterFacts, **options: Any) -> Deployment:
    return await deploy(run, adapter, ADDRESS, deadline=120.0, options=options)


async def test_an_adapter_becomes_one_artifact_that_can_be_asked_for_and_removed(
    wandb_server: FakeWandb, run: Path, qwen: AdapterFacts
) -> None:
    deployment = await deployed(run, qwen)
    name = deployment.record.remote_name
    (artifact,) = wandb_server.committed
    assert (artifact["type"], artifact["name"]) == ("lora", name)
    assert artifact["metadata"] == '{"wandb.base_model":"Qwen/Qwen2.5-14B-Instruct"}'
    assert sorted(manifest_of(wandb_server, artifact)) == ["adapter_config.json", "adapter_model.safetensors"]
    weights = wandb_server.files[f"/files/{artifact['id']}/adapter_model.safetensors"]
    assert weights == qwen.files()[1].read_bytes()
    assert deployment.model_id == f"wandb-artifact:///desk/serving/{name}:step12"
    assert await deployment.host.status(deployment.record) == "there"
    await deployed(run, qwen)
    assert len(wandb_server.artifacts) == len(wandb_server.runs) == 1
    assert KEY not in deployment.record.path.read_text()
    await deployment.undeploy()
    await deployment.undeploy()
    assert not wandb_server.artifacts


async def test_a_killed_deployment_goes_on_and_makes_nothing_twice(
    wandb_server: FakeWandb, run: Path, qwen: AdapterFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(DeploymentRecord, "finish", dying_at("artifact"))
        with pytest.raises(Killed):
            await deployed(run, qwen)
    await deployed(run, qwen)
    assert len(wandb_server.artifacts) == len(wandb_server.runs) == 1
    assert wandb_server.count("CommitArtifact") == 1
    await undeploy(read_records(run)[0])
    assert not wandb_server.artifacts


async def test_a_busy_server_is_asked_again(wandb_server: FakeWandb, run: Path, qwen: AdapterFacts) -> None:
    wandb_server.fail("CreateArtifactFiles", 500)
    wandb_server.fail("CommitArtifact", 429)
    await deployed(run, qwen)
    assert len(wandb_server.committed) == 1


async def test_a_wrong_key_is_told_and_not_shown(
    wandb_server: FakeWandb, run: Path, qwen: AdapterFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = "f" * 40
    monkeypatch.setenv("WANDB_API_KEY", wrong)
    with pytest.raises(DeployError) as refusal:
        await deployed(run, qwen)
    assert "WANDB_API_KEY" in refusal.value.remedy
    assert wrong not in str(refusal.value)
    monkeypatch.delenv("WANDB_API_KEY")
    with pytest.raises(DeployError, match="WANDB_API_KEY is not set"):
        await deployed(run, qwen)


def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    write_adapter(tmp_path / "other", rank=32)
    facts = read_facts(tmp_path / "other", project="desk", name="clerk", step=1, base_model="Qwen/Qwen3-8B")
    misfits = open_host(ADDRESS).check(facts)
    assert [word in misfit for word, misfit in zip(("32", "Qwen/Qwen2.5-14B"), misfits, strict=True)] == [True, True]
    assert len(open_host(ADDRESS, base="Qwen/Qwen3-8B").check(facts)) == 1
    with pytest.raises(DeployError, match="no project of W&B"):
        open_host("wandb:desk")
