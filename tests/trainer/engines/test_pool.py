"""Several samplers as one: where a request goes, and servers on loopback that die, hang and come back."""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.trainer.engines import engine_pool
from gavel.trainer.engines.engine_pool import FEWEST_MORE, EnginePool, PoolSchedule, much_busier
from gavel.trainer.engines.protocol import AdapterGone, EngineError, Sampled
from gavel.trainer.engines.vllm import VllmEngine
from tests.limits import HANG_SECONDS
from tests.trainer.conftest import IDS, ask, assert_sampled_by, full_logprobs, request_for, tiny_model
from tests.trainer.engines.vllm_stand_in import BASE, StandIn, until

pytestmark = pytest.mark.slow


@pytest.fixture
def servers() -> Iterator[list[StandIn]]:
    running = [StandIn(), StandIn()]
    yield running
    for server in running:
        server.close()


@pytest.fixture
def connect(servers, policy, tmp_path, monkeypatch) -> Iterator[Callable[..., EnginePool]]:
    made: list[EnginePool] = []
    monkeypatch.setattr(engine_pool, "_CHECK_SECONDS", 0.05)

    def connected(version: int, **settings) -> EnginePool:
        places = [(server.url, BASE, tmp_path / str(n)) for n, server in enumerate(servers)]
        made.append(EnginePool([partial(VllmEngine, *each, max_context=256, **settings) for each in places]))
        assert (made[-1].max_context, made[-1].adapter_versions, made[-1].serves_base) == (200, [], False)
        made[-1].publish(policy, version)
        return made[-1]

    yield connected
    for pool in made:
        pool.close()


def counts(servers: list[StandIn]) -> list[int]:
    return [len(server.sampled_by) for server in servers]


def held_up(pool: EnginePool, server: StandIn) -> "Future[Sampled]":
    """A request that has arrived at the server, which does not answer."""
    server.go_on.clear()
    waiting = pool.submit(request_for(IDS))
    until(lambda: server.asked[-1] == "/v1/completions")
    return waiting


def test_requests_are_spread_and_each_is_sampled_as_by_one_engine(servers, connect):
    pool = connect(4)
    for server in servers:
        server.go_on.clear()
        server.sampled_by.clear()
    asked = [pool.submit(request_for([n, *IDS])) for n in range(6)]
    until(lambda: sum(counts(servers)) == 6)
    assert counts(servers) == [3, 3]
    for server in servers:
        server.go_on.set()
    for n, future in enumerate(asked):
        found = future.result(timeout=HANG_SECONDS)
        assert_sampled_by(tiny_model(), [n, *IDS], found)
        assert found.adapter_version == 4
    assert (pool.adapter_version, pool.adapter_versions) == (4, [4])
    assert pool.score(IDS) == pytest.approx(full_logprobs(tiny_model(), IDS).tolist(), abs=1e-4)
    assert pool.take_counts() == {"samplers": 2, "requests_restarted": 0}


def test_a_conversation_goes_on_where_it_was_sampled(servers, connect):
    pool = connect(1)
    conversations = [[n, *IDS] for n in range(4)]
    futures = [pool.submit(request_for(ids)) for ids in conversations]
    turns = [future.result(timeout=HANG_SECONDS).token_ids for future in futures]
    homes = [None] * 4
    for _ in range(3):
        for n, (ids, turn) in enumerate(zip(conversations, turns, strict=True)):
            for server in servers:
                server.sampled_by.clear()
            ask(pool, [*ids, *turn, 7])
            home = counts(servers).index(1)
            assert homes[n] in (None, home)
            homes[n] = home
    assert sorted(homes) == [0, 0, 1, 1]


def test_a_request_whose_server_dies_begins_again_unless_something_was_heard(servers, connect, caplog):
    pool = connect(2)
    plain = ask(pool, seed=3)
    servers[0].ends_after = 2  # the first sampler is the least loaded by its number
    with caplog.at_level(logging.WARNING, "gavel"):
        assert ask(pool, [7, *IDS], seed=3).token_ids
        assert ask(pool, seed=3).token_ids == plain.token_ids
    assert pool.take_counts() == {"samplers": 1, "requests_restarted": 1}
    assert pool.take_counts()["requests_restarted"] == 0
    (told,) = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert servers[0].url in told
    assert not pool.closed


def test_a_reply_that_was_heard_in_part_fails_and_asking_again_is_answered(servers, connect):
    pool = connect(2)
    plain = ask(pool, seed=3)
    servers[0].ends_after = 2
    heard: list[Sampled] = []
    with pytest.raises(EngineError, match="after part of it was heard"):
        ask(pool, [8, *IDS], on_tokens=heard.append)
    assert heard
    heard.clear()
    assert ask(pool, seed=3, on_tokens=heard.append).token_ids == plain.token_ids
    assert [token for piece in heard for token in piece.token_ids] == plain.token_ids


