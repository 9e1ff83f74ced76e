import asyncio
import json
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from gavel.llm import providers
from gavel.llm.budget import Budget
from gavel.llm.cassette import Cassette, Entry, Storage
from gavel.llm.client import PROBE_MESSAGES, Client, traced_calls
from gavel.llm.decisions import PROBE, decide
from gavel.llm.errors import ContextError, LlmError
from gavel.llm.rate_limits import Limits
from gavel.llm.types import Reply
from tests.decisions import DecisionServer
from tests.endpoint import Answer, Endpoint, fails, limit_attempts, says
from tests.limits import HANG_SECONDS

PROMPT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}
USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


def client(endpoint: Endpoint, model: str = "openai/judge", prices=None, **limits) -> Client:
    return Client(model, endpoint.params, Limits(**limits), prices or {})


def formats(endpoint: Endpoint) -> list[str]:
    return [request.get("response_format", {}).get("type", "plain") for request in endpoint.requests]


async def test_a_reply_comes_with_its_tokens_and_its_price(endpoint, wire):
    endpoint.script = [lambda _: says("hi", USAGE)]
    reply = await client(endpoint, prices={"openai/judge": (2.0, 8.0)}).ask(PROMPT, SCHEMA)
    assert (reply.text, reply.prompt_tokens, reply.completion_tokens) == ("hi", 100, 20)
    assert reply.cost_usd == pytest.approx(0.00036)


@pytest.mark.parametrize(
    ("status", "words", "limit"),
    [
        (400, "This model's maximum context length is 100 tokens", 100),
        (400, "prompt is too long: 210000 tokens > 200000 maximum", 200_000),
        (413, "Input is too long for requested model", None),
        (500, "the request exceeds the available context size (4096 tokens)", 4096),
    ],
)
async def test_a_prompt_that_is_too_long_is_not_sent_again(endpoint, wire, status, words, limit):
    endpoint.script = [fails(status, words)]
    with pytest.raises(ContextError) as error:
        await client(endpoint).ask(PROMPT, SCHEMA)
    assert words in error.value.message
    assert error.value.limit == limit
    assert "longer context" in error.value.remedy
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("failure", [fails(503), fails(429), lambda _: Answer(b"", breaks_off=True)])
async def test_an_outage_loses_nothing_however_often_it_fails(endpoint, wire, monkeypatch, failure):
    monkeypatch.setattr("gavel.llm.rate_limits.pause", lambda error, attempt: 0.0)
    endpoint.script = [failure] * 40 + [lambda _: says("hi")]
    replies = await asyncio.gather(*(client(endpoint).ask(PROMPT, SCHEMA) for _ in range(8)))
    assert [reply.text for reply in replies] == ["hi"] * 8
    assert len(endpoint.requests) == 48


async def test_a_server_that_stays_broken_ends_the_call_at_its_deadline_and_is_not_flooded(endpoint, wire):
    endpoint.script = [fails(500)]  # with Retry-After: 0
    with pytest.raises(LlmError, match="openai/judge failed"):
        await client(endpoint, deadline=0.5).ask(PROMPT, SCHEMA)
    assert 1 <= len(endpoint.requests) <= 8


async def test_a_request_that_waits_long_is_told(endpoint, wire, monkeypatch):
    monkeypatch.setattr("gavel.llm.rate_limits._SILENT", 0.05)
    endpoint.script = [endpoint.silence]
    asking = client(endpoint, deadline=10)
    task = asyncio.create_task(asking.ask(PROMPT, SCHEMA))
    for _ in range(1000):
        await asyncio.sleep(0 if asking.activity.waiting else 0.01)
    assert asking.name in asking.activity.waiting
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert asking.activity.waiting == ""


