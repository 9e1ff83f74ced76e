"""Budgets, limits, fallbacks, cassettes, estimates and caches as they meet a judge, against a real endpoint."""

import asyncio
import os
import subprocess
import sys
from collections import Counter

import pytest

from gavel.judge.config import JudgeConfig
from gavel.judge.errors import JudgeError
from gavel.judge.estimate import estimate_groups
from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Juror
from gavel.llm.budget import Budget
from gavel.llm.cassette import Cassette
from gavel.llm.errors import CassetteError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from tests.endpoint import Endpoint, fails, limit_attempts, says, scores
from tests.judge.groups import OPENING, choice, saying
from tests.prompt_cache_server import CachingServer

pytestmark = pytest.mark.slow

PRICES = {"openai/judge": (2.0, 8.0)}
CALL_USD = (100 * 2.0 + 20 * 8.0) / 1e6


def judge_of(endpoint: Endpoint, model="openai/judge", **options) -> Judge:
    params = endpoint.params | options.pop("params", {})
    return Judge(Juror(model, params=params), **{"prices": PRICES, **options})


def groups(count: int) -> list[TrajectoryGroup]:
    return [saying(f"a {number}", f"b {number}") for number in range(count)]


async def judged(judge: Judge, count: int) -> list[TrajectoryGroup]:
    return list(await asyncio.gather(*(judge.score(group) for group in groups(count))))


@pytest.mark.parametrize("params", [{}, {"max_tokens": 40}])
async def test_a_budget_in_dollars_stops_before_it_is_passed_and_keeps_what_was_paid_for(endpoint, params):
    endpoint.script = [scores(0.75, 0.25)]
    budget = Budget(max_cost_usd=50 * CALL_USD)
    both = [judge_of(endpoint, orders=1, budget=budget, params=params, seed=seed) for seed in (1, 2)]
    done = [group for each in await asyncio.gather(*(judged(judge, 60) for judge in both)) for group in each]
    asked = len(endpoint.requests)
    assert asked * CALL_USD <= budget.max_cost_usd + CALL_USD
    assert asked > 20
    assert budget.spent_usd == pytest.approx(asked * CALL_USD)
    wholes = [group.judgement for group in done if group.judgement]
    assert Counter(whole.status for whole in wholes) == {"scored": asked, "unscored": 120 - asked}
    assert sum(whole.calls for whole in wholes) == asked
    assert sum(whole.cost_usd or 0 for whole in wholes) == pytest.approx(asked * CALL_USD)
    assert all(whole.reason for whole in wholes if whole.status == "unscored")


@pytest.mark.parametrize("fault", [fails(500), fails(401), lambda _: says("I cannot."), fails(400, "bad")])
async def test_a_model_that_cannot_be_used_is_followed_by_the_next(endpoint, fault, monkeypatch):
    limit_attempts(monkeypatch, 3)
    answers = {"first": fault, "second": scores(0.75, 0.25)}
    endpoint.script = [lambda request: answers[request["model"]](request)]
    judge = judge_of(endpoint, ["openai/first", "openai/second"], orders=1)
    [group] = await judged(judge, 1)
    assert sorted(t.reward for t in group) == [0.25, 0.75]
    assert {vote.model for t in group if t.judgement for vote in t.judgement.votes} == {"openai/second"}
    free = 2 if fault({}).status in (400, 500) else 0
    assert group.judgement.calls == len(endpoint.requests) - free


async def test_a_group_that_was_judged_costs_nothing_the_second_time(endpoint, tmp_path):
    endpoint.script = [lambda _: says("no"), scores(0.75, 0.25)]
    first = await judged(judge_of(endpoint, cassette=tmp_path / "c.sqlite"), 3)
    asked = len(endpoint.requests)
    again = await judged(judge_of(endpoint, cassette=tmp_path / "c.sqlite"), 3)
    assert len(endpoint.requests) == asked == 7
    assert [[t.judgement for t in group] for group in first] == [[t.judgement for t in group] for group in again]
    wholes = [group.judgement for group in again if group.judgement]
    assert sum(whole.cached_calls for whole in wholes) == 7
    assert {(whole.calls, whole.cost_usd, whole.prompt_tokens) for whole in wholes} == {(0, 0.0, 0)}


async def test_a_cassette_that_cannot_be_used_is_an_error_before_anyone_is_asked_and_costs_no_votes(endpoint, tmp_path):
    path = tmp_path / "c.sqlite"
    path.write_text("my notes")
    for judge in (judge_of(endpoint, cassette=path), Judge("stand-in", cassette=path)):
        with pytest.raises(JudgeError) as error:
            judge.check()
        assert error.value.remedy
        assert isinstance(error.value.__cause__, CassetteError)
        with pytest.raises(JudgeError):
            await judge.score(saying("a", "b"))
    with pytest.raises(JudgeError):
        Judge("stand-in", cassette=Cassette(tmp_path / "none.sqlite", "replay")).check()
    assert endpoint.requests == []
    assert path.read_text() == "my notes"
    assert list(tmp_path.iterdir()) == [path]


