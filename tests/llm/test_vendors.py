"""The habits of real servers, through the real LiteLLM: what is asked again, what stops, what is adapted to."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from gavel.llm.budget import Budget
from gavel.llm.client import Client
from gavel.llm.completion import dialects
from gavel.llm.errors import LlmError, NotAskedError, PermanentError
from gavel.llm.rate_limits import Limits
from tests.endpoint import Endpoint, says
from tests.limits import HANG_SECONDS
from tests.vendors import PASSING, PERMANENT, REFUSALS, USAGE, openai_error, picky, retry_after, takes_no

pytestmark = pytest.mark.slow

PROMPT = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}
GOOD = says("hi", USAGE)


def client(endpoint: Endpoint, params=None, **limits) -> Client:
    return Client("openai/judge", endpoint.params | (params or {}), Limits(**limits))


@pytest.fixture(autouse=True)
def _no_pause_and_no_dialects(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("gavel.llm.failures.backoff", lambda longest: 0.0)
    yield
    dialects.clear()


NO_RIGHTS = openai_error(403, "You have insufficient permissions for this operation.")


@pytest.mark.parametrize("answer", [*PERMANENT.values(), NO_RIGHTS], ids=[*PERMANENT, "no permissions"])
async def test_what_only_a_person_can_mend_is_asked_once_and_stops_what_follows(endpoint, wire, answer):
    endpoint.script = [lambda _: answer]
    asking = client(endpoint)
    with pytest.raises(PermanentError) as error:
        await asking.ask(PROMPT, SCHEMA)
    assert error.value.remedy
    with pytest.raises(NotAskedError) as again:
        await asking.ask(PROMPT, SCHEMA)
    assert again.value.message == error.value.message
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("habit", PASSING)
async def test_what_passes_is_asked_again(endpoint, wire, habit):
    endpoint.script = [lambda _: PASSING[habit], lambda _: PASSING[habit], lambda _: GOOD]
    asking = client(endpoint)
    assert (await asking.ask(PROMPT, SCHEMA)).text == "hi"
    assert len(endpoint.requests) == 3
    assert {request["response_format"]["type"] for request in endpoint.requests} == {"json_schema"}


@pytest.mark.parametrize("habit", REFUSALS)
async def test_a_refused_prompt_is_asked_once_and_stops_no_other(endpoint, wire, habit):
    endpoint.script = [lambda _: REFUSALS[habit], lambda _: GOOD]
    asking = client(endpoint)
    with pytest.raises(LlmError) as error:
        await asking.ask(PROMPT, SCHEMA)
    assert not isinstance(error.value, PermanentError)
    assert (await asking.ask(PROMPT, SCHEMA)).text == "hi"
    assert len(endpoint.requests) == 2


async def test_a_temperature_that_is_not_taken_is_dropped_once_and_remembered(endpoint, wire, caplog):
    endpoint.script = [picky(takes_no("temperature"), good=GOOD)]
    for _ in range(2):  # another client of the same endpoint knows it too
        asking = client(endpoint, {"temperature": 0.2, "reasoning_effort": "low"})
        for _ in range(2):
            assert (await asking.ask(PROMPT, SCHEMA)).text == "hi"
    assert ["temperature" in request for request in endpoint.requests] == [True, False, False, False, False]
    assert {request["reasoning_effort"] for request in endpoint.requests} == {"low"}
    assert [record.message for record in caplog.records if "left out" in record.message] == [
        "openai/judge does not take temperature: it is left out."
    ]


async def test_a_parameter_that_matters_and_is_not_taken_is_an_error_that_names_it(endpoint, wire):
    endpoint.script = [lambda _: openai_error(400, "reasoning_effort: Extra inputs are not permitted")]
    with pytest.raises(PermanentError, match="openai/judge does not take reasoning_effort") as error:
        await client(endpoint, {"reasoning_effort": "low"}).ask(PROMPT, SCHEMA)
    assert "--judge-param" in error.value.remedy
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-5", "soon", "", "Fri, 99 Foo 2025", "1e400"])
async def test_a_retry_after_that_means_nothing_is_a_normal_pause(endpoint, wire, value):
    endpoint.script = [lambda _: retry_after(value), lambda _: GOOD]
    async with asyncio.timeout(HANG_SECONDS):
        assert (await client(endpoint).ask(PROMPT, SCHEMA)).text == "hi"


@pytest.mark.parametrize("value", ["86400", "1e300", "Fri, 31 Dec 9999 23:59:59 GMT"])
async def test_a_wait_that_is_longer_than_the_deadline_ends_the_call_with_what_it_was(endpoint, wire, value):
    endpoint.script = [lambda _: retry_after(value)]
    with pytest.raises(LlmError, match="is rate limited, for longer than a call may wait"):
        await client(endpoint).ask(PROMPT, SCHEMA)
    assert len(endpoint.requests) == 1


async def test_a_reply_in_drips_keeps_to_the_timeout(endpoint, wire):
    endpoint.script = [lambda _: replace(GOOD, drip=0.02)]
    budget = Budget(max_tokens=100_000)
    with pytest.raises(LlmError, match=r"no complete reply within"):
        await replace(client(endpoint, timeout=0.3, deadline=0.4), budget=budget).ask(PROMPT, SCHEMA)
    assert budget.calls == budget.unpriced_calls == len(endpoint.requests) > 0


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ({"content": ""}, "empty reply"),
        ({"content": None, "reasoning_content": "I am ready, so I say it."}, "(?s)--reasoning-parser"),
        ({"content": '{"ready": true}'}, True),
        ([{"content": ""}, {"content": '{"ready": true}'}], True),
        ({"content": '<think>hm</think>\n```json\n{"ready": true}\n```'}, True),
        ({"content": None, "reasoning_content": '{"ready": true}'}, True),
        ({"content": "Yes, I am here!"}, False),
    ],
)
async def test_the_probe_finds_out_that_a_model_adds_words_or_gives_no_answer(endpoint, wire, message, found):
    said = message if isinstance(message, list) else [message]
    endpoint.script = [lambda _, each=each: says(usage=USAGE, **each) for each in said]
    if isinstance(found, bool):
        assert (await client(endpoint).probe()).is_alone == found
    else:
        with pytest.raises(LlmError, match=found):
            await client(endpoint).probe()