async def test_a_server_that_is_silent_is_given_up(endpoint, wire):
    silence = asyncio.Event()

    async def never(messages, schema) -> str:
        await silence.wait()
        return "late"

    endpoint.script = [endpoint.silence]
    with pytest.raises(LlmError, match="Timeout"):
        await client(endpoint, deadline=0.1).ask(PROMPT, SCHEMA)
    with pytest.raises(LlmError, match=r"did not answer within 0.1 s"):
        await Client(never, limits=Limits(deadline=0.1)).ask(PROMPT, SCHEMA)


async def test_a_server_without_schemas_is_asked_for_json_then_plainly_and_that_is_remembered(endpoint, wire):
    def picky(request):
        return fails(400, "unknown field")(request) if "response_format" in request else says("hi")

    endpoint.script = [picky]
    judge = client(endpoint)
    assert (await judge.ask(PROMPT, SCHEMA)).text == "hi"
    assert (await judge.ask(PROMPT, SCHEMA)).text == "hi"
    assert formats(endpoint) == ["json_schema", "json_object", "plain", "plain"]


async def test_thoughts_stand_in_for_a_reply_without_content(endpoint, wire):
    endpoint.script = [lambda _: says(None, reasoning_content="in my thoughts")]
    assert (await client(endpoint).ask(PROMPT, SCHEMA)).text == "in my thoughts"


@pytest.mark.parametrize("model", ["openai/judge", "hosted_vllm/judge"])
async def test_a_reply_in_parts_is_read_and_paid_for_once(endpoint, wire, model):
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    endpoint.script = [lambda _: says(parts, USAGE)]
    budget = Budget(max_tokens=100_000)
    reply = await Client(model, endpoint.params, prices={model: (2.0, 8.0)}, budget=budget).ask(PROMPT, SCHEMA)
    assert (reply.text, reply.repairs) == ("hi", {"content parts": 1})
    assert (reply.prompt_tokens, reply.completion_tokens, reply.finish_reason) == (100, 20, "stop")
    assert reply.cost_usd == pytest.approx(0.00036)
    assert budget.spent_tokens == 120
    assert len(endpoint.requests) == 1


async def test_what_a_server_reports_can_be_stored_and_sent_back(endpoint, wire):
    answer = says("half \ud83d, whole \ud83d\ude00", {"prompt_tokens": 10**20, "completion_tokens": -1})
    assert isinstance(answer.body, dict)
    answer.body["model"] = "m\ud800" + "x" * 1_000_000
    endpoint.script = [lambda _: answer]
    reply = await client(endpoint).ask(PROMPT, SCHEMA)
    assert reply.text == "half \ufffd, whole \U0001f600"
    assert reply.served_by.startswith("m\ufffdx")
    assert len(reply.served_by) == 200
    assert 0 < reply.prompt_tokens < 1000
    assert 0 < reply.completion_tokens < 1000


async def test_a_call_that_sleeps_leaves_its_slot_to_others(endpoint, wire, monkeypatch):
    asked: list[str] = []

    def busy_for_the_first(request):
        asked.append(request["messages"][1]["content"])
        return fails(429)(request) if len(asked) == 1 else says("hi")

    async def until_the_second_was_asked(seconds: float) -> None:
        while len(asked) < 2:
            await nap(0.01)

    nap = asyncio.sleep
    monkeypatch.setattr("gavel.llm.rate_limits.asyncio.sleep", until_the_second_was_asked)
    endpoint.script = [busy_for_the_first]
    judge = client(endpoint, concurrency=1)
    async with asyncio.timeout(HANG_SECONDS), asyncio.TaskGroup() as tasks:
        for name in ("first", "second"):
            tasks.create_task(judge.ask([PROMPT[0], {"role": "user", "content": name}], SCHEMA))
    assert asked == ["first", "second", "first"]


class SlowStorage(Storage):
    """Stores nothing until it is told to."""

    def __init__(self) -> None:
        self.pending: list[Future[None]] = []

    def replies(self, key: str) -> Future[list[Reply]]:
        (none := Future[list[Reply]]()).set_result([])
        return none

    def keep(self, entries: Sequence[Entry]) -> Future[None]:
        self.pending.append(Future())
        return self.pending[-1]


