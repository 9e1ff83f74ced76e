import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gavel.base.extras import install_line
from gavel.trainer.deploy import record as record_module
from gavel.trainer.deploy import together as together_upload
from gavel.trainer.deploy.deploy import deploy, reopened, undeploy
from gavel.trainer.deploy.host import Deployment, open_host
from gavel.trainer.deploy.record import AdapterFacts, DeployError, read_facts, read_records
from tests.trainer.deploy.conftest import write_adapter
from tests.trainer.deploy.fakes.together import KEY, PROJECT, FakeTogether

pytest.importorskip("together", reason="gavel-rl[deploy] brings it")
ALL = ["model", "revision", "endpoint", "deployment", "adapter"]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTogether]:
    running = FakeTogether()
    monkeypatch.setenv("TOGETHER_BASE_URL", running.url)
    monkeypatch.setenv("TOGETHER_API_KEY", KEY)
    monkeypatch.setenv("TOGETHER_PROJECT_ID", PROJECT)
    monkeypatch.setattr(together_upload, "_POLL", 0.01)
    yield running
    running.close()


async def to(run: Path, adapter: AdapterFacts, lines: list[str] | None = None, **given: Any) -> Deployment:
    report: Callable[[str], None] = (lines if lines is not None else []).append
    return await deploy(run, adapter, "together", options={"poll": 0.01}, report=report, **given)


async def test_an_adapter_is_uploaded_served_and_removed(host: FakeTogether, run: Path, adapter: AdapterFacts) -> None:
    lines: list[str] = []
    deployment = await to(run, adapter, lines)
    assert host.made == ALL
    (made,) = host.deployments.values()
    assert made["inactiveTimeout"] == 30, "an idle deployment never stays on by accident"
    (endpoint,) = host.endpoints.values()
    assert endpoint["trafficSplit"] == [{"deploymentId": made["id"], "weight": 1.0}]
    name = deployment.record.remote_name
    assert deployment.model_id == f"acme/{name}:acme/{name}"
    assert deployment.base_url == f"{host.url}/v1"
    assert any("3.99 USD an hour" in line for line in lines)
    assert "gavel undeploy" in deployment.stop_hint
    assert await deployment.host.status(deployment.record) == "ready"
    again = reopened(read_records(run)[0])
    assert (again.model_id, again.base_url) == (deployment.model_id, deployment.base_url)
    await again.undeploy()
    assert host.left() == 0
    await again.undeploy()
    assert read_records(run)[0].state == "undeployed"


async def test_deploying_again_makes_nothing_twice(host: FakeTogether, run: Path, adapter: AdapterFacts) -> None:
    first, again = await to(run, adapter), await to(run, adapter)
    assert (first.id, first.model_id) == (again.id, again.model_id)
    assert host.made == ALL


