"""What only one host does: Together, Fireworks, Hugging Face, W&B Inference and a vLLM of one's own."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gavel.trainer.config import VllmSettings
from gavel.trainer.deploy import host as asking
from gavel.trainer.deploy.deploy import deploy, facts_of_run, look_up, undeploy
from gavel.trainer.deploy.fireworks import base_name
from gavel.trainer.deploy.host import open_host
from gavel.trainer.deploy.record import AdapterFacts, DeployError, read_records
from gavel.trainer.deploy.smoke_test import smoke_test
from gavel.trainer.deploy.together import PART
from gavel.trainer.embedded import EMBEDDED_PATH
from gavel.trainer.engines.vllm_launch import Served, open_vllm_engine
from gavel.trainer.runs.run_directory import read_description
from tests.fake_hub import TOKEN
from tests.trainer.deploy.conftest import facts, write_adapter
from tests.trainer.deploy.fakes.fireworks import ACCOUNT
from tests.trainer.deploy.fakes.scripted import KEY
from tests.trainer.deploy.fakes.together import BASE
from tests.trainer.deploy.fakes.vllm import BASE as VLLM_BASE
from tests.trainer.deploy.fakes.wandb import manifest_of
from tests.trainer.deploy.targets import ask_at_once, target_of
from tests.trainer.deploy.trained_run import LORA, make_run

ALL = ["model", "revision", "endpoint", "deployment", "adapter"]
FIREWORKS, HUGGING_FACE, WANDB = f"fireworks:{ACCOUNT}", "huggingface:desk", "wandb:desk/serving"


@contextmanager
def opened(host: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with target_of(host) as target:
        ask_at_once(monkeypatch, target.environment)
        yield target


def on_loopback(host: str) -> Any:
    @pytest.fixture
    def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
        with opened(host, monkeypatch) as target:
            yield target.servers if len(target.servers) > 1 else target.servers[0]

    return servers


HOSTS = ("together", "fireworks", "huggingface", "wandb", "vllm")
together, fireworks, hugging_face, wandb, vllm = map(on_loopback, HOSTS)


async def put(address: str, run: Path, adapter: AdapterFacts, lines: Any = None, deadline=120.0, **options: Any):
    report = ([] if lines is None else lines).append
    return await deploy(run, adapter, address, deadline=deadline, report=report, options=options)


@pytest.mark.parametrize(
    ("address", "what", "words", "remedy"),
    [
        ("together", "POST /v2/projects/prj_1/models", "402 asked for", "credit"),
        ("together", "POST /v2/projects/prj_1/endpoints", "403 asked for", "rights"),
        ("together", "/deployments", "409 asked for", "minute"),
        ("together", "validation", "rank 256 exceeds the maximum of 64", "gavel undeploy"),
        ("together", "load", "embed_tokens is not supported", "gavel undeploy"),
        ("together", "end", "no capacity in any region", "gavel undeploy"),
        ("together", "without_adapters", "without adapters", ""),
        (FIREWORKS, "POST /v1/accounts/desk/deployments", "403 asked for", "FIREWORKS_API_KEY"),
        (FIREWORKS, "POST /v1/accounts/desk/deployments", "429 asked for", "quota"),
        (HUGGING_FACE, "POST", "401 asked for", "HF_TOKEN"),
        (HUGGING_FACE, "POST", "400 asked for", "docs"),
        (HUGGING_FACE, "fails_with", "FAILED", "gavel undeploy"),
    ],
)
async def test_what_a_host_refuses_or_finds_wrong_is_told(address, what, words, remedy, run, adapter, monkeypatch):
    monkeypatch.setattr(asking, "PATIENCE", 0.05)
    with opened(address.partition(":")[0], monkeypatch) as target:
        host = target.servers[-1]
        if words.endswith("asked for"):
            host.fail(what, int(words[:3]), times=999)
        else:
            setattr(host, what, "FAILED")
        with pytest.raises(DeployError, match=words) as refusal:
            await put(address, run, adapter, deadline=60.0)
        assert remedy in refusal.value.remedy
        host.failures.clear()
        for record in read_records(run):
            await undeploy(record)
        assert target.left() == 0


@pytest.mark.parametrize(
    ("address", "rank", "targets", "base", "words"),
    [
        ("together", 8, ("q_proj", "in_proj"), "here", ["in_proj", "only on this machine"]),
        ("fireworks:desk", 128, ("q_proj", "lm_head"), "embedded/returns-desk", ["128", "lm_head", "base="]),
        ("huggingface:desk", 1024, ("q_proj",), "embedded/returns-desk", ["1024", "only on this machine"]),
        ("wandb:desk/serving", 32, ("q_proj",), "Qwen/Qwen3-8B", ["16", "Qwen/Qwen2.5-14B"]),
        ("vllm:http://h", 1024, ("q_proj",), "org/base", ["512"]),
    ],
)
async def test_what_does_not_fit_is_refused_before_anything_is_made(address, rank, targets, base, words, run):
    misfit = facts(write_adapter(run / "x", rank=rank, targets=targets), str(run) if base == "here" else base)
    misfits = open_host(address).check(misfit)
    assert [word in each for word, each in zip(words, misfits, strict=True)] == [True] * len(words)
    with pytest.raises(DeployError, match="does not take this adapter"):
        await deploy(run, misfit, address)
    assert read_records(run) == []


@pytest.mark.parametrize(
    ("address", "base", "options", "words", "remedy"),
    [
        ("together", "org/unheard-of", {}, "no org/unheard-of", ""),
        ("together", BASE, {}, "project other not found", "TOGETHER_PROJECT_ID"),
        (FIREWORKS, BASE, {"base": "accounts/fireworks/models/nothing"}, "has no model", ""),
        (FIREWORKS, BASE, {"base": "accounts/fireworks/models/qwen3-8b-vision"}, "takes no adapters", ""),
        (FIREWORKS, BASE, {"deployment": "mine"}, "no GPUs left", ""),
        (FIREWORKS, BASE, {"deployment": "other"}, "there is no deployment other", ""),
        (HUGGING_FACE, BASE, {"instance_type": "nvidia-h200"}, "-h200 x1 is not available in us-east-1", "-l4 x1"),
    ],
)
async def test_what_a_host_lacks_is_told(address, base, options, words, remedy, run, adapter, monkeypatch):
    with opened(address.partition(":")[0], monkeypatch) as target:
        if remedy == "TOGETHER_PROJECT_ID":
            monkeypatch.setenv(remedy, "other")
        if address == FIREWORKS:
            failed = {"state": "FAILED", "status": {"message": "no GPUs left"}, "name": "mine"}
            target.servers[0].deployments["mine"] = failed
        with pytest.raises(DeployError, match=words) as refusal:
            await put(address, run, replace(adapter, base_model=base), **options)
        assert remedy in refusal.value.remedy
        assert "deployment" in options or not target.servers[-1].made


async def test_an_adapter_is_attached_to_an_idling_deployment_of_its_base(together, run, adapter):
    lines: list[str] = []
    deployment = await put("together", run, adapter, lines)
    assert together.made == ALL
    (made,) = together.deployments.values()
    assert made["inactiveTimeout"] == 30, "an idle deployment never stays on by accident"
    (endpoint,) = together.endpoints.values()
    assert endpoint["trafficSplit"] == [{"deploymentId": made["id"], "weight": 1.0}]
    name = deployment.record.remote_name
    assert deployment.model_id == f"acme/{name}:acme/{name}"
    assert deployment.base_url == f"{together.url}/v1"
    before = lines[: lines.index("making the attached adapter")]
    assert any("3.99 USD an hour" in line for line in before)
    made["status"]["state"], together.end = "DEPLOYMENT_STATE_STOPPED", "STOPPED"
    assert await look_up(deployment.host, deployment.record) == "the replica is not there"


async def test_a_large_file_goes_in_parts_and_again_after_it_was_cut(together, run):
    adapter = facts(write_adapter(run / "checkpoints" / "000012", size=12 * 2**20))
    assert 2 * PART < adapter.size < 3 * PART
    together.fail("PUT /store/up_model_0_adapter_model.safetensors", 403)
    with pytest.raises(DeployError, match="of adapter_model") as refusal:
        await put("together", run, adapter)
    texts = [str(refusal.value), *(file.read_text() for file in (run / "deployments").glob("*.json"))]
    assert "expired" in refusal.value.remedy
    assert not any("hidden" in text.replace("…hidden…", "") or KEY in text for text in texts)
    await put("together", run, adapter)
    assert together.made == ALL
    assert sorted(len(upload["parts"]) for upload in together.uploads.values()) == [1, 3]


@pytest.mark.parametrize(
    ("end", "deadline", "words", "remedy"),
    [
        ("READY", 0.5, "does not serve", "gavel undeploy together-000012"),
        ("STOPPED", 120, "has stopped", "same command"),
    ],
)
async def test_what_is_slow_or_stops_is_told_and_goes_on(together, run, adapter, end, deadline, words, remedy):
    together.looks, together.end = 10**6 if end == "READY" else 6, end
    with pytest.raises(DeployError, match=words) as refusal:
        await put("together", run, adapter, deadline=deadline)
    assert remedy in refusal.value.remedy
    together.looks, together.end = 3, "READY"
    await put("together", run, adapter)
    assert together.made == ALL


async def test_an_adapter_is_loaded_into_a_deployment_that_is_there_or_one_of_its_own(fireworks, run, adapter):
    fireworks.deployments["mine"] = {"name": "accounts/desk/deployments/mine", "state": "READY"}
    shared = await put(FIREWORKS, run, adapter, deployment="mine")
    assert shared.model_id.endswith("#accounts/desk/deployments/mine")
    await shared.undeploy()
    assert fireworks.deployments["mine"]["state"] == "READY"
    fireworks.made.clear()
    deployment = await put(FIREWORKS, run, adapter)
    name = deployment.record.remote_name
    loaded = f"{name}-{name}"[:63]
    assert fireworks.made == [f"models {name}", f"deployments {name}", f"deployedModels {loaded}"]
    base = {"baseModel": "accounts/fireworks/models/qwen3-8b"}
    assert fireworks.models[name]["peftDetails"] == base | {"r": 8, "targetModules": ["q_proj", "v_proj"]}
    assert fireworks.uploaded[f"{name}/adapter_model.safetensors"] == adapter.files()[1].read_bytes()
    assert fireworks.deployments[name]["minReplicaCount"] == 0
    assert deployment.model_id == f"accounts/desk/models/{name}#accounts/desk/deployments/{name}"
    assert deployment.base_url == f"{fireworks.url}/inference/v1"
    assert base_name("Qwen/Qwen2.5-7B-Instruct") == "accounts/fireworks/models/qwen2p5-7b-instruct"
    assert base_name("meta-llama/Llama-3.1-8B-Instruct") == "accounts/fireworks/models/llama-v3p1-8b-instruct"
    assert await look_up(deployment.host, deployment.record) == "serving"


@pytest.mark.parametrize("gated", [False, True])
async def test_an_adapter_is_published_and_its_commit_served(hugging_face, run, adapter, gated):
    hub, endpoints = hugging_face
    lines: list[str] = []
    (adapter.directory / "README.md").write_text("---\nlibrary_name: peft\n---\n")
    (adapter.directory / "trainer_state").mkdir()
    (adapter.directory / "trainer_state" / "optimizer.pt").write_bytes(b"kept here")
    deployment = await put(HUGGING_FACE, run, adapter, lines, gated=gated)
    name = deployment.record.remote_name
    repository = hub.repositories[f"desk/{name}"]
    assert repository.private
    assert sorted(repository.files) == ["README.md", "adapter_config.json", "adapter_model.safetensors"]
    assert repository.files["adapter_model.safetensors"] == adapter.files()[1].read_bytes()
    (made,) = endpoints.endpoints.values()
    assert made["model"]["revision"] == repository.commit
    assert {"--model=Qwen/Qwen3-8B", f"--lora-modules={name}=/repository"} <= set(made["model"]["args"])
    assert made["compute"]["scaling"] == {"minReplica": 0, "maxReplica": 1, "scaleToZeroTimeout": 15}
    assert made["model"].get("secrets") == ({"HF_TOKEN": TOKEN} if gated else None)
    assert TOKEN not in deployment.record.path.read_text()
    assert deployment.base_url == f"{made['status']['url']}/v1"
    assert deployment.model_id == name
    assert await look_up(deployment.host, deployment.record) == "serving"
    assert any("0.8 USD an hour" in line for line in lines)


@pytest.mark.slow
async def test_an_adapter_becomes_one_artifact_that_can_be_asked_for(wandb, run, adapter):
    qwen = replace(adapter, base_model="Qwen/Qwen2.5-14B-Instruct")
    wandb.fail("CreateArtifactFiles", 500)
    wandb.fail("CommitArtifact", 429)
    deployment = await put(WANDB, run, qwen)
    name = deployment.record.remote_name
    (artifact,) = wandb.committed
    assert (artifact["type"], artifact["name"]) == ("lora", name)
    assert artifact["metadata"] == '{"wandb.base_model":"Qwen/Qwen2.5-14B-Instruct"}'
    assert sorted(manifest_of(wandb, artifact)) == ["adapter_config.json", "adapter_model.safetensors"]
    weights = wandb.files[f"/files/{artifact['id']}/adapter_model.safetensors"]
    assert weights == qwen.files()[1].read_bytes()
    assert deployment.model_id == f"wandb-artifact:///desk/serving/{name}:step12"


@pytest.fixture
def served(adapter: AdapterFacts) -> AdapterFacts:
    return replace(adapter, base_model=VLLM_BASE)


async def test_a_copy_is_loaded_by_the_servers_path_and_again_after_a_restart(vllm, run, served, monkeypatch):
    monkeypatch.delenv("VLLM_API_KEY")
    with pytest.raises(DeployError, match="does not lie in /elsewhere"):
        await put(f"vllm:{vllm.url}", run, served, path_map="/elsewhere=/x")
    adapted = replace(served, special=("experts",))
    mapped = await put(f"vllm:{vllm.url}", run, adapted, path_map=f"{run.parents[1]}=/mnt/runs")
    assert vllm.seen[0]["is_3d_lora_weight"] is True, "it is told of experts that are adapted"
    assert list(vllm.adapters.values()) == [f"/mnt/runs/desk/clerk/deployments/{mapped.record.id}"]
    await mapped.undeploy()
    deployment = await put(f"vllm:{vllm.url}", run, served)
    (directory,) = map(Path, vllm.adapters.values())
    assert (directory / "adapter_model.safetensors").read_bytes() == served.files()[1].read_bytes()
    assert run / "deployments" in directory.parents, "a checkpoint may be deleted"
    assert (deployment.base_url, deployment.host.key_variable) == (f"{vllm.url}/v1", None)
    vllm.adapters.clear()
    assert (await look_up(deployment.host, deployment.record)).endswith("is not there")
    await put(f"vllm:{vllm.url}", run, served)
    assert list(vllm.adapters) == [deployment.model_id]
    await deployment.undeploy()
    assert not directory.exists()


async def test_a_server_that_takes_no_adapters_or_has_another_base_is_told_how_to_start(vllm, run, served):
    vllm.loads_adapters = False
    with pytest.raises(DeployError, match="404 Not Found") as refusal:
        await put(f"vllm:{vllm.url}", run, served)
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" in refusal.value.remedy
    assert "--max-lora-rank 8" in refusal.value.remedy
    vllm.loads_adapters = True
    other = replace(served, base_model="org/other")
    with pytest.raises(DeployError, match="serves org/base, not org/other") as refusal:
        await put(f"vllm:{vllm.url}", run, other)
    assert "base=" in refusal.value.remedy
    assert vllm.made == []
    await put(f"vllm:{vllm.url}", run, other, base=VLLM_BASE)
    assert len(vllm.adapters) == 1


@pytest.mark.slow
@pytest.mark.vllm
async def test_a_real_vllm_serves_the_step_and_what_it_should_not_serve_is_found_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    (tmp_path / "server").mkdir()
    served = Served(str(EMBEDDED_PATH), torch.float32, "cpu", LORA.rank, 8, 256, versions=4)
    template = tmp_path / "template.jinja"
    template.write_text(  # the embedded base's tokenizer has none
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    settings = VllmSettings(python=os.environ["GAVEL_TEST_VLLM_PYTHON"], arguments=["--chat-template", str(template)])
    with closing(open_vllm_engine(settings, served, tmp_path / "server")) as engine:
        address, adapter = f"vllm:{engine._url}", facts_of_run(run, 12)
        description = read_description(run / "model.json")
        deployment = await deploy(run, adapter, address, description=description)
        assert "it serves step 12" in deployment.record.smoke_test
        other = await deploy(run, facts_of_run(run, 11), address)
        for model_id, found in ((other.model_id, "step 11"), (str(EMBEDDED_PATH), "the base without an adapter")):
            wrong = replace(deployment, model_id=model_id)
            with pytest.raises(DeployError, match=f"it serves {found}, not step 12"):
                await smoke_test(wrong, description, print)
        await deployment.undeploy()
        assert (await look_up(deployment.host, deployment.record)).endswith("is not there")
        assert await look_up(other.host, other.record) == "serving"
