"""A gate, and the question that goes before a client's first request."""

import asyncio

from gavel.llm.cassette import Cassette
from gavel.llm.client import PROBE_MESSAGES, Client
from gavel.llm.errors import LlmError, NotAskedError
from tests.endpoint import Endpoint, fails, says

HELLO = [{"role": "user", "content": "hello"}]


def first_questions(endpoint: Endpoint) -> list[int]:
    """Indices of the requests that are the first question."""
    return [n for n, request in enumerate(endpoint.requests) if request["messages"] == PROBE_MESSAGES]


async def test_the_first_question_goes_before_the_first_request_and_only_once(endpoint):
    endpoint.script = [lambda request: says('{"ready": true}')]
    client = Client("openai/judge", endpoint.params)
    client.probe_when_asked()
    await asyncio.gather(*(client.ask(HELLO, {"type": "object"}) for _ in range(8)))
    assert (first_questions(endpoint), len(endpoint.requests)) == ([0], 9)


async def test_a_question_that_the_cassette_answers_sends_no_first_question(endpoint, tmp_path):
    endpoint.script = [lambda request: says("hi")]
    path = tmp_path / "c.sqlite"
    recording = Client("openai/judge", endpoint.params, cassette=Cassette(path))
    assert not await recording.has_replies()
    await recording.ask(HELLO, {"type": "object"})
    assert await recording.has_replies()
    assert not await Client("openai/other", endpoint.params, cassette=Cassette(path)).has_replies()
    again = Client("openai/judge", endpoint.params, cassette=Cassette(path))
    again.probe_when_asked()
    await again.ask(HELLO, {"type": "object"})
    assert len(endpoint.requests) == 1
    await again.ask([{"role": "user", "content": "and now?"}], {"type": "object"})
    assert (first_questions(endpoint), len(endpoint.requests)) == ([1], 3)


async def test_after_a_first_question_that_fails_nothing_more_is_sent(endpoint):
    endpoint.script = [fails(500)]
    client = Client("openai/judge", endpoint.params)
    client.probe_when_asked()
    asking = (client.ask([{"role": "user", "content": str(n)}], {"type": "object"}) for n in range(8))
    results = await asyncio.gather(*asking, return_exceptions=True)
    assert set(first_questions(endpoint)) == set(range(len(endpoint.requests)))
    assert isinstance(results[0], LlmError)
    assert all(isinstance(result, NotAskedError) for result in results[1:])