async def test_no_more_paid_replies_are_unstored_than_calls_may_run_at_once(endpoint, wire):
    endpoint.script = [lambda _: says("hi")]
    storage = SlowStorage()
    judge = replace(client(endpoint, concurrency=2), cassette=Cassette(storage))
    asks = [judge.ask([PROMPT[0], {"role": "user", "content": str(number)}], SCHEMA) for number in range(4)]
    async with asyncio.timeout(HANG_SECONDS), asyncio.TaskGroup() as tasks:
        for ask in asks:
            tasks.create_task(ask)
        for stored in range(4):
            while len(storage.pending) < min(2 + stored, 4):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)  # a third one would be sent now
            assert len(endpoint.requests) == min(2 + stored, 4)
            storage.pending[stored].set_result(None)


@pytest.mark.parametrize(
    "model", ["openai/judge", "anthropic/claude-sonnet-4-5", "openrouter/m", "gemini/gemini-2.5-flash"]
)
async def test_a_reply_without_an_end_is_broken_off(endpoint, wire, monkeypatch, model):
    monkeypatch.setattr("gavel.llm.completion.MAX_REPLY_BYTES", 10_000)
    limit_attempts(monkeypatch, 1)
    sent: list[int] = []

    def endless(_) -> Answer:
        sent.append(1)
        return says("x" * 200_000, USAGE)

    endpoint.script = [endless]
    asking = replace(client(endpoint, model), budget=Budget())
    with pytest.raises(LlmError, match=f"{model} failed"):
        await asking.ask(PROMPT, SCHEMA)
    assert sent == [1]
    assert asking.budget.unpriced_calls == 1, "it may be charged for"


CHUNKS = [
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": '{"a": "it\'s'}, "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": {"content": ' \\"so\\""}'}, "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {"choices": [], "usage": USAGE},
]


@pytest.mark.parametrize("model", ["openai/judge", "hosted_vllm/judge"])
@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_a_reply_that_is_streamed_unasked_is_read(endpoint, wire, model, kind):
    head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    events = "".join(f"data: {json.dumps(head | chunk)}\n\n" for chunk in CHUNKS)
    endpoint.script = [
        lambda _: Answer(f": hello\n\n{events}data: [DONE]\n\n".encode(), headers={"Content-Type": kind})
    ]
    reply = await client(endpoint, model).ask(PROMPT, SCHEMA)
    assert json.loads(reply.text) == {"a": 'it\'s "so"'}
    assert (reply.prompt_tokens, reply.completion_tokens, len(endpoint.requests)) == (100, 20, 1)


def with_error(error):
    answer = says("half a re")
    answer.body["choices"][0] |= {"finish_reason": "error"} | ({"error": error} if error else {})
    return lambda _: answer


@pytest.mark.parametrize("error", [{"code": 502, "message": "upstream"}, {"message": "upstream"}, None])
async def test_an_error_inside_a_choice_is_asked_again(endpoint, wire, error):
    endpoint.script = [with_error(error), lambda _: says("hi")]
    assert (await client(endpoint).ask(PROMPT, SCHEMA)).text == "hi"
    assert endpoint.requests[0] == endpoint.requests[1]


async def test_a_callable_that_raises_or_returns_no_text_is_a_judge_that_failed():
    async def broken(messages, schema):
        raise ValueError("no idea")

    async def silent(messages, schema):
        return None

    async def cancelled(messages, schema):
        raise asyncio.CancelledError

    async def slow(messages, schema):
        await asyncio.sleep(60)

    with pytest.raises(LlmError, match="cancelled failed: RuntimeError: it was cancelled from within"):
        await Client(cancelled).ask(PROMPT, SCHEMA)  # type: ignore[arg-type]
    with pytest.raises(LlmError, match=r"slow did not answer within 0\.01 s"):
        await Client(slow, limits=Limits(timeout=0.01)).ask(PROMPT, SCHEMA)  # type: ignore[arg-type]
    with pytest.raises(LlmError, match="broken failed: ValueError: no idea"):
        await Client(broken).ask(PROMPT, SCHEMA)
    with pytest.raises(LlmError, match="NoneType, not str"):
        await Client(silent).ask(PROMPT, SCHEMA)  # type: ignore[arg-type]


