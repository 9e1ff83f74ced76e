import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gavel.trainer.config import VllmSettings
from gavel.trainer.deploy.deploy import deploy, undeploy
from gavel.trainer.deploy.host import open_host
from gavel.trainer.deploy.record import AdapterFacts, DeployError, read_facts, read_records
from gavel.trainer.deploy.smoke_test import SmokeTest
from gavel.trainer.embedded import EMBEDDED_PATH
from gavel.trainer.engines.vllm_launch import Served, vllm_engine
from gavel.trainer.runs.run_directory import read_description
from tests.trainer.deploy.conftest import write_adapter
from tests.trainer.deploy.trained_run import LORA, facts_of, make_run
from tests.trainer.engines.vllm_stand_in import BASE, StandIn

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Of the embedded base, whose tokenizer has none."""


@pytest.fixture
def server() -> Iterator[StandIn]:
    running = StandIn()
    yield running
    running.close()


@pytest.fixture
def adapter(run: Path) -> AdapterFacts:
    directory = write_adapter(run / "checkpoints" / "000012")
    return read_facts(directory, project="desk", name="clerk", step=12, base_model=BASE)


async def to(server: StandIn, run: Path, adapter: AdapterFacts, **options: Any) -> Any:
    return await deploy(run, adapter, f"vllm:{server.url}", options=options)


async def test_an_adapter_is_loaded_listed_and_unloaded(server: StandIn, run: Path, adapter: AdapterFacts) -> None:
    deployment = await to(server, run, adapter)
    assert list(server.adapters) == [deployment.model_id]
    assert set(server.adapters[deployment.model_id]) == {"adapter_config.json", "adapter_model.safetensors"}
    assert (deployment.base_url, deployment.key_variable) == (f"{server.url}/v1", None)
    (record,) = read_records(run)
    assert (record.state, await deployment.host.status(record)) == ("deployed", "serving")
    assert "not run" in record.smoke_test
    assert "undeploy" in deployment.stop_hint
    await deployment.undeploy()
    await deployment.undeploy()
    assert server.adapters == {}
    assert read_records(run)[0].state == "undeployed"


async def test_deploying_again_loads_nothing_twice(server: StandIn, run: Path, adapter: AdapterFacts) -> None:
    first, again = await to(server, run, adapter), await to(server, run, adapter)
    assert first.id == again.id
    assert server.every_name == [first.model_id]


async def test_a_restarted_server_is_given_its_adapter_again(server: StandIn, run: Path, adapter: AdapterFacts) -> None:
    deployment = await to(server, run, adapter)
    server.adapters.clear()
    assert await deployment.host.status(deployment.record) == "not loaded there"
    await to(server, run, adapter)
    assert list(server.adapters) == [deployment.model_id]


async def test_a_process_killed_after_loading_goes_on(
    server: StandIn, run: Path, adapter: AdapterFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gavel.trainer.deploy import record as record_module

    with monkeypatch.context() as patch:
        patch.setattr(record_module.DeploymentRecord, "finish", _killed)
        with pytest.raises(KeyboardInterrupt):
            await to(server, run, adapter)
    (record,) = read_records(run)
    assert not record.stages["adapter"]["done"]
    await undeploy(record)
    assert server.adapters == {}
    await to(server, run, adapter)
    assert len(server.adapters) == 1


def _killed(*given: object, **named: object) -> None:
    raise KeyboardInterrupt


async def test_a_server_without_runtime_updates_is_told_how_to_start(
    server: StandIn, run: Path, adapter: AdapterFacts
) -> None:
    server.missing.add("/v1/load_lora_adapter")
    with pytest.raises(DeployError, match="takes no adapters") as refusal:
        await to(server, run, adapter)
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" in refusal.value.remedy
    assert "--max-lora-rank 8" in refusal.value.remedy


async def test_another_base_is_refused_before_anything_is_loaded(
    server: StandIn, run: Path, adapter: AdapterFacts
) -> None:
    facts = read_facts(adapter.directory, project="desk", name="clerk", step=12, base_model="org/other")
    with pytest.raises(DeployError, match="serves served, not org/other") as refusal:
        await to(server, run, facts)
    assert "base=" in refusal.value.remedy
    assert server.asked == []
    await to(server, run, facts, base="served")
    assert len(server.adapters) == 1


async def test_a_key_comes_from_the_environment_and_is_written_nowhere(
    server: StandIn, run: Path, adapter: AdapterFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.api_key = "sk-secret-of-the-server"
    with pytest.raises(DeployError):
        await to(server, run, adapter)
    monkeypatch.setenv("VLLM_API_KEY", server.api_key)
    deployment = await to(server, run, adapter)
    assert deployment.key_variable == "VLLM_API_KEY"
    assert deployment.openai_client().api_key == server.api_key
    texts = [file.read_text() for file in (run / "deployments").rglob("*.json")]
    assert texts
    assert not any(server.api_key in text for text in [*texts, repr(deployment)])
    monkeypatch.delenv("VLLM_API_KEY")
    with pytest.raises(DeployError, match="VLLM_API_KEY is not set"):
        deployment.openai_client()


async def test_the_server_reads_the_path_that_it_sees(
    server: StandIn, run: Path, adapter: AdapterFacts, tmp_path: Path
) -> None:
    there = tmp_path / "mounted"
    there.symlink_to(run.parents[1])
    with pytest.raises(DeployError, match="does not lie in /elsewhere"):
        await to(server, run, adapter, path_map="/elsewhere=/x")
    await to(server, run, adapter, path_map=f"{run.parents[1]}={there}")
    assert len(server.adapters) == 1
    assert len(read_records(run)) == 1


@pytest.mark.parametrize(("place", "options"), [("", {}), ("host:80", {}), ("http://h", {"path_map": "x"})])
def test_an_address_or_mapping_that_is_none_is_refused(place: str, options: dict[str, str]) -> None:
    with pytest.raises(DeployError):
        open_host(f"vllm:{place}", **options)


def test_an_option_that_it_lacks_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(DeployError, match="no option 'api_key'") as refusal:
        open_host("vllm:http://h", api_key="x")
    assert "path_map" in refusal.value.remedy


def test_what_vllm_cannot_serve_is_told_with_what_would_fit(run: Path) -> None:
    directory = write_adapter(run / "big", rank=1024)
    config = (directory / "adapter_config.json").read_text()
    (directory / "adapter_config.json").write_text(re.sub("^{", '{"use_dora": true, ', config))
    facts = read_facts(directory, project="p", name="n", step=1, base_model=BASE)
    rank, dora = open_host("vllm:http://h").check(facts)
    assert "512" in rank
    assert "gavel export" in dora


async def test_a_server_is_told_of_experts_that_are_adapted(server: StandIn, run: Path) -> None:
    directory = write_adapter(run / "mixture", rank=4)
    config = (directory / "adapter_config.json").read_text()
    (directory / "adapter_config.json").write_text(
        re.sub("^{", '{"target_parameters": ["experts.down_proj"], ', config)
    )
    facts = read_facts(directory, project="p", name="n", step=1, base_model=BASE)
    assert facts.special == ("experts",)
    await to(server, run, facts)
    assert len(server.adapters) == 1


async def test_a_server_that_is_not_there_is_an_error_with_its_address(
    run: Path, adapter: AdapterFacts, monkeypatch: pytest.MonkeyPatch
) -> None:

    from gavel.trainer.deploy import host as host_module

    monkeypatch.setattr(host_module, "PATIENCE", 0.1)
    with pytest.raises(DeployError, match=r"http://127\.0\.0\.1:9"):
        await deploy(run, adapter, "vllm:http://127.0.0.1:9")


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
        proof = SmokeTest(run, 12, adapter.directory, read_description(run / "model.json"))
        deployment = await deploy(run, adapter, address, proof=proof, report=lines.append)
        assert "it serves step 12" in deployment.record.smoke_test
        other = await deploy(run, facts_of(run, 11), address)
        for model_id, found in ((other.model_id, "step 11"), (str(EMBEDDED_PATH), "the base without an adapter")):
            wrong = type(deployment)(deployment.host, deployment.record, deployment.base_url, model_id, None, "")
            with pytest.raises(DeployError, match=f"it serves {found}, not step 12"):
                await proof(wrong, lines.append)
        await deployment.undeploy()
        assert await deployment.host.status(deployment.record) == "not loaded there"
        assert await other.host.status(other.record) == "serving"
    finally:
        engine.close()
