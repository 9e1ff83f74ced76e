"""A step is chosen, deployed and smoke tested: by log-probs, or by greedy text."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.deploy.deploy import deploy, facts_of_run, undeploy
from gavel.trainer.deploy.host import Deployment
from gavel.trainer.deploy.record import DeployError, open_record, read_records
from gavel.trainer.deploy.smoke_test import compare_logprobs, read_recorded_prompts, smoke_test
from gavel.trainer.deploy.vllm import open_host
from gavel.trainer.runs.run_directory import read_description
from tests.endpoint import Endpoint, fails, says
from tests.fake_server import Answer, Call
from tests.trainer.conftest import a_model, registered
from tests.trainer.deploy.targets import ask_at_once, target_of
from tests.trainer.deploy.trained_run import LORA, make_run, served_step
from tests.trainer.engines.vllm_stand_in import BASE, StandIn


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs"))


@pytest.mark.slow
async def test_without_logprobs_or_the_base_nothing_is_told_and_no_answer_is_a_failure(run: Path, endpoint: Endpoint):
    record = open_record(run, address="vllm:http://x", adapter=facts_of_run(run, 12), options={})

    async def proven(url: str, **description: str) -> str:
        served = Deployment(open_host("http://x"), record, f"{url}/v1", "desk")
        return await smoke_test(served, read_description(run / "model.json") | description, lambda line: None)

    assert (await proven("http://127.0.0.1:9", base_model="/no/such/model")).startswith("not run: ")
    said, unsupported = ["Yes."], fails(400, "logprobs is not supported")
    endpoint.script = [lambda asked: unsupported(asked) if asked.get("logprobs") else says(said[0])]
    assert "too few to tell" in await proven(endpoint.url)
    said[0] = ""
    with pytest.raises(DeployError, match="with nothing"):
        await proven(endpoint.url)


def test_the_run_s_own_openings_are_asked_too(tmp_path: Path) -> None:
    opening = [{"role": "system", "content": "Desk."}, {"role": "user", "content": "Refund 1?"}]
    said = [*opening, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Thanks"}]
    groups = [TrajectoryGroup([Trajectory(messages_and_choices=messages)]) for messages in (said, said, opening[1:])]
    TrajectoryStore(tmp_path / "trajectories" / "train" / "000003.jsonl.zst").extend(groups)
    assert read_recorded_prompts(tmp_path) == [opening, opening[1:]]
    assert read_recorded_prompts(tmp_path / "nothing") == []


def candidates(apart: float, **steps: float) -> dict[str, list[float]]:
    """Log-probs of steps that have gone so far of the way from the base to step 12."""
    draw = random.Random(3)
    base = [-2 * draw.random() for _ in range(96)]
    way = [apart * draw.gauss(0, 1) for _ in range(96)]
    return {name: [b + far * w for b, w in zip(base, way, strict=True)] for name, far in steps.items()}


@pytest.mark.parametrize(("apart", "noise"), [(0.002, 0.05), (0.0, 0.0)], ids=["below rounding", "no change"])
def test_a_step_that_is_not_kept_is_found_out_and_what_rounding_hides_is_not_claimed(apart: float, noise: float):
    said = candidates(0.3, step=1.0, base=0.0, early=0.3)
    assert compare_logprobs(said.pop("early"), "step", said).served is False
    said, draw = candidates(apart, step=1.0, earlier=0.5, base=0.0), random.Random(1)
    finding = compare_logprobs([each + noise * draw.gauss(0, 1) for each in said["step"]], "step", said)
    assert finding.served is None
    assert "base" in finding.said


@pytest.mark.slow
@pytest.mark.parametrize(("step", "found"), [(12, "step 12"), (11, "step 11"), (None, "the base without an adapter")])
async def test_a_deployment_is_smoke_tested_and_one_that_fails_can_be_removed(run, tmp_path, step, found, monkeypatch):
    run = Path(shutil.copytree(run, tmp_path / "runs" / "desk" / "clerk"))
    facts = replace(facts_of_run(run, 12), base_model="Qwen/Qwen3-8B")
    description = read_description(run / "model.json")
    with target_of("fireworks") as target, served_step(run, step) as endpoint:
        ask_at_once(monkeypatch, target.environment)
        (server,) = target.servers
        respond, chat = server.respond, f"{endpoint.base_url}/chat/completions"

        def respond_or_chat(call: Call) -> Answer:
            if not call.path.endswith("/chat/completions"):
                return respond(call)
            asked = {**call.json, "model": "desk", "seed": 1}  # of which each step says enough
            return Answer(httpx.post(chat, json=asked, timeout=60, trust_env=False).json())

        server.respond = respond_or_chat
        deploying = deploy(run, facts, target.address, deadline=300.0, description=description)
        if step == 12:
            assert "it serves step 12" in (await deploying).record.smoke_test
        else:
            with pytest.raises(DeployError, match=f"it serves {found}, not step 12") as refusal:
                await deploying
            (record,) = read_records(run)
            assert f"gavel undeploy {record.id}" in refusal.value.remedy
            assert record.smoke_test.startswith("failed: ")
        await undeploy(read_records(run)[0])
        assert target.left() == 0


@pytest.mark.slow
def test_a_step_is_found_by_number_as_the_newest_and_as_the_best_of_those_that_are_whole(run, tmp_path):
    run = Path(shutil.copytree(run, tmp_path / "clerk"))
    rows = [{"step": step, "split": "held_out", "success": value} for step, value in ((10, 0.2), (11, 0.9), (12, 0.5))]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + '\n{"step": 13, "spl')
    assert facts_of_run(run, "latest").step == 12
    assert facts_of_run(run, "best").step == 11
    assert facts_of_run(run, 10).step == 10
    with pytest.raises(DeployError, match="step 7") as refusal:
        facts_of_run(run, 7)
    assert "10, 11, 12" in refusal.value.remedy
    with pytest.raises(DeployError, match="val/reward"):
        facts_of_run(run, "best", "val/reward")
    (run / "checkpoints" / "000012" / "adapter_model.safetensors").write_bytes(b"torn")
    assert facts_of_run(run, "latest").step == 11
    with pytest.raises(DeployError):
        facts_of_run(run, 12)


@pytest.mark.slow
async def test_a_registered_model_is_deployed_and_its_record_lies_in_its_run(tmp_path, capsys):
    said = [{"role": "user", "content": "Refund 1?"}, {"role": "assistant", "content": "Yes."}]
    server = StandIn()
    async with registered(tmp_path / "runs", a_model("new", "desk", lora=LORA), max_context=256) as (model, _):
        with pytest.raises(DeployError, match="new has no whole checkpoint of any step"):
            await model.deploy(f"vllm:{server.url}", step="best")
        await model.train_sft([Trajectory(messages_and_choices=said)])
        deployment = await model.deploy(f"vllm:{server.url}", base=BASE, smoke_test=False)
        assert list(server.adapters) == [deployment.model_id]
        assert "-s1-" in deployment.model_id
        assert "gavel undeploy" in capsys.readouterr().out
        (record,) = read_records(tmp_path / "runs" / "desk" / "new")
        assert record.id == deployment.id
        await deployment.undeploy()
    assert server.adapters == {}
    server.close()
