"""Fireworks over its own SDK: one model, one deployment and one loading, whatever fails or is killed."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from gavel.trainer.deploy import host as host_module
from gavel.trainer.deploy.deploy import deploy, undeploy
from gavel.trainer.deploy.fireworks import base_name
from gavel.trainer.deploy.host import Deployment, open_host
from gavel.trainer.deploy.record import AdapterFacts, DeployError, DeploymentRecord, read_facts, read_records
from tests.trainer.deploy.conftest import write_adapter
from tests.trainer.deploy.fakes.fireworks import ACCOUNT, FakeFireworks
from tests.trainer.deploy.fakes.scripted import KEY, Killed, dying_at

pytest.importorskip("fireworks")
ADDRESS = f"fireworks:{ACCOUNT}"


@pytest.fixture
def fireworks(monkeypatch: pytest.MonkeyPatch) -> Generator[FakeFireworks]:
    fake = FakeFireworks()
    monkeypatch.setenv("FIREWORKS_BASE_URL", fake.url)
    monkeypatch.setenv("FIREWORKS_API_KEY", KEY)
    monkeypatch.setattr(host_module, "PAUSE", 0.01)
    monkeypatch.setattr(host_module, "_backoff", lambda _state: 0.01)
    yield fake
    fake.close()


async def deployed(run: Path, adapter: AdapterFacts, *, wait: bool = True, **options: Any) -> Deployment:
    return await deploy(run, adapter, ADDRESS, wait=wait, deadline=60.0, options=options)


def everything(run: Path) -> str:
    return "".join(path.read_text() for path in (run / "deployments").iterdir())


async def test_an_adapter_is_served_by_a_deployment_of_its_own_and_removed(
    fireworks: FakeFireworks, run: Path, adapter: AdapterFacts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    deployment = await deployed(run, adapter)
    name = deployment.record.remote_name
    assert fireworks.made == [f"model {name}", f"deployment {name}", f"loaded {name}-{name}"[:70]]
    assert fireworks.models[name]["peftDetails"] == {
        "baseModel": "accounts/fireworks/models/qwen3-8b",
        "r": 8,
        "targetModules": ["q_proj", "v_proj"],
    }
    assert fireworks.uploaded[f"{name}/adapter_model.safetensors"] == adapter.files()[1].read_bytes()
    assert fireworks.deployments[name]["minReplicaCount"] == 0
    assert deployment.model_id == f"accounts/desk/models/{name}#accounts/desk/deployments/{name}"
    assert deployment.base_url == f"{fireworks.url}/inference/v1"
    assert f"gavel undeploy {deployment.id}" in deployment.stop_hint
    assert "GPU-second" in caplog.text
    assert KEY not in caplog.text + everything(run)
    await deployed(run, adapter)
    assert len(fireworks.made) == 3
    await deployment.undeploy()
    assert not fireworks.models
    assert not fireworks.loaded
    assert fireworks.deployments[name]["state"] == "DELETED"
    await deployment.undeploy()


async def test_serverless_and_a_deployment_that_is_there_make_none(
    fireworks: FakeFireworks, run: Path, adapter: AdapterFacts
) -> None:
    served = await deployed(run, adapter, serverless=True)
    assert served.model_id == f"accounts/desk/models/{served.record.remote_name}"
    assert not fireworks.deployments
    await served.undeploy()
    fireworks.deployments["mine"] = {"name": "accounts/desk/deployments/mine", "state": "READY"}
    shared = await deployed(run, adapter, deployment="mine")
    assert shared.model_id.endswith("#accounts/desk/deployments/mine")
    await shared.undeploy()
    assert fireworks.deployments["mine"]["state"] == "READY"


STAGES = ["POST /v1/accounts/desk/models", "PUT /upload", "POST /v1/accounts/desk/deployments", "deployedModels"]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("is_done", [False, True])
async def test_an_answer_that_is_lost_makes_nothing_twice(
    fireworks: FakeFireworks, run: Path, adapter: AdapterFacts, stage: str, is_done: bool
) -> None:
    fireworks.fail(stage, 500, is_done=is_done)
    deployment = await deployed(run, adapter)
    name = deployment.record.remote_name
    assert [each.partition(" ")[0] for each in fireworks.made] == ["model", "deployment", "loaded"]
    assert list(fireworks.models) == [name]


@pytest.mark.parametrize("stage", ["model", "upload", "deployment", "loaded"])
async def test_a_killed_deployment_goes_on_where_it_was(
    fireworks: FakeFireworks, run: Path, adapter: AdapterFacts, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the host has done what it was asked for, before the answer is recorded."""
    with monkeypatch.context() as killed:
        killed.setattr(DeploymentRecord, "finish", dying_at(stage))
        with pytest.raises(Killed):
            await deployed(run, adapter)
    again = await deployed(run, adapter)
    assert [each.partition(" ")[0] for each in fireworks.made] == ["model", "deployment", "loaded"]
    assert again.id == read_records(run)[0].id


async def test_a_half_made_deployment_is_removed(fireworks: FakeFireworks, run: Path, adapter: AdapterFacts) -> None:
    fireworks.fail("POST /v1/accounts/desk/deployedModels", 400, message="no addons")
    with pytest.raises(DeployError, match="no addons"):
        await deployed(run, adapter)
    (record,) = read_records(run)
    await undeploy(record)
    assert not fireworks.models
    assert {each["state"] for each in fireworks.deployments.values()} == {"DELETED"}
    again = await deployed(run, adapter)
    assert fireworks.deployments[again.record.remote_name]["state"] == "READY"


