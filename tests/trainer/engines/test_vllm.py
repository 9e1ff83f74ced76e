"""The vLLM engine: its faults over a stand-in server, and a training step over the real one (`make test-vllm`)."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.config import TrainConfig, VllmSettings
from gavel.trainer.engines import vllm as vllm_module
from gavel.trainer.engines.protocol import AdapterGone, EngineError, Sampled
from gavel.trainer.engines.vllm import VllmEngine
from tests.limits import HANG_SECONDS
from tests.trainer.conftest import IDS, a_group, a_model, ask, assert_sampled_by, registered, request_for, tiny_model
from tests.trainer.engines.vllm_stand_in import BASE, StandIn, until
from tests.trainer.families import BY_NAME

pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> Iterator[StandIn]:
    running = StandIn()
    yield running
    running.close()


@pytest.fixture
def connect(server, policy, tmp_path) -> Iterator[Callable[..., VllmEngine]]:
    made: list[VllmEngine] = []

    def connected(version: int = 0, **settings) -> VllmEngine:
        made.append(VllmEngine(server.url, BASE, tmp_path / "adapters", max_context=256, **settings))
        made[-1].publish(policy, version)
        return made[-1]

    yield connected
    for engine in made:
        engine.close()


def test_the_address_may_be_the_one_that_openai_clients_take(server, policy, tmp_path):
    engine = VllmEngine(f"{server.url}/v1/", BASE, tmp_path / "adapters", max_context=256)
    assert engine.max_context == 200, "the server takes no more"
    engine.publish(policy, 4)
    found = ask(engine, temperature=0.7)
    assert_sampled_by(tiny_model(), IDS, found, 0.7)
    assert found.adapter_version == 4
    engine.close()


def test_a_server_of_another_model_is_refused_naming_both(server, tmp_path):
    with pytest.raises(EngineError, match="serves served, not org/other") as error:
        VllmEngine(server.url, "org/other", tmp_path / "adapters", max_context=256)
    assert "--served-model-name" in error.value.remedy


def test_unscaled_logprobs_serve_temperature_one_only(server, connect):
    server.unscaled = True
    engine = connect()
    assert ask(engine).token_ids
    assert ask(engine, temperature=0.0).token_ids
    with pytest.raises(EngineError, match=r"temperature 0\.7") as error:
        ask(engine, temperature=0.7)
    assert "--logprobs-mode processed_logprobs" in error.value.remedy


def test_a_server_that_loads_no_adapters_says_what_it_needs(server, connect):
    server.missing = {"/v1/load_lora_adapter"}
    with pytest.raises(EngineError, match=r"answered 404: .*Not Found") as error:
        connect()
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" in error.value.remedy


def test_a_server_is_told_of_experts_that_are_adapted(server, connect, opened):
    connect(versions=2).publish(opened(BY_NAME["Qwen3-MoE"], experts=True), 1)
    assert len(server.adapters) == 2


@pytest.mark.parametrize("streamed", [False, True])
def test_a_request_that_the_server_breaks_off_is_an_error_and_no_short_turn(server, connect, monkeypatch, streamed):
    monkeypatch.setattr(vllm_module, "_HEALTH_CHECKS", 3)
    engine = connect()
    server.breaks_off = True
    with pytest.raises(EngineError, match=r"ended a (request|stream) early"):
        ask(engine, on_tokens=list[Sampled]().append if streamed else None)
    server.breaks_off = False
    assert ask(engine).finish_reason == "length"


def test_an_adapter_is_kept_for_as_long_as_a_request_uses_it_and_its_name_is_never_used_again(
    server, connect, policy, tmp_path
):
    engine = connect(1)
    server.go_on.clear()
    early = engine.submit(request_for(IDS))
    until(lambda: server.asked[-1] == "/v1/completions")
    first = list(server.adapters)
    engine.publish(policy, 2)
    assert list(server.adapters)[:1] == first, "the request in flight still needs it"
    server.go_on.set()
    assert early.result(timeout=HANG_SECONDS).adapter_version == 1
    engine.publish(policy, 2)
    assert [name.split("-")[0] for name in server.adapters] == ["gavel@2"]
    assert [path.name for path in (tmp_path / "adapters").iterdir()] == list(server.adapters)
    assert "adapter_model.safetensors" in server.adapters[server.every_name[-1]]
    assert len(set(server.every_name)) == 3
    engine.close()
    assert not server.adapters
    assert not (tmp_path / "adapters").exists()


def test_as_many_adapters_as_may_be_asked_for_stay_at_the_server(server, connect, policy):
    engine = connect(1, versions=2)
    for version in (2, 3):
        engine.publish(policy, version)
    assert engine.adapter_versions == [2, 3]
    assert [name.split("-")[0] for name in server.adapters] == ["gavel@2", "gavel@3"]
    earlier, live = server.adapters
    server.sampled_by.clear()
    assert ask(engine, adapter_version=2).adapter_version == 2
    assert ask(engine).adapter_version == 3
    assert server.sampled_by == [earlier, live]
    with pytest.raises(AdapterGone, match="there are: 2, 3"):
        ask(engine, adapter_version=1)


def test_the_server_sleeps_while_the_learner_computes_and_no_request_is_lost(server, connect):
    engine = connect(sleep=True)
    server.asked.clear()
    server.go_on.clear()
    early = engine.submit(request_for(IDS))
    until(lambda: server.asked == ["/v1/completions"])
    threading.Timer(0.2, server.go_on.set).start()
    with engine.release_memory():
        assert early.done(), "what is in flight is waited for"
        late = engine.submit(request_for(IDS, seed=1))
    assert late.result(timeout=HANG_SECONDS).token_ids
    assert server.asked == ["/v1/completions", "completed", "/sleep", "/wake_up", "/v1/completions", "completed"]


def test_a_server_that_does_not_answer_is_not_waited_for_for_ever(server, connect, monkeypatch):
    engine = connect()
    monkeypatch.setattr(vllm_module, "deadline", lambda *_: 0.3)
    server.go_on.clear()
    with pytest.raises(EngineError, match="was not done after"):
        ask(engine)


@pytest.mark.parametrize("ails", ["gone", "dying", "cuts off", "aborts"])
def test_a_server_that_is_dying_or_gone_is_an_error_and_closes_the_engine(server, connect, policy, ails):
    engine = connect()
    assert not engine.closed
    if ails == "gone":
        server.close()
    else:
        server.ails = ails
    with pytest.raises(EngineError, match="is gone") as error:
        ask(engine)
    assert "Register the model again" in error.value.remedy
    assert engine.closed
    with pytest.raises(EngineError, match="is gone"):
        engine.publish(policy, 1)


async def test_an_address_where_nothing_listens_is_an_error_that_names_it(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(EngineError, match=f"http://127.0.0.1:{port} is gone") as error:
        await a_model().register(LocalBackend(tmp_path, engine=VllmSettings(urls=(f"http://127.0.0.1:{port}",))))
    assert "Start it" in error.value.remedy


@pytest.mark.vllm
async def test_a_model_trains_over_a_vllm_of_its_own_and_hears_of_its_death(tmp_path):
    settings = VllmSettings(python=os.environ["GAVEL_TEST_VLLM_PYTHON"], sleep=True)
    async with registered(tmp_path, engine=settings, max_context=512) as (model, backend):
        for step in (1, 2):
            group = await a_group(model, [0.0, 0.3, 0.6, 1.0])
            assert {trajectory.policy_version for trajectory in group} == {step - 1}
            result = await model.train([group], TrainConfig(learning_rate=1e-3))
            assert result.trained
            assert result.metrics["logprob_drift"] < 1e-4
            assert result.metrics["publish_gap"] < 1e-3
        engine = backend._run(model)._engine
        os.killpg(engine._process._process.pid, signal.SIGKILL)
        with pytest.raises(EngineError) as error:
            await model.train([group])
        assert "Register the model again" in error.value.remedy
    assert (tmp_path / "tests" / "clerk" / "vllm.log").is_file()
    assert not (tmp_path / "tests" / "clerk" / "adapters").exists()
