import asyncio
import json

import pytest

from gavel.judge.config import JudgeConfig
from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Juror
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from tests.endpoint import says
from tests.judge.groups import OPENING, choice, saying
from tests.limits import HANG_SECONDS
from tests.prompt_cache_server import CachingServer

DUMP = "\n".join(f"{n}: the record of customer {n * 7919 % 1000}, all paid, nothing open" for n in range(120))


def with_shared_dump(members: int = 6) -> TrajectoryGroup:
    """Members that begin alike with a long dump, then say something of their own."""
    opening = [*OPENING, {"role": "user", "content": DUMP}]
    return TrajectoryGroup(
        Trajectory(messages_and_choices=[*opening, choice(f"Answer {n}: " + f"because of {n}. " * 20)])
        for n in range(members)
    )


class Starts:
    """A judge that says when each of its calls starts, and answers when it may."""

    def __init__(self) -> None:
        self.started = 0
        self.may_answer = asyncio.Event()
        self.all_started = asyncio.Event()

    async def __call__(self, messages, schema):
        self.started += 1
        if self.started == 4:
            self.all_started.set()
        await self.may_answer.wait()
        labels = schema["properties"]["scores"]["items"]["properties"]["trajectory_id"]["enum"]
        return json.dumps(dict.fromkeys(labels, 0.5))


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


async def test_a_lead_that_is_asked_for_is_there_for_any_model():
    judge = Starts()
    scoring = asyncio.create_task(
        Judge(judge, orders=4, config=JudgeConfig(cache="lead")).score(saying("a", "b", "c", "d"))
    )
    for _ in range(50):
        await asyncio.sleep(0)
    assert judge.started == 1
    judge.may_answer.set()
    judged = await scoring
    assert judge.started == 4
    assert judged.judgement.status == "scored"


async def test_the_others_do_not_wait_for_a_slow_first_call(monkeypatch):
    monkeypatch.setattr("gavel.judge.panel.polling.WARM_SECONDS", 0.01)
    judge = Starts()
    async with asyncio.timeout(HANG_SECONDS):
        scoring = asyncio.create_task(
            Judge(judge, orders=4, config=JudgeConfig(cache="lead")).score(saying("a", "b", "c", "d"))
        )
        await judge.all_started.wait()
        judge.may_answer.set()
        await scoring


async def test_the_others_are_asked_when_the_first_call_fails(endpoint):
    endpoint.script = [lambda _: says("no"), CachingServer()]
    juror = Juror("openai/gpt-5-mini", params=endpoint.params)
    judged = await Judge(juror, orders=4, config=JudgeConfig(content_retries=0)).score(with_shared_dump())
    assert judged.judgement.lost_orders == 1
    assert judged.judgement.status == "scored"
