from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.deploy.host import Deployment
from gavel.trainer.deploy.record import DeployError, open_record
from gavel.trainer.deploy.smoke_test import SmokeTest, recorded_prompts
from gavel.trainer.deploy.vllm import open_host
from gavel.trainer.runs.run_directory import read_description
from tests.fake_server import Answer, Call, FakeServer
from tests.trainer.deploy.trained_run import facts_of, make_run, served_step

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module", params=[12, 11, None], ids=["it", "another step", "the base"])
def served(request: pytest.FixtureRequest, run: Path) -> Iterator[tuple[int | None, str]]:
    with served_step(run, request.param) as server:
        yield request.param, server.base_url


def deployment(run: Path, base_url: str) -> Deployment:
    record = open_record(run, host="vllm", address="vllm:http://x", adapter=facts_of(run, 12), options={})
    return Deployment(open_host("http://x"), record, base_url, "desk", None, "")


async def proven(run: Path, base_url: str) -> str:
    test = SmokeTest(run, 12, facts_of(run, 12).directory, read_description(run / "model.json"))
    return await test(deployment(run, base_url), lambda line: None)


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