@pytest.mark.parametrize(
    ("status", "remedy"), [(401, "FIREWORKS_API_KEY"), (403, "FIREWORKS_API_KEY"), (402, "credit")]
)
async def test_what_the_host_refuses_is_told_with_what_to_do(
    fireworks: FakeFireworks, run: Path, adapter: AdapterFacts, status: int, remedy: str
) -> None:
    fireworks.fail("POST /v1/accounts/desk/deployments", status, times=9)
    with pytest.raises(DeployError, match=str(status)) as refusal:
        await deployed(run, adapter)
    assert remedy in refusal.value.remedy
    assert KEY not in str(refusal.value)


async def test_a_busy_host_is_asked_again_and_a_quota_is_told(
    fireworks: FakeFireworks, run: Path, adapter: AdapterFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    fireworks.fail("POST", 429, times=3)
    await deployed(run, adapter)
    assert [each.partition(" ")[0] for each in fireworks.made] == ["model", "deployment", "loaded"]
    monkeypatch.setattr(host_module, "PATIENCE", 0.05)
    fireworks.fail("DELETE", 429, times=10**6)
    with pytest.raises(DeployError, match="429") as refusal:
        await undeploy(read_records(run)[0])
    assert "quota" in refusal.value.remedy


async def test_a_deployment_that_fails_or_never_comes_is_told(
    fireworks: FakeFireworks, run: Path, adapter: AdapterFacts
) -> None:
    fireworks.deployments["mine"] = {"state": "FAILED", "status": {"message": "no GPUs left"}, "name": "mine"}
    with pytest.raises(DeployError, match="no GPUs left"):
        await deployed(run, adapter, deployment="mine")
    fireworks.deployments["mine"] = {"state": "PENDING", "name": "mine"}
    with pytest.raises(DeployError, match="does not serve") as late:
        await deploy(run, adapter, ADDRESS, deadline=0.5, options={"deployment": "mine"})
    assert "gavel undeploy" in late.value.remedy
    with pytest.raises(DeployError, match="there is no deployment other"):
        await deployed(run, adapter, deployment="other")


async def test_a_deployment_that_is_not_waited_for_is_finished_by_the_same_command(
    fireworks: FakeFireworks, run: Path, adapter: AdapterFacts
) -> None:
    deployment = await deployed(run, adapter, wait=False)
    assert not fireworks.loaded
    assert deployment.record.state == "deploying"
    again = await deployed(run, adapter)
    assert again.model_id == deployment.model_id
    assert await again.host.status(again.record) == "deployed"


async def test_what_does_not_fit_is_told_before_anything_is_asked(
    fireworks: FakeFireworks, run: Path, tmp_path: Path
) -> None:
    write_adapter(tmp_path / "other", rank=128, targets=("q_proj", "lm_head"))
    facts = read_facts(tmp_path / "other", project="desk", name="clerk", step=1, base_model="embedded/returns-desk")
    misfits = open_host(ADDRESS).check(facts)
    assert [word in misfit for word, misfit in zip(("128", "lm_head", "base="), misfits, strict=True)] == [True] * 3
    with pytest.raises(DeployError, match="does not take this adapter"):
        await deploy(run, facts, ADDRESS)
    assert not fireworks.calls


async def test_a_base_that_it_lacks_and_a_preview_that_is_closed_are_told(
    fireworks: FakeFireworks, run: Path, adapter: AdapterFacts
) -> None:
    for base, why in (("nothing", "has no model"), ("qwen3-8b-vision", "takes no adapters")):
        with pytest.raises(DeployError, match=why):
            await deployed(run, adapter, base=f"accounts/fireworks/models/{base}")
    assert not fireworks.made
    fireworks.serverless_preview = False
    with pytest.raises(DeployError, match="dedicated") as refusal:
        await deployed(run, adapter, serverless=True)
    assert "without serverless" in refusal.value.remedy


def test_options_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FIREWORKS_ACCOUNT_ID", raising=False)
    with pytest.raises(DeployError, match="name of an account"):
        open_host("fireworks")
    with pytest.raises(DeployError, match="exclude each other"):
        open_host(ADDRESS, serverless=True, deployment="mine")
    with pytest.raises(DeployError, match="too short"):
        open_host(ADDRESS, idle_minutes=1)
    monkeypatch.delenv("FIREWORKS_API_KEY", raising=False)


def test_names_of_the_hub_become_those_of_fireworks() -> None:
    names = {
        "Qwen/Qwen2.5-7B-Instruct": "qwen2p5-7b-instruct",
        "meta-llama/Llama-3.1-8B-Instruct": "llama-v3p1-8b-instruct",
    }
    for there, here in names.items():
        assert base_name(there) == f"accounts/fireworks/models/{here}"


async def test_a_record_that_was_begun_anew_still_removes_what_has_its_name(
    fireworks: FakeFireworks, run: Path, adapter: AdapterFacts
) -> None:
    deployment = await deployed(run, adapter)
    deployment.record.stages.clear()  # as in a run directory that was restored from before it
    deployment.record.save()
    await undeploy(read_records(run)[0])
    assert not fireworks.models
    assert all(each["state"] == "DELETED" for each in fireworks.deployments.values())
