"""What only Together does: a catalogue, an upload in parts, validation, a deployment with traffic."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gavel.trainer.deploy.deploy import deploy, undeploy
from gavel.trainer.deploy.host import Deployment
from gavel.trainer.deploy.record import AdapterFacts, DeployError, read_facts, read_records
from gavel.trainer.deploy.together import PART
from tests.trainer.deploy.conftest import write_adapter
from tests.trainer.deploy.fakes.scripted import KEY
from tests.trainer.deploy.fakes.together import FakeTogether
from tests.trainer.deploy.targets import HOSTS, ask_at_once

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


@pytest.mark.parametrize(
    ("route", "status", "words"),
    [("/models", 402, "credit"), ("/endpoints", 403, "rights"), ("/deployments", 409, "minute")],
)
async def test_a_refusal_says_what_to_do(
    together: FakeTogether, run: Path, adapter: AdapterFacts, route: str, status: int, words: str
) -> None:
    together.fail(f"POST /v2/projects/prj_1{route}" if route != "/deployments" else route, status)
    with pytest.raises(DeployError, match=f"{status} asked for") as refusal:
        await to(run, adapter)
    assert words in refusal.value.remedy


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