def test_when_all_are_gone_the_error_says_what_to_do(servers, connect, policy):
    pool = connect(1)
    for server in servers:
        server.die()
    for call in (lambda: ask(pool), lambda: pool.publish(policy, 2), lambda: pool.score(IDS), lambda: ask(pool)):
        with pytest.raises(EngineError, match="none of the 2 samplers serves any more"):
            call()
    assert pool.closed


def test_one_that_comes_back_serves_once_it_has_the_live_adapter_and_is_admitted(servers, connect, policy, caplog):
    pool = connect(1, versions=2)
    servers[0].die()
    assert all(ask(pool, [n, *IDS]).adapter_version == 1 for n in range(4))
    until(lambda: len(pool.serving) == 1)
    servers[0].max_context = 100
    servers[0].start_again()
    until(lambda: "came back with a context of 100 tokens" in caplog.text)
    assert pool._members[0].state != "back"
    servers[0].max_context = 200
    until(lambda: pool._members[0].state == "back")
    servers[0].sampled_by.clear()
    assert pool.returned == []
    ask(pool)
    assert not servers[0].sampled_by, "it has no adapter yet"
    pool.publish(policy, 2)
    (returned,) = pool.returned
    assert next(iter(servers[0].adapters)).startswith("gavel@2-")
    servers[0].sampled_by.clear()
    assert ask(pool, [1]).adapter_version == 2
    assert not servers[0].sampled_by, "it is not proven yet"
    pool.admit(returned)
    assert pool.take_counts()["samplers"] == 2
    assert ask(pool, [8]).adapter_version == 2
    assert len(servers[0].sampled_by) == 1
    assert not pool.leave_out(returned, ValueError("serves")), "one that serves is not left out for nothing"
    assert all(ask(pool, [n], adapter_version=1).adapter_version == 1 for n in range(4))
    assert len(servers[0].sampled_by) == 1, "it never had the earlier adapter"
    with pytest.raises(AdapterGone, match="adapter of step 7 is not held; there are: 1, 2"):
        ask(pool, adapter_version=7)


def test_a_cancelled_request_frees_its_place_and_those_of_a_server_that_hangs_begin_again(servers, connect):
    pool = connect(1)
    assert held_up(pool, servers[0]).cancel()
    until(lambda: pool._schedule.loads == [0, 0])
    servers[0].go_on.set()
    assert ask(pool).token_ids
    waiting = held_up(pool, servers[0])
    servers[0].ails = "unhealthy"
    assert waiting.result(timeout=HANG_SECONDS).adapter_version == 1
    assert pool.take_counts() == {"samplers": 1, "requests_restarted": 1}


def test_all_sleep_while_the_learner_computes_and_a_lost_one_is_no_error(servers, connect):
    pool = connect(1, sleep=True)
    with pool.release_memory():
        assert all(server.asked[-1] == "/sleep" for server in servers)
        servers[0].die()
    assert servers[1].asked[-1] == "/wake_up"
    until(lambda: len(pool.serving) == 1)
    assert ask(pool).token_ids
    with pytest.raises(ValueError, match="of the learner"), pool.release_memory():
        raise ValueError("of the learner")
    assert ask(pool).token_ids


def test_closing_fails_what_waits_and_frees_the_servers(servers, connect):
    pool = connect(1)
    waiting = held_up(pool, servers[0])
    pool.close()
    with pytest.raises(EngineError, match="closed"):
        waiting.result(timeout=HANG_SECONDS)
    assert [server.adapters for server in servers] == [{}, {}]
    pool.close()


tokens = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@given(tokens, st.integers(0, 2), st.integers(0, 3))
def test_a_conversation_leaves_a_sampler_that_is_much_busier(prompt: list[int], holder: int, others: int) -> None:
    schedule = PoolSchedule(3)
    schedule.hold(holder, prompt, [5], 1)
    assert schedule.place([*prompt, 5], 2, range(3)) == 0, "of another adapter nothing is shared"
    schedule.loads[0] -= 1
    for _ in range(others):
        schedule.place([9], 1, range(3))
    while not much_busier(schedule.loads[holder], min(schedule.loads)):
        assert schedule.place([*prompt, 5], 1, range(3)) == holder
        assert schedule.loads[holder] <= FEWEST_MORE + 2
    assert schedule.place([*prompt, 5], 1, range(3)) != holder
