"""A run over two servers: each is proven by itself, one that dies costs no group, one that comes back is proven first.

The servers are stand-ins for vLLM on loopback, which load the adapters that they are sent.
"""

import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from openai.types.chat.chat_completion import Choice

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import find_scenario
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.proof import PublishError
from gavel.trainer.config import LoraSettings, TrainConfig, VllmSettings
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.engines import engine_pool
from gavel.trainer.engines.engine_pool import EnginePool
from gavel.trainer.engines.protocol import EngineError
from gavel.trainer.engines.vllm import VllmEngine
from gavel.trainer.model import TrainableModel
from gavel.trainer.policy.policy import Policy, source_of
from tests.trainer.engines.test_pool import until
from tests.trainer.engines.vllm_stand_in import StandIn

pytestmark = pytest.mark.slow

LORA = LoraSettings(rank=4)
CONFIG = TrainConfig(learning_rate=1e-2)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[StandIn]]:
    monkeypatch.setattr(engine_pool, "_CHECK_SECONDS", 0.05)
    base = source_of(EMBEDDED_POLICY)
    running = [StandIn(base=base, max_context=512, policy=Policy(EMBEDDED_POLICY, LORA)) for _ in range(2)]
    yield running
    for server in running:
        server.close()


@asynccontextmanager
async def a_run(servers: list[StandIn], runs: Path) -> AsyncIterator[tuple[TrainableModel, EnginePool]]:
    model = TrainableModel(name="clerk", project="tests", base_model=EMBEDDED_POLICY, lora=LORA)
    settings = VllmSettings(urls=tuple(server.url for server in servers))
    async with LocalBackend(runs, engine=settings, max_context=512) as backend:
        await model.register(backend)
        engine = backend._run(model)._engine
        assert isinstance(engine, EnginePool)
        yield model, engine


async def a_group(model: TrainableModel, members: int = 6) -> TrajectoryGroup:
    scenario = find_scenario("returns_desk")
    (task,) = scenario.sample("train", 1, seed=0)
    group = await TrajectoryGroup(rollout(model, scenario, task, max_tokens=32, seed=n) for n in range(members))
    for number, trajectory in enumerate(group):
        trajectory.reward = number / members
    return group


def turns(group: TrajectoryGroup) -> list[Choice]:
    return [turn for trajectory in group for turn in trajectory.messages_and_choices if isinstance(turn, Choice)]


def sampled(server: StandIn) -> int:
    return len(server.sampled_by)


async def test_both_servers_sample_and_each_is_proven_after_a_step(servers: list[StandIn], tmp_path: Path) -> None:
    async with a_run(servers, tmp_path) as (model, _):
        for step in (1, 2):
            before = [sampled(server) for server in servers]
            group = await a_group(model)
            assert all(sampled(server) > at for server, at in zip(servers, before, strict=True))
            before = [sampled(server) for server in servers]
            result = await model.train([group], CONFIG)
            assert all(sampled(server) > at for server, at in zip(servers, before, strict=True)), "both were scored"
            assert (result.step, result.trained) == (step, True)
            assert result.metrics["logprob_drift"] < 1e-4
            assert (result.metrics["publish_gap"] < 1e-3, result.metrics["publish_proven"]) == (True, 1.0)
            assert (result.metrics["samplers"], result.metrics["requests_restarted"]) == (2, 0)


async def test_a_server_that_keeps_the_earlier_adapter_is_found_beside_one_that_follows(
    servers: list[StandIn], tmp_path: Path
) -> None:
    async with a_run(servers, tmp_path) as (model, _):
        group = await a_group(model)
        servers[1].ignores_adapters = True
        with pytest.raises(PublishError, match=f"at {servers[1].url}: .*earlier adapter"):
            await model.train([group], CONFIG)
    assert not (tmp_path / "tests" / "clerk" / "checkpoints" / "000001").exists()


