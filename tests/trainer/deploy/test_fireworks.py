"""What only Fireworks does: a model of the account over a base of its own, in a dedicated deployment."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gavel.trainer.deploy import host as asking
from gavel.trainer.deploy.deploy import deploy, undeploy
from gavel.trainer.deploy.fireworks import base_name
from gavel.trainer.deploy.host import Deployment, open_host
from gavel.trainer.deploy.record import AdapterFacts, DeployError, read_facts, read_records
from tests.trainer.deploy.conftest import write_adapter
from tests.trainer.deploy.fakes.fireworks import ACCOUNT, FakeFireworks
from tests.trainer.deploy.targets import HOSTS, ask_at_once

ADDRESS = f"fireworks:{ACCOUNT}"


@pytest.fixture
def fireworks(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeFireworks]:
    with HOSTS["fireworks"]() as target:
        ask_at_once(monkeypatch, target.environment)
        (fake,) = target.servers
        assert isinstance(fake, FakeFireworks)
        yield fake


async def deployed(run: Path, adapter: AdapterFacts, **options: Any) -> Deployment:
    return await deploy(run, adapter, ADDRESS, deadline=60.0, options=options)


async def test_an_adapter_is_loaded_into_a_deployment_of_its_own(
    fireworks: FakeFireworks, run: Path, adapter: AdapterFacts
) -> None:
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
    assert await deployment.host.status(deployment.record) == "deployed"


async def test_a_deployment_that_is_there_is_used_and_stays(
    fireworks: FakeFireworks, run: Path, adapter: AdapterFacts
) -> None:
    fireworks.deployments["mine"] = {"name": "accounts/desk/deployments/mine", "state": "READY"}
    shared = await deployed(run, adapter, deployment="mine")
    assert shared.model_id.endswith("#accounts/desk/deployments/mine")
    await shared.undeploy()
    assert fireworks.deployments["mine"]["state"] == "READY"


async def test_a_deployment_that_was_deleted_is_taken_up_again(
    fireworks: FakeFireworks, run: Path, adapter: AdapterFacts
) -> None:
    fireworks.fail("POST /v1/accounts/desk/deployedModels", 400, message="no addons")
    with pytest.raises(DeployError, match="no addons"):
        await deployed(run, adapter)
    await undeploy(read_records(run)[0])
    assert fireworks.left() == 0
    again = await deployed(run, adapter)
    assert fireworks.deployments[again.record.remote_name]["state"] == "READY"


@pytest.mark.parametrize(
    ("status", "remedy"), [(401, "FIREWORKS_API_KEY"), (403, "FIREWORKS_API_KEY"), (402, "credit"), (429, "quota")]
)
async def test_what_the_host_refuses_is_told_with_what_to_do(
    fireworks: FakeFireworks,
    run: Path,
    adapter: AdapterFacts,
    status: int,
    remedy: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "PATIENCE", 0.05)
    fireworks.fail("POST /v1/accounts/desk/deployments", status, times=10**6)
    with pytest.raises(DeployError, match=str(status)) as refusal:
        await deployed(run, adapter)
    assert remedy in refusal.value.remedy


async def test_a_deployment_that_fails_or_is_not_there_is_told(
    fireworks: FakeFireworks, run: Path, adapter: AdapterFacts
) -> None:
    fireworks.deployments["mine"] = {"state": "FAILED", "status": {"message": "no GPUs left"}, "name": "mine"}
    with pytest.raises(DeployError, match="no GPUs left"):
        await deployed(run, adapter, deployment="mine")
    with pytest.raises(DeployError, match="there is no deployment other"):
        await deployed(run, adapter, deployment="other")


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


async def test_a_base_that_it_lacks_is_told(fireworks: FakeFireworks, run: Path, adapter: AdapterFacts) -> None:
    for base, why in (("nothing", "has no model"), ("qwen3-8b-vision", "takes no adapters")):
        with pytest.raises(DeployError, match=why):
            await deployed(run, adapter, base=f"accounts/fireworks/models/{base}")
    assert not fireworks.made


def test_names_of_the_hub_become_those_of_fireworks() -> None:
    names = {
        "Qwen/Qwen2.5-7B-Instruct": "qwen2p5-7b-instruct",
        "meta-llama/Llama-3.1-8B-Instruct": "llama-v3p1-8b-instruct",
    }
    for there, here in names.items():
        assert base_name(there) == f"accounts/fireworks/models/{here}"