class Asked:
    async def __call__(self, messages, schema):
        assert asyncio.get_running_loop()
        return "hi"


async def says_hi(messages, schema, name=""):
    return await Asked()(messages, schema)


@pytest.mark.parametrize(
    "model",
    [Asked(), partial(says_hi, name="x"), lambda messages, schema: says_hi(messages, schema), lambda *_: "hi"],
    ids=["object", "partial", "lambda", "plain"],
)
async def test_any_callable_may_answer_with_text_or_an_awaitable(model):
    assert (await Client(model).ask(PROMPT, SCHEMA)).text == "hi"


MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "Is it there?"}]}]


async def test_parts_of_a_message_are_sent_as_parts_of_the_input():
    server = DecisionServer("openai")
    server.shown = lambda body: ""  # type: ignore[method-assign]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    message = {"role": "user", "content": [*MESSAGES[0]["content"], image]}
    reply = await decide("openai/d", [message], PROBE, server.params, {}, 30)
    server.close()
    ((_, body, _),) = server.requests
    assert [part["type"] for part in body["input"][0]["content"]] == ["input_text", "input_image"]
    assert (reply.prompt_tokens, reply.served_by) == (900, "decider-1-2026")


async def test_a_part_that_cannot_be_shown_is_refused():
    with pytest.raises(LlmError, match="'audio'"):
        await decide("openai/d", [{"role": "user", "content": [{"type": "audio"}]}], PROBE, {}, {}, 30)


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


SECRET = [{"role": "user", "content": "a secret question"}]


class Spans:
    """A tracer whose spans are kept."""

    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer = provider.get_tracer("test")

    @property
    def all(self) -> list[ReadableSpan]:
        return list(self._kept.get_finished_spans())


@pytest.fixture
def spans() -> Spans:
    return Spans()


async def test_a_request_has_a_span_after_the_conventions(endpoint: Endpoint, spans: Spans):
    endpoint.script = [lambda _: says("a secret answer", USAGE)]
    with traced_calls(spans.tracer):
        await asyncio.create_task(Client("openai/judge", endpoint.params).ask(SECRET, SCHEMA))
    (span,) = spans.all
    assert (span.name, span.kind, span.status.status_code) == ("chat judge", SpanKind.CLIENT, StatusCode.UNSET)
    assert dict(span.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "judge",
        "gen_ai.response.model": "m",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 20,
    }
    assert "secret" not in span.to_json()


async def test_every_attempt_has_one_and_an_error_is_told_by_its_kind(endpoint: Endpoint, spans: Spans):
    endpoint.script = [fails(500, "a secret message"), lambda _: says("hi", USAGE)]
    with traced_calls(spans.tracer):
        await Client("openai/judge", endpoint.params).ask(SECRET, SCHEMA)
    failed, answered = spans.all
    assert (failed.status.status_code, dict(failed.attributes or {})["error.type"]) == (StatusCode.ERROR, "500")
    assert (failed.status.description, failed.events) == (None, ())
    assert answered.status.status_code is StatusCode.UNSET
    assert "secret" not in failed.to_json()


async def test_the_event_loop_goes_on_while_litellm_is_loaded(monkeypatch):
    loading = threading.Event()
    monkeypatch.setitem(sys.modules, "litellm", ModuleType("litellm"))  # half imported
    monkeypatch.setattr(providers, "load_litellm", lambda: done.append(loading.wait(10)))
    done: list[bool] = []
    asyncio.get_running_loop().call_soon(loading.set)
    await providers.load_litellm_in_thread()
    assert done == [True]