async def test_a_server_that_dies_in_a_step_costs_no_group_and_is_taken_back_once_proven(
    servers: list[StandIn], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "gavel")
    async with a_run(servers, tmp_path) as (model, pool):
        servers[1].ends_after = 1
        group = await a_group(model)
        assert len(group.trajectories) == 6
        assert not group.exceptions
        for trajectory in group:
            seen: list[int] = []
            for turn in turns(TrajectoryGroup([trajectory])):
                extra = turn.model_extra or {}
                assert extra["prompt_token_ids"][: len(seen)] == seen, "the conversation goes on from the very tokens"
                seen = [*extra["prompt_token_ids"], *extra["token_ids"]]
        result = await model.train([group], CONFIG)
        assert (result.step, result.metrics["trajectories_trained"]) == (1, 6)
        assert result.metrics["logprob_drift"] < 1e-4
        assert result.metrics["samplers"] == 1
        assert result.metrics["requests_restarted"] >= 1
        servers[1].start_again()
        until(lambda: pool._members[1].state == "back")
        before = sampled(servers[1])
        group = await a_group(model)
        assert sampled(servers[1]) == before, "it serves nothing before it has the adapter"
        result = await model.train([group], CONFIG)
        assert result.metrics["samplers"] == 2
        assert result.metrics["publish_gap"] < 1e-3
        before = sampled(servers[1])
        assert {turn.model_extra["policy_version"] for turn in turns(await a_group(model)) if turn.model_extra} == {2}
        assert sampled(servers[1]) > before
    assert sum("begins again on the others" in record.getMessage() for record in caplog.records) == 1
    assert sum("is back" in record.getMessage() for record in caplog.records) == 1


async def test_one_that_comes_back_and_serves_something_else_stays_out(
    servers: list[StandIn], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "gavel")
    async with a_run(servers, tmp_path) as (model, pool):
        group = await a_group(model)
        servers[1].die()
        until(lambda: len(pool.serving) == 1)
        servers[1].ignores_adapters = True
        servers[1].start_again()
        until(lambda: pool._members[1].state == "back")
        result = await model.train([group], CONFIG)
        assert (result.trained, result.metrics["samplers"]) == (True, 1)
    assert any("came back, and is left out again" in record.getMessage() for record in caplog.records)


async def test_without_any_server_the_step_is_saved_and_the_error_says_what_to_do(
    servers: list[StandIn], tmp_path: Path
) -> None:
    async with a_run(servers, tmp_path) as (model, _):
        group = await a_group(model)
        for server in servers:
            server.die()
        with pytest.raises(EngineError, match="none of the 2 samplers") as error:
            await model.train([group], CONFIG)
        assert "register the model again" in error.value.remedy
    for server in servers:
        server.start_again()
    async with a_run(servers, tmp_path) as (model, _):
        assert await model.get_step() == 1, "what was learned is not learned twice"


def token_ids(group: TrajectoryGroup) -> list[list[list[int]]]:
    """Of each member's turns: the prompt's and the reply's."""
    return [[ids for turn in turns(TrajectoryGroup([member])) for ids in _ids(turn)] for member in group.trajectories]


def _ids(turn: Choice) -> tuple[list[int], list[int]]:
    extra = turn.model_extra or {}
    return extra["prompt_token_ids"], extra["token_ids"]


@pytest.mark.vllm
async def test_a_real_server_of_two_is_killed_in_the_middle_of_a_step(tmp_path: Path) -> None:
    model = TrainableModel(name="clerk", project="tests", base_model=EMBEDDED_POLICY, lora=LORA)
    settings = VllmSettings(python=os.environ["GAVEL_TEST_VLLM_PYTHON"], replicas=2)
    async with LocalBackend(tmp_path, engine=settings, max_context=512) as backend:
        await model.register(backend)
        pool = backend._run(model)._engine
        assert isinstance(pool, EnginePool)
        undisturbed = await a_group(model)
        group = await a_group(model)
        assert token_ids(group) == token_ids(undisturbed), "a seed gives the same tokens on every server"
        first, doomed = pool.serving
        assert isinstance(doomed, VllmEngine)
        assert doomed._process is not None
        server = doomed._process._process.pid

        def kill_in_the_middle() -> None:
            until(lambda: pool._schedule.loads[1] > 0)
            os.killpg(server, signal.SIGKILL)

        killing = threading.Thread(target=kill_in_the_middle)
        killing.start()
        disturbed = await a_group(model)
        killing.join()
        assert not disturbed.exceptions
        assert token_ids(disturbed) == token_ids(undisturbed), "what is begun again is what would have been sampled"
        result = await model.train([disturbed], CONFIG)
        assert (result.step, result.trained, result.metrics["trajectories_trained"]) == (1, True, 6)
        assert result.metrics["logprob_drift"] < 1e-4
        assert result.metrics["publish_gap"] < 1e-3
        assert result.metrics["requests_restarted"] >= 1
        until(lambda: pool._members[1].state == "back")
        assert pool.serving == [first]
        result = await model.train([await a_group(model)], CONFIG)
        assert (result.step, result.metrics["samplers"]) == (2, 2)
        assert [row["step"] for row in backend.history(model, "train")] == [1, 2]
        before = pool.serving[1]
        assert before.adapter_version == 2
        assert {turn.model_extra["policy_version"] for turn in turns(await a_group(model)) if turn.model_extra} == {2}
    assert (tmp_path / "tests" / "clerk" / "vllm-logs" / "1.log").is_file()