@pytest.mark.parametrize("stage", ["model", "upload", "endpoint", "deployment", "attachment", "traffic"])
@pytest.mark.parametrize("then", ["deploy", "undeploy", "the record is lost"])
async def test_a_process_killed_after_any_stage_is_gone_on_with_or_cleaned_up(
    host: FakeTogether, run: Path, adapter: AdapterFacts, monkeypatch: pytest.MonkeyPatch, stage: str, then: str
) -> None:
    finish = record_module.DeploymentRecord.finish

    def killed(self: Any, name: str, /, **ids: Any) -> Any:
        if name == stage:
            raise KeyboardInterrupt
        return finish(self, name, **ids)

    with monkeypatch.context() as patch:
        patch.setattr(record_module.DeploymentRecord, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            await to(run, adapter)
    assert host.left() > 0
    (record,) = read_records(run)
    if then == "undeploy":
        await undeploy(record)
    else:
        if then == "the record is lost":
            record.path.unlink()
        await to(run, adapter)
        assert sorted(host.made) == sorted(ALL)
        await undeploy(read_records(run)[0])
    assert host.left() == 0


@pytest.mark.parametrize(
    "route",
    ["GET /supported-models", "GET /models", "POST /create", "PUT /1", "POST /complete", "GET /revisions", "PATCH /"],
)
@pytest.mark.parametrize(("status", "retry_after"), [(500, ""), (429, "0")])
async def test_what_fails_once_is_asked_again(
    host: FakeTogether, run: Path, adapter: AdapterFacts, route: str, status: int, retry_after: str
) -> None:
    host.fail(route.replace("PATCH /", "PATCH "), status, retry_after=retry_after)
    await to(run, adapter)
    assert host.made == ALL


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("route", ["POST /models", "POST /endpoints", "POST /deployments", "POST /adapters"])
async def test_a_creation_that_answers_500_is_made_once_by_the_same_command(
    host: FakeTogether, run: Path, adapter: AdapterFacts, route: str, after: bool
) -> None:
    host.fail(route, 500, after=after)
    with pytest.raises(DeployError) as refusal:
        await to(run, adapter)
    assert "same command" in refusal.value.remedy
    await to(run, adapter)
    assert sorted(host.made) == sorted(ALL)


async def test_a_busy_host_that_refuses_a_creation_is_asked_again(
    host: FakeTogether, run: Path, adapter: AdapterFacts
) -> None:
    host.fail("POST /endpoints", 429, times=2, retry_after="0")
    await to(run, adapter)
    assert host.made == ALL


@pytest.mark.parametrize(
    ("route", "status", "words"),
    [("POST /models", 402, "credit"), ("POST /endpoints", 403, "rights"), ("POST /deployments", 409, "minute")],
)
async def test_a_refusal_says_what_to_do(
    host: FakeTogether, run: Path, adapter: AdapterFacts, route: str, status: int, words: str
) -> None:
    host.fail(route, status)
    with pytest.raises(DeployError, match=f"{status} .*injected {status}") as refusal:
        await to(run, adapter)
    assert words in refusal.value.remedy


async def test_a_large_file_goes_in_parts_and_goes_on_where_it_was_cut(
    host: FakeTogether, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_adapter(run / "checkpoints" / "000012", size=12 * 2**20)
    adapter = read_facts(directory, project="desk", name="clerk", step=12, base_model="Qwen/Qwen3-8B")
    assert together_upload.part_count(adapter.files()[1]) == 3
    monkeypatch.setattr(together_upload, "_AT_ONCE", 1)
    host.fail("PUT /3", 400)
    with pytest.raises(DeployError, match="part 3 of adapter_model"):
        await to(run, adapter)
    assert [put.rpartition("/")[2] for put in host.puts] == ["1", "1", "2"]
    await to(run, adapter)
    assert [put.rpartition("/")[2] for put in host.puts] == ["1", "1", "2", "3"], "no part is sent twice"
    assert host.made == ALL


async def test_a_store_s_signed_address_is_never_told(host: FakeTogether, run: Path, adapter: AdapterFacts) -> None:
    host.fail("PUT /1", 403)
    with pytest.raises(DeployError) as refusal:
        await to(run, adapter)
    texts = [str(refusal.value), *(file.read_text() for file in (run / "deployments").glob("*.json"))]
    assert "expired" in refusal.value.remedy
    assert not any("X-Signature" in text or KEY in text for text in texts)


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
    host: FakeTogether, run: Path, adapter: AdapterFacts, change: dict[str, Any], words: str
) -> None:
    for name, value in change.items():
        setattr(host, name, value)
    with pytest.raises(DeployError, match=words):
        await to(run, adapter)
    await undeploy(read_records(run)[0])
    assert host.left() == 0


async def test_a_slow_host_is_waited_for_until_the_deadline(
    host: FakeTogether, run: Path, adapter: AdapterFacts
) -> None:
    host.looks = 10**6
    with pytest.raises(DeployError, match="does not serve") as refusal:
        await to(run, adapter, deadline=0.7)
    assert "gavel undeploy together-000012" in refusal.value.remedy
    host.looks = 3
    await to(run, adapter)
    assert host.made == ALL


async def test_without_waiting_all_is_made_and_the_same_command_waits_later(
    host: FakeTogether, run: Path, adapter: AdapterFacts
) -> None:
    host.looks = 2
    await to(run, adapter, wait=False)
    assert host.made == ALL
    assert read_records(run)[0].state == "deploying"
    await to(run, adapter)
    assert read_records(run)[0].state == "deployed"
    assert host.made == ALL


async def test_a_wrong_key_or_project_is_told(
    host: FakeTogether, run: Path, adapter: AdapterFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOGETHER_API_KEY", "wrong")
    with pytest.raises(DeployError, match="401"):
        await to(run, adapter)
    monkeypatch.delenv("TOGETHER_API_KEY")
    with pytest.raises(DeployError, match="TOGETHER_API_KEY is not set"):
        await to(run, adapter)
    monkeypatch.setenv("TOGETHER_API_KEY", KEY)
    monkeypatch.setenv("TOGETHER_PROJECT_ID", "other")
    with pytest.raises(DeployError, match="project other not found") as refusal:
        await to(run, adapter)
    assert "TOGETHER_PROJECT_ID" in refusal.value.remedy


async def test_a_base_that_is_not_in_the_catalogue_is_told(
    host: FakeTogether, run: Path, adapter: AdapterFacts
) -> None:
    facts = read_facts(adapter.directory, project="d", name="n", step=12, base_model="org/unheard-of")
    with pytest.raises(DeployError, match="no org/unheard-of"):
        await to(run, facts)
    assert host.made == []


async def test_what_does_not_fit_is_refused_before_anything_is_asked(host: FakeTogether, run: Path) -> None:
    directory = write_adapter(run / "x", targets=("q_proj", "in_proj"))
    facts = read_facts(directory, project="d", name="n", step=1, base_model=str(run))
    with pytest.raises(DeployError, match="only on this machine") as refusal:
        await to(run, facts)
    assert "in_proj" in refusal.value.remedy
    assert host.calls == []
    assert read_records(run) == []


async def test_without_its_package_it_says_what_to_install(
    run: Path, adapter: AdapterFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "together", None)
    with pytest.raises(DeployError) as refusal:
        await to(run, adapter)
    assert refusal.value.remedy == install_line("deploy")


@pytest.mark.parametrize(
    ("place", "options"), [("x", {}), ("", {"inactive_minutes": 5}), ("", {"replicas": 0}), ("", {"api_key": "k"})]
)
def test_options_that_it_does_not_take_are_refused(place: str, options: dict[str, Any]) -> None:
    with pytest.raises(DeployError):
        open_host(f"together:{place}", **options)
