import asyncio
import json

import pytest

from gavel.judge.config import JudgeConfig
from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Juror
from gavel.llm.providers import load_litellm
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from tests.endpoint import labels_in, says
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


def after_other_reads(members: int = 6) -> TrajectoryGroup:
    """Members that read the same dump after different words."""
    return TrajectoryGroup(
        Trajectory(
            messages_and_choices=[
                *OPENING,
                choice(f"I am number {n}, and I look.", calls=[("get_records", "{}")]),
                {"role": "tool", "tool_call_id": "c0", "content": DUMP},
                choice(f"Answer {n}: " + f"because of {n}. " * 20),
            ]
        )
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


def common_beginning(prompts: list[str]) -> str:
    first, last = min(prompts), max(prompts)
    return first[: next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]


def prompt_of(request) -> str:
    schema = json.dumps(request["response_format"])
    return schema + "".join(message["content"] for message in request["messages"])


@pytest.mark.parametrize("group", [with_shared_dump(), after_other_reads()], ids=["opening", "dump in mid-way"])
async def test_most_of_the_prompt_is_the_same_in_all_orders(endpoint, group):
    await Judge(Juror("openai/gpt-5-mini", params=endpoint.params), orders=4).score(group)
    prompts = list(map(prompt_of, endpoint.requests))
    assert len(set(prompts)) == 4
    tokens = load_litellm().encoding.encode
    common = len(tokens(common_beginning(prompts)))
    assert common > 1024
    assert common >= 0.6 * max(len(tokens(prompt)) for prompt in prompts)
    assert len({frozenset(labels_in(request)) for request in endpoint.requests}) == 1


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


@pytest.mark.parametrize(
    ("model", "cache"), [("openai/gpt-5-mini", "off"), ("openai/unknown", "auto")], ids=["off", "no cache known"]
)
async def test_without_a_lead_all_orders_are_sent_at_once(endpoint, model, cache):
    server = CachingServer(requests_at_once=4)
    endpoint.script = [server]
    await Judge(Juror(model, params=endpoint.params), orders=4, config=JudgeConfig(cache=cache)).score(
        with_shared_dump()
    )
    assert server.cached == [0] * 4


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
    monkeypatch.setattr("gavel.llm.prompt_cache.WARM_SECONDS", 0.01)
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
