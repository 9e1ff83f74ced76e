"""Rewards where trainers send them: pickled, copied, forked, in pools, threads and ever new event loops."""

import asyncio
import copy
import functools
import inspect
import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest

import gavel
from gavel.integrations._rewards import Scorer
from gavel.integrations import areal, eval_protocol, nemo_rl, slime, tinker, trl, verifiers, verifiers_rubric, verl
from gavel.scenarios.errors import JudgeError
from gavel.scenarios.group import TrajectoryGroup
from tests.integrations.conftest import JudgeService
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow
KEY = "gavel_secret_of_this_process"
HOOKS: dict[str, Callable[[Any], Any]] = {
    "areal": lambda judge: areal(judge, group_size=2),
    "eval_protocol": eval_protocol,
    "nemo_rl": lambda judge: nemo_rl(judge, group_size=2),
    "slime": slime,
    "tinker": tinker,
    "trl": trl,
    "verifiers": verifiers,
    "verifiers_rubric": verifiers_rubric,
    "verl": lambda judge: verl(judge, n=2),
}
JUDGES: dict[str, Callable[[], Any]] = {
    "an address": lambda: "http://127.0.0.1:1",
    "a client": lambda: gavel.JudgeClient("http://127.0.0.1:1", KEY, options={"rubric": "Be brief."}),
    "an address with a key": lambda: f"http://user:{KEY}@127.0.0.1:1",
    "a model": lambda: "stand-in",
    "settings": lambda: gavel.JudgeConfig(models="stand-in"),
}


SENT = [(hook, judge) for hook in HOOKS for judge in JUDGES if hook != "verl" or judge not in ("a model", "settings")]


@pytest.mark.parametrize(("hook", "judge"), SENT)
def test_every_reward_can_be_sent_to_another_process_and_no_key_goes_with_it(
    hook: str, judge: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GAVEL_JUDGE_KEY", KEY)
    reward = HOOKS[hook](JUDGES[judge]())
    sent = pickle.dumps(reward)
    assert KEY.encode() not in sent
    found = pickle.loads(sent)
    assert getattr(found, "__name__", "") == getattr(reward, "__name__", "")
    assert inspect.iscoroutinefunction(found) == inspect.iscoroutinefunction(reward)
    assert callable(copy.deepcopy(reward))


@pytest.mark.parametrize("hook", [name for name in HOOKS if name != "verl"])
def test_a_judge_object_is_copied_within_its_process_and_refused_beyond_it(hook: str):
    reward = HOOKS[hook](gavel.Judge("stand-in"))
    assert callable(copy.deepcopy(reward))
    with pytest.raises(JudgeError, match=r"JudgeConfig"):
        pickle.dumps(reward)


def test_a_client_that_is_loaded_elsewhere_has_the_key_of_its_environment(monkeypatch: pytest.MonkeyPatch):
    client = gavel.JudgeClient("http://127.0.0.1:1/", "the first key", deadline=5.0, options={"orders": 2})
    monkeypatch.setenv("GAVEL_JUDGE_KEY", "another key")
    found = pickle.loads(pickle.dumps(client))
    assert (found.url, found.deadline, found.options) == (client.url, client.deadline, client.options)
    assert found._key == "another key"
    assert copy.deepcopy(client)._key == copy.copy(client)._key == "the first key"
    assert gavel.JudgeClient("https://me:word@host/gavel/").url == "https://host/gavel"


def sample(task: str, answer: str) -> dict[str, Any]:
    prompt = [{"role": "user", "content": f"write {task}"}]
    return {"data_source": "d", "solution_str": answer, "ground_truth": "a", "extra_info": {"raw_prompt": prompt}}


def in_a_worker(reward: Any, samples: list[dict[str, Any]]) -> list[float]:
    """What a worker of a pool does with a batch: a new event loop for each."""

    async def scored() -> list[float]:
        found = await asyncio.gather(*(reward(**one) for one in samples))
        return [one["score"] for one in found]

    return asyncio.run(scored())


@pytest.mark.parametrize(("method", "processes"), [("fork", 2), ("spawn", 1)])
def test_verl_s_reward_works_in_process_pools_after_it_was_used_here(
    service: JudgeService, method: str, processes: int
):
    reward = verl(service.url, n=2, run=method)
    pairs = [[sample(f"{method} {n}", "a b"), sample(f"{method} {n}", "a")] for n in range(4)]
    assert in_a_worker(reward, pairs[0]) == [0.5, 1.0]
    with ProcessPoolExecutor(processes, multiprocessing.get_context(method)) as pool:
        found = pool.map(in_a_worker, [reward] * 3, pairs[1:], timeout=HANG_SECONDS)
        assert list(found) == [[0.5, 1.0]] * 3
    assert in_a_worker(reward, pairs[0]) == [0.5, 1.0]


def test_an_error_of_a_reward_comes_back_from_a_pool_as_it_was_raised(service: JudgeService):
    reward = functools.partial(verl(service.url, n=2, run="errors"), x=1)
    bad = {**sample("e", "a"), "extra_info": {}}
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        with pytest.raises(JudgeError, match="no 'raw_prompt'"):
            pool.submit(in_a_worker, reward, [bad]).result(HANG_SECONDS)
        ok = [sample("f", "a"), sample("f", "b")]
        assert pool.submit(in_a_worker, reward, ok).result(HANG_SECONDS) == [1.0, 0.0]


def attempts(number: int) -> TrajectoryGroup:
    ask = {"role": "user", "content": f"write sent {number}"}
    return TrajectoryGroup(
        gavel.Trajectory(messages_and_choices=[ask, {"role": "assistant", "content": answer}])
        for answer in ("a b", "a")
    )


def rewards(judged: TrajectoryGroup) -> list[float | None]:
    return [trajectory.reward for trajectory in judged]


def test_one_client_serves_ever_new_event_loops_and_threads(service: JudgeService):
    client = gavel.JudgeClient(service.url)
    for number in range(3):
        assert rewards(asyncio.run(client.score(attempts(number)))) == [0.5, 1.0]
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(lambda n=n: asyncio.run(client.score(attempts(n)))) for n in range(3, 9)]
        asked += [threads.submit(client.score_now, attempts(n)) for n in range(9, 15)]
        assert [rewards(one.result(HANG_SECONDS)) for one in asked] == [[0.5, 1.0]] * 12
    asyncio.run(client.aclose())
    assert rewards(client.score_now(attempts(0))) == [0.5, 1.0]  # it opens again
    client.close()


