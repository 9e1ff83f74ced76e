"""What a smoke test finds of a deployment, by log-probs and by greedy text."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.deploy.deploy import deploy, undeploy
from gavel.trainer.deploy.host import Deployment
from gavel.trainer.deploy.record import DeployError, open_record, read_records
from gavel.trainer.deploy.smoke_test import SmokeTest, by_greedy_text, by_logprobs, recorded_prompts
from gavel.trainer.deploy.vllm import open_host
from gavel.trainer.runs.run_directory import read_description
from tests.fake_server import Answer, Call, FakeServer
from tests.trainer.deploy.fakes.fireworks import FakeFireworks
from tests.trainer.deploy.fakes.served_upload import ServedUpload
from tests.trainer.deploy.targets import HOSTS, ask_at_once
from tests.trainer.deploy.trained_run import facts_of, make_run, served_step


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module", params=[12, 11, None], ids=["it", "another step", "the base"])
def served(request: pytest.FixtureRequest, run: Path) -> Iterator[tuple[int | None, str]]:
    with served_step(run, request.param) as server:
        yield request.param, server.base_url


def deployment(run: Path, base_url: str) -> Deployment:
    record = open_record(run, host="vllm", address="vllm:http://x", adapter=facts_of(run, 12), options={})
    return Deployment(open_host("http://x"), record, base_url, "desk", None)


async def proven(run: Path, base_url: str) -> str:
    test = SmokeTest(run, 12, facts_of(run, 12).directory, read_description(run / "model.json"))
    return await test(deployment(run, base_url), lambda line: None)


@pytest.mark.slow
async def test_what_serves_another_step_or_the_base_is_found_out(run: Path, served: tuple[int | None, str]) -> None:
    step, base_url = served
    if step == 12:
        assert "it serves step 12" in await proven(run, base_url)
        return
    name = "the base without an adapter" if step is None else f"step {step}"
    with pytest.raises(DeployError, match=f"it serves {name}, not step 12"):
        await proven(run, base_url)


class TextOnly(FakeServer):
    """A host in front of an endpoint that gives no log-probs, as some do."""

    def __init__(self, client: Any) -> None:
        super().__init__()
        self._client = client

    def respond(self, call: Call) -> Answer:
        body = call.json
        if body.get("logprobs"):
            return Answer({"error": {"message": "logprobs is not supported"}}, 400)
        return Answer(self._client.post("/chat/completions", json=body).json())


@pytest.mark.slow
async def test_greedy_text_tells_where_there_are_no_logprobs(run: Path, served: tuple[int | None, str]) -> None:
    step, base_url = served
    with httpx.Client(base_url=base_url, timeout=60, trust_env=False) as client:
        host = TextOnly(client)
        try:
            if step == 12:
                assert "step 12" in await proven(run, f"{host.url}/v1")
            else:
                with pytest.raises(DeployError, match="greedy text"):
                    await proven(run, f"{host.url}/v1")
        finally:
            host.close()


@pytest.mark.slow
async def test_a_base_that_is_not_here_leaves_it_unproven_and_says_so(run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "desk" / "clerk"
    elsewhere.mkdir(parents=True)
    test = SmokeTest(elsewhere, 12, facts_of(run, 12).directory, {"base_model": "/no/such/model"})
    assert (await test(deployment(run, "http://127.0.0.1:9/v1"), lambda line: None)).startswith("not run: ")


def test_the_run_s_own_openings_are_asked_too(tmp_path: Path) -> None:
    opening = [{"role": "system", "content": "Desk."}, {"role": "user", "content": "Refund 1?"}]
    said = [*opening, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Thanks"}]
    groups = [TrajectoryGroup([Trajectory(messages_and_choices=messages)]) for messages in (said, said, opening[1:])]
    TrajectoryStore(tmp_path / "trajectories" / "train" / "000003.jsonl.zst").extend(groups)
    assert recorded_prompts(tmp_path) == [opening, opening[1:]]
    assert recorded_prompts(tmp_path / "nothing") == []


TOKENS = 96


def candidates(apart: float = 0.3) -> dict[str, list[float]]:
    draw = random.Random(3)
    base = [-2 * draw.random() for _ in range(TOKENS)]
    way = [apart * draw.gauss(0, 1) for _ in range(TOKENS)]
    return {
        "step 12": [b + w for b, w in zip(base, way, strict=True)],
        "step 11": [b + 0.5 * w for b, w in zip(base, way, strict=True)],
        "base": base,
    }


def noisy(values: list[float], noise: float, seed: int = 1) -> list[float]:
    draw = random.Random(seed)
    return [value + noise * draw.gauss(0, 1) for value in values]


@pytest.mark.parametrize("noise", [0.0, 1e-5, 0.02])
def test_the_adapter_is_found(noise: float) -> None:
    said = candidates()
    assert by_logprobs(noisy(said["step 12"], noise), "step 12", said).served is True


@pytest.mark.parametrize("served", ["step 11", "base"])
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_another_candidate_is_found_out_by_its_name(served: str, noise: float) -> None:
    said = candidates()
    finding = by_logprobs(noisy(said[served], noise), "step 12", said)
    assert finding.served is False
    assert served in finding.said


def test_a_step_whose_checkpoint_is_not_kept_is_found_out() -> None:
    said = candidates()
    step = [a + 0.3 * (b - a) for a, b in zip(said["base"], said["step 12"], strict=True)]
    assert by_logprobs(step, "step 12", {"step 12": said["step 12"], "base": said["base"]}).served is False


def test_what_rounding_hides_is_not_claimed() -> None:
    said = candidates(apart=0.002)
    finding = by_logprobs(noisy(said["step 12"], 0.05), "step 12", said)
    assert finding.served is None
    assert "base" in finding.said


def test_an_adapter_that_changes_nothing_cannot_be_told_from_the_base() -> None:
    said = candidates(apart=0.0)
    assert by_logprobs(said["base"], "step 12", said).served is None


def test_greedy_text_is_told_by_how_far_it_is_the_same() -> None:
    host = ["I look up order 7.", "Blue."]
    said = {"step 12": ["I look up order 7.", "Blue."], "base": ["I refund it.", "Red"]}
    assert by_greedy_text(host, "step 12", said).served is True
    assert by_greedy_text(host, "base", said).served is False
    assert "step 12" in by_greedy_text(host, "base", said).said
    assert by_greedy_text(["No idea", "Nothing"], "step 12", said).served is False
    assert by_greedy_text(host, "step 12", {"step 12": host, "base": host}).served is None


@pytest.mark.slow
@pytest.mark.parametrize("host", ["fireworks", "huggingface"])
@pytest.mark.parametrize("serves_it", [True, False], ids=["it", "another step"])
async def test_a_host_that_serves_what_was_uploaded_passes_and_another_is_told(
    tmp_path: Path, host: str, serves_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "runs")
    facts = replace(facts_of(run, 12), base_model="Qwen/Qwen3-8B")
    description = read_description(run / "model.json")
    with HOSTS[host]() as target:
        ask_at_once(monkeypatch, target.environment)
        first, server = target.servers[0], target.servers[-1]

        def files() -> dict[str, bytes]:
            if isinstance(first, FakeFireworks):
                return {name.partition("/")[2]: content for name, content in first.uploaded.items()}
            return next(iter(first.repositories.values())).files  # type: ignore[attr-defined]

        upload = ServedUpload(files, instead=None if serves_it else run / "checkpoints" / "000011")
        respond = server.respond
        server.respond = lambda call: (upload.answer if call.path.endswith("/chat/completions") else respond)(call)
        try:
            if serves_it:
                served = await deploy(run, facts, target.address, deadline=300.0, description=description)
                assert "it serves step 12" in served.record.smoke_test
            else:
                with pytest.raises(DeployError, match="it serves step 11, not step 12") as refusal:
                    await deploy(run, facts, target.address, deadline=300.0, description=description)
                (record,) = read_records(run)
                assert f"gavel undeploy {record.id}" in refusal.value.remedy
                assert record.smoke_test.startswith("failed: ")
            await undeploy(read_records(run)[0])
            assert target.left() == 0
        finally:
            upload.close()
