"""The smoke test over hosts that serve what was uploaded to them, another step, or the base without an adapter."""

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gavel.trainer.deploy import host as host_module
from gavel.trainer.deploy import wandb as wandb_host
from gavel.trainer.deploy.deploy import deploy, undeploy
from gavel.trainer.deploy.record import DeployError, read_records
from gavel.trainer.deploy.smoke_test import SmokeTest
from gavel.trainer.runs.run_directory import read_description
from tests.fake_hub import FakeHub
from tests.fake_server import Answer, Call, FakeServer
from tests.trainer.deploy.fakes.fireworks import ACCOUNT, FakeFireworks
from tests.trainer.deploy.fakes.huggingface import FakeEndpoints
from tests.trainer.deploy.fakes.scripted import KEY
from tests.trainer.deploy.fakes.served_upload import ServedUpload
from tests.trainer.deploy.fakes.wandb import FakeWandb
from tests.trainer.deploy.trained_run import facts_of, make_run

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "runs")


@pytest.fixture(params=["it", "another step", "the base"])
def served(request: pytest.FixtureRequest, run: Path) -> Generator[tuple[str, ServedUpload]]:
    step = run / "checkpoints" / "000011"
    upload = ServedUpload(
        dict, instead=step if request.param == "another step" else None, base=request.param == "the base"
    )
    yield request.param, upload
    upload.close()


async def proven(run: Path, address: str, base: str, what: str, **options: Any) -> None:
    """The deployment passes its smoke test, or the test says what is served instead, and how to remove it."""
    facts = replace(facts_of(run, 12), base_model=base)
    proof = SmokeTest(run, 12, facts.directory, read_description(run / "model.json"))
    if what == "it":
        deployment = await deploy(run, facts, address, deadline=300.0, proof=proof, options=options)
        assert "it serves step 12" in deployment.record.smoke_test
    else:
        name = "the base without an adapter" if what == "the base" else "step 11"
        with pytest.raises(DeployError, match=f"it serves {name}, not step 12") as refusal:
            await deploy(run, facts, address, deadline=300.0, proof=proof, options=options)
        (record,) = read_records(run)
        assert f"gavel undeploy {record.id}" in refusal.value.remedy
        assert record.smoke_test.startswith("failed: ")
    await undeploy(read_records(run)[0])


def answering(fake: FakeServer, served: ServedUpload) -> None:
    """Questions to a model are answered by what is served; all else as before."""
    respond = fake.respond

    def respond_too(call: Call) -> Answer:
        return served.answer(call) if call.path.endswith("/chat/completions") else respond(call)

    fake.respond = respond_too


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "PAUSE", 0.01)
    monkeypatch.setattr(host_module, "_backoff", lambda _state: 0.01)


async def test_fireworks(run: Path, served: tuple[str, ServedUpload], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fireworks")
    what, upload = served
    fake = FakeFireworks()
    upload.files = lambda: {name.partition("/")[2]: content for name, content in fake.uploaded.items()}
    monkeypatch.setenv("FIREWORKS_BASE_URL", fake.url)
    monkeypatch.setenv("FIREWORKS_API_KEY", KEY)
    answering(fake, upload)
    try:
        await proven(run, f"fireworks:{ACCOUNT}", "Qwen/Qwen3-8B", what)
        assert not fake.models
    finally:
        fake.close()


async def test_wandb(
    run: Path, served: tuple[str, ServedUpload], wandb_server: FakeWandb, monkeypatch: pytest.MonkeyPatch
) -> None:
    what, upload = served
    monkeypatch.setattr(wandb_host, "_INFERENCE", f"{wandb_server.url}/inference/v1")
    artifacts = wandb_server.artifacts

    def files() -> dict[str, bytes]:
        (name,) = artifacts
        found = {path: content for path, content in wandb_server.files.items() if path.startswith(f"/files/{name}/")}
        return {path.rpartition("/")[2]: content for path, content in found.items()}

    upload.files = files
    answering(wandb_server, upload)
    await proven(run, "wandb:desk/serving", "Qwen/Qwen2.5-14B-Instruct", what)
    assert not artifacts


async def test_huggingface(
    run: Path, served: tuple[str, ServedUpload], hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    what, upload = served
    fake = FakeEndpoints(hub)
    monkeypatch.setattr("huggingface_hub.constants.INFERENCE_ENDPOINTS_ENDPOINT", f"{fake.url}/v2")
    upload.files = lambda: next(iter(hub.repositories.values())).files
    answering(fake, upload)
    try:
        await proven(run, "huggingface:desk", "Qwen/Qwen3-8B", what)
        assert not hub.repositories
    finally:
        fake.close()