def ask_often(client: gavel.JudgeClient, first: int) -> list[list[float | None]]:
    return [rewards(client.score_now(attempts(number))) for number in range(first, first + 5)]


def test_parent_and_forked_child_never_read_each_other_s_answers(service: JudgeService):
    client = gavel.JudgeClient(service.url)
    asyncio.run(client.score(attempts(100)))
    client.score_now(attempts(100))
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        children = [pool.submit(Asks(client), first) for first in (110, 120)]
        here = ask_often(client, 130)
        assert [here, *(child.result(HANG_SECONDS) for child in children)] == [[[0.5, 1.0]] * 5] * 3
    client.close()


_inherited: list[gavel.JudgeClient] = []


class Asks:
    """Asks with the client that the forked child has inherited, and not with a pickled one."""

    def __init__(self, client: gavel.JudgeClient) -> None:
        _inherited.append(client)

    def __call__(self, first: int) -> list[list[float | None]]:
        return ask_often(_inherited[-1], first)


def test_a_scorer_with_a_judge_model_works_in_a_forked_child_after_it_was_used(service: JudgeService):
    config = gavel.JudgeConfig(models="openai/gpt-5-mini", params=service.endpoint.params, orders=1)
    scorer = Scorer(config)
    assert rewards(scorer.score_all_now([attempts(200)])[0]) == [0.5, 1.0]
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        child = pool.submit(ScoresHere(scorer), 201)
        assert child.result(HANG_SECONDS) == [0.5, 1.0]
    assert rewards(scorer.score_all_now([attempts(202)])[0]) == [0.5, 1.0]


_scorers: list[Scorer] = []


class ScoresHere:
    def __init__(self, scorer: Scorer) -> None:
        _scorers.append(scorer)

    def __call__(self, number: int) -> list[float | None]:
        return rewards(_scorers[-1].score_all_now([attempts(number)])[0])