async def test_a_replay_needs_no_server_no_key_and_no_price(endpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_API_BASE", endpoint.params["api_base"])
    endpoint.script = [scores(0.75, 0.25)]
    [first] = await judged(Judge("openai/gpt-4o", cassette=tmp_path / "c.sqlite"), 1)
    monkeypatch.delenv("OPENAI_API_KEY")
    endpoint.close()
    replay = Cassette(tmp_path / "c.sqlite", "replay")
    budget = Budget(max_cost_usd=1e-9)
    [again] = await judged(Judge("openai/gpt-4o", cassette=replay, budget=budget), 1)
    assert [t.judgement for t in first] == [t.judgement for t in again]
    missing = await Judge("openai/gpt-4o", cassette=replay, seed=7).score(saying("a 0", "b 0"))
    assert (missing.judgement.status, missing.judgement.calls) == ("unscored", 0)
    assert "has no reply" in (missing.judgement.reason or "")


PROMPTS = """
import asyncio, hashlib
from gavel.judge.config import JudgeConfig
from gavel.judge.judge import Judge
from tests.judge.groups import TOOLS, desk, saying
from gavel.scenarios.group import TrajectoryGroup

async def judge(messages, schema):
    print(hashlib.sha256(repr((messages, schema)).encode()).hexdigest())
    return "no"

group = TrajectoryGroup([desk("refund"), desk("get_order", "deny"), desk(ending=None), *saying("x", "y")])
asyncio.run(Judge(judge, orders=4, config=JudgeConfig(content_retries=1)).score(group))
"""


def test_the_same_group_makes_the_same_questions_in_every_process():
    command = [sys.executable, "-c", PROMPTS]
    one, other = (subprocess.check_output(command, env=os.environ | {"PYTHONHASHSEED": n}, text=True) for n in "12")
    assert one == other
    assert len(set(one.split())) == 8


GROUPS = [saying("a", "b", "c"), saying("d", "e"), saying("same", "same"), TrajectoryGroup([])]


@pytest.mark.parametrize(("options", "calls"), [({}, 4), ({"orders": 3}, 6), ({"mode": "pairwise", "orders": 1}, 4)])
async def test_an_estimate_counts_the_calls_that_judging_makes(endpoint: Endpoint, options, calls):
    endpoint.script = [scores(0.75, 0.25)]
    judge = Judge(Juror("openai/judge", params=endpoint.params), **options)
    estimate = await estimate_groups(judge, GROUPS)
    assert endpoint.requests == []
    for group in GROUPS[:3]:
        await judge.score(group)
    assert estimate.calls == len(endpoint.requests) == calls


async def test_an_estimate_needs_neither_key_nor_price_nor_budget():
    judge = Judge("openai/mine", budget=Budget(max_cost_usd=1e-9))
    estimate = await estimate_groups(judge, GROUPS)
    assert estimate.unpriced == ("openai/mine",)
    assert "cost unknown: openai/mine has no price" in estimate.words


@pytest.mark.parametrize(("mode", "tokens"), [("decisions", 0), ("readout", 2 * 3 * 10)])
async def test_scores_that_are_read_from_probabilities_take_few_tokens(mode, tokens):
    estimate = await estimate_groups(Judge("openai/gpt-5-mini", mode=mode, orders=2), GROUPS[:1])
    assert (estimate.calls, estimate.completion_tokens) == (2, tokens)
    assert estimate.prompt_tokens > 500


DUMP = "\n".join(f"{n}: the record of customer {n * 7919 % 1000}, all paid, nothing open" for n in range(120))


def with_shared_dump(members: int = 6) -> TrajectoryGroup:
    """Members that begin alike with a long dump, then say something of their own."""
    opening = [*OPENING, {"role": "user", "content": DUMP}]
    return TrajectoryGroup(
        Trajectory(messages_and_choices=[*opening, choice(f"Answer {n}: " + f"because of {n}. " * 20)])
        for n in range(members)
    )


async def test_the_first_order_goes_ahead_and_the_others_find_its_prompt_in_the_cache(endpoint):
    server = CachingServer()
    endpoint.script = [server]
    judged = await Judge(Juror("openai/gpt-5-mini", params=endpoint.params), orders=4).score(with_shared_dump())
    first, *others = server.cached
    assert first == 0
    assert min(others) >= 0.6 * max(server.prompts)
    judgement = judged.judgement
    assert judgement.cached_prompt_tokens == sum(server.cached)
    paid = (sum(server.prompts) - sum(server.cached)) * 0.25 + sum(server.cached) * 0.025 + 4 * 20 * 2
    assert judgement.cost_usd == pytest.approx(paid / 1e6)
    assert TrajectoryGroup.model_validate_json(judged.model_dump_json()).judgement == judgement


async def test_the_others_are_asked_when_the_first_call_fails(endpoint):
    endpoint.script = [lambda _: says("no"), CachingServer()]
    juror = Juror("openai/gpt-5-mini", params=endpoint.params)
    judged = await Judge(juror, orders=4, config=JudgeConfig(content_retries=0)).score(with_shared_dump())
    assert judged.judgement.lost_orders == 1
    assert judged.judgement.status == "scored"
