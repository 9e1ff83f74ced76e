"""What only one host does: Together, Fireworks, Hugging Face and W&B Inference."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gavel.trainer.deploy import host as asking
from gavel.trainer.deploy.deploy import deploy, undeploy
from gavel.trainer.deploy.fireworks import base_name
from gavel.trainer.deploy.host import Deployment, open_host
from gavel.trainer.deploy.record import AdapterFacts, DeployError, read_facts, read_records
from gavel.trainer.deploy.together import PART
from tests.fake_hub import TOKEN, FakeHub
from tests.trainer.deploy.conftest import write_adapter
from tests.trainer.deploy.fakes.fireworks import ACCOUNT, FakeFireworks
from tests.trainer.deploy.fakes.huggingface import FakeEndpoints
from tests.trainer.deploy.fakes.scripted import KEY
from tests.trainer.deploy.fakes.together import FakeTogether
from tests.trainer.deploy.fakes.wandb import FakeWandb, manifest_of
from tests.trainer.deploy.targets import HOSTS, ask_at_once

_PROJECT = "POST /v2/projects/prj_1"


@pytest.mark.parametrize(
    ("host", "route", "status", "remedy"),
    [
        ("together", f"{_PROJECT}/models", 402, "credit"),
        ("together", f"{_PROJECT}/endpoints", 403, "rights"),
        ("together", "/deployments", 409, "minute"),
        *(("fireworks", "POST /v1/accounts/desk/deployments", status, "FIREWORKS_API_KEY") for status in (401, 403)),
        ("fireworks", "POST /v1/accounts/desk/deployments", 402, "credit"),
        ("fireworks", "POST /v1/accounts/desk/deployments", 429, "quota"),
        *(("huggingface", "POST", status, "HF_TOKEN") for status in (401, 403)),
        ("huggingface", "POST", 402, "credit"),
        ("huggingface", "POST", 400, "docs"),
    ],
)
async def test_what_a_host_refuses_is_told_with_what_to_do(
    host: str,
    route: str,
    status: int,
    remedy: str,
    run: Path,
    adapter: AdapterFacts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "PATIENCE", 0.05)
    with HOSTS[host]() as target:
        ask_at_once(monkeypatch, target.environment)
        server: Any = target.servers[-1]
        server.fail(route, status, times=10**6)
        with pytest.raises(DeployError, match=f"{status} asked for") as refusal:
            await deploy(run, adapter, target.address, deadline=60.0)
    assert remedy in refusal.value.remedy


ALL = ["model", "revision", "endpoint", "deployment", "adapter"]


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTogether]:
    with HOSTS["together"]() as target:
        ask_at_once(monkeypatch, target.environment)
        (fake,) = target.servers
        assert isinstance(fake, FakeTogether)
        yield fake


async def to(run: Path, adapter: AdapterFacts, lines: list[str] | None = None, **given: Any) -> Deployment:
    report: Callable[[str], None] = (lines if lines is not None else []).append
    return await deploy(run, adapter, "together", report=report, **{"deadline": 60.0, **given})


async def test_an_adapter_is_attached_to_an_idling_deployment_of_its_base(
    together: FakeTogether, run: Path, adapter: AdapterFacts
) -> None:
    lines: list[str] = []
    deployment = await to(run, adapter, lines)
    assert together.made == ALL
    (made,) = together.deployments.values()
    assert made["inactiveTimeout"] == 30, "an idle deployment never stays on by accident"
    (endpoint,) = together.endpoints.values()
    assert endpoint["trafficSplit"] == [{"deploymentId": made["id"], "weight": 1.0}]
    name = deployment.record.remote_name
    assert deployment.model_id == f"acme/{name}:acme/{name}"
    assert deployment.base_url == f"{together.url}/v1"
    before = lines[: next(at for at, line in enumerate(lines) if "waiting for" in line)]
    assert any("3.99 USD an hour" in line for line in before)
    made["status"]["state"], together.end = "DEPLOYMENT_STATE_STOPPED", "STOPPED"
    assert await deployment.host.status(deployment.record) == "stopped"


async def test_a_large_file_goes_in_parts_and_again_after_it_was_cut(together: FakeTogether, run: Path) -> None:
    directory = write_adapter(run / "checkpoints" / "000012", size=12 * 2**20)
    adapter = read_facts(directory, project="desk", name="clerk", step=12, base_model="Qwen/Qwen3-8B")
    assert 2 * PART < adapter.size < 3 * PART
    together.fail("PUT /store/up_model_0_adapter_model.safetensors", 403)
    with pytest.raises(DeployError, match="of adapter_model") as refusal:
        await to(run, adapter)
    texts = [str(refusal.value), *(file.read_text() for file in (run / "deployments").glob("*.json"))]
    assert "expired" in refusal.value.remedy
    assert not any("hidden" in text.replace("…hidden…", "") or KEY in text for text in texts)
    await to(run, adapter)
    assert together.made == ALL
    assert sorted(len(upload["parts"]) for upload in together.uploads.values()) == [1, 3]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"validation": "FAILED"}, "rank 256 exceeds the maximum of 64"),
        ({"load": "FAILED"}, "embed_tokens is not supported"),
        ({"end": "FAILED"}, "no capacity in any region"),
        ({"without_adapters": True}, "without adapters"),
    ],
)
async def test_what_the_host_finds_wrong_is_told_and_can_be_removed(
    together: FakeTogether, run: Path, adapter: AdapterFacts, change: dict[str, Any], words: str
) -> None:
    for name, value in change.items():
        setattr(together, name, value)
    with pytest.raises(DeployError, match=words):
        await to(run, adapter)
    await undeploy(read_records(run)[0])
    assert together.left() == 0


async def test_a_slow_host_is_waited_for_until_the_deadline(
    together: FakeTogether, run: Path, adapter: AdapterFacts
) -> None:
    together.looks = 10**6
    with pytest.raises(DeployError, match="does not serve") as refusal:
        await to(run, adapter, deadline=2.0)
    assert "gavel undeploy together-000012" in refusal.value.remedy
    together.looks = 3
    await to(run, adapter)
    assert together.made == ALL


async def test_a_base_or_a_project_that_it_lacks_is_told(
    together: FakeTogether, run: Path, adapter: AdapterFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = read_facts(adapter.directory, project="d", name="n", step=12, base_model="org/unheard-of")
    with pytest.raises(DeployError, match="no org/unheard-of"):
        await to(run, facts)
    monkeypatch.setenv("TOGETHER_PROJECT_ID", "other")
    with pytest.raises(DeployError, match="project other not found") as refusal:
        await to(run, adapter)
    assert "TOGETHER_PROJECT_ID" in refusal.value.remedy
    assert together.made == []


async def test_what_does_not_fit_is_refused_before_anything_is_asked(together: FakeTogether, run: Path) -> None:
    directory = write_adapter(run / "x", targets=("q_proj", "in_proj"))
    facts = read_facts(directory, project="d", name="n", step=1, base_model=str(run))
    with pytest.raises(DeployError, match="in_proj") as refusal:
        await to(run, facts)
    assert "only on this machine" in refusal.value.remedy
    assert together.calls == []
    assert read_records(run) == []


FIREWORKS = f"fireworks:{ACCOUNT}"


@pytest.fixture
def fireworks(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeFireworks]:
    with HOSTS["fireworks"]() as target:
        ask_at_once(monkeypatch, target.environment)
        (fake,) = target.servers
        assert isinstance(fake, FakeFireworks)
        yield fake


async def deployed(run: Path, adapter: AdapterFacts, **options: Any) -> Deployment:
    return await deploy(run, adapter, FIREWORKS, deadline=60.0, options=options)


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
    misfits = open_host(FIREWORKS).check(facts)
    assert [word in misfit for word, misfit in zip(("128", "lm_head", "base="), misfits, strict=True)] == [True] * 3
    with pytest.raises(DeployError, match="does not take this adapter"):
        await deploy(run, facts, FIREWORKS)
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


HUGGING_FACE = "huggingface:desk"
Servers = tuple[FakeHub, FakeEndpoints]


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    with HOSTS["huggingface"]() as target:
        ask_at_once(monkeypatch, target.environment)
        hub, endpoints = target.servers
        assert isinstance(hub, FakeHub)
        assert isinstance(endpoints, FakeEndpoints)
        yield hub, endpoints


async def published(run: Path, adapter: AdapterFacts, **options: Any) -> Deployment:
    return await deploy(run, adapter, HUGGING_FACE, deadline=60.0, options=options)


async def test_an_adapter_is_published_and_its_commit_served(
    servers: Servers, run: Path, adapter: AdapterFacts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    hub, endpoints = servers
    (adapter.directory / "README.md").write_text("---\nlibrary_name: peft\n---\n")
    (adapter.directory / "trainer_state").mkdir()
    (adapter.directory / "trainer_state" / "optimizer.pt").write_bytes(b"kept here")
    deployment = await published(run, adapter)
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
    deployment = await published(run, adapter, gated=True)
    (made,) = servers[1].endpoints.values()
    assert made["model"]["secrets"] == {"HF_TOKEN": TOKEN}
    assert TOKEN not in deployment.record.path.read_text()


async def test_an_endpoint_that_fails_is_told_and_removed(servers: Servers, run: Path, adapter: AdapterFacts) -> None:
    hub, endpoints = servers
    endpoints.fails_with = "the image cannot be pulled"
    with pytest.raises(DeployError, match="cannot be pulled") as failure:
        await published(run, adapter)
    assert "gavel undeploy" in failure.value.remedy
    await undeploy(read_records(run)[0])
    assert not endpoints.endpoints
    assert not hub.repositories


async def test_a_machine_that_is_not_there_is_told_before_an_endpoint_is_made(
    servers: Servers, run: Path, adapter: AdapterFacts
) -> None:
    with pytest.raises(DeployError, match="nvidia-h200 x1 is not available in us-east-1") as refusal:
        await published(run, adapter, instance_type="nvidia-h200")
    assert "nvidia-l4 x1" in refusal.value.remedy
    with pytest.raises(DeployError, match="nvidia-l4 x1 is not available in eu-nowhere-9") as elsewhere:
        await published(run, adapter, region="eu-nowhere-9")
    assert "aws us-east-1" in elsewhere.value.remedy
    assert "gavel undeploy" in elsewhere.value.remedy  # the adapter is on the Hub already
    assert not servers[1].made


def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    write_adapter(tmp_path / "other", rank=1024)
    facts = read_facts(tmp_path / "other", project="desk", name="clerk", step=1, base_model="embedded/returns-desk")
    misfits = open_host(HUGGING_FACE).check(facts)
    words = "1024", "only on this machine"
    assert [word in misfit for word, misfit in zip(words, misfits, strict=True)] == [True, True]


WANDB = "wandb:desk/serving"


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
    deployment = await deploy(run, qwen, WANDB, deadline=120.0)
    name = deployment.record.remote_name
    (artifact,) = server.committed
    assert (artifact["type"], artifact["name"]) == ("lora", name)
    assert artifact["metadata"] == '{"wandb.base_model":"Qwen/Qwen2.5-14B-Instruct"}'
    assert sorted(manifest_of(server, artifact)) == ["adapter_config.json", "adapter_model.safetensors"]
    weights = server.files[f"/files/{artifact['id']}/adapter_model.safetensors"]
    assert weights == qwen.files()[1].read_bytes()
    assert deployment.model_id == f"wandb-artifact:///desk/serving/{name}:step12"


def test_what_does_not_fit_w_and_b_is_told(adapter: AdapterFacts) -> None:
    facts = replace(adapter, rank=32)
    rank, base = open_host(WANDB).check(facts)
    assert "16" in rank
    assert "Qwen/Qwen2.5-14B" in base
    assert len(open_host(WANDB, base="Qwen/Qwen3-8B").check(facts)) == 1
