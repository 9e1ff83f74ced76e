"""One call to a model: what is asked again and what is not, what it costs, how it is traced, what a user reads."""

import asyncio
import json
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import ModuleType

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from gavel.base.errors import GavelError
from gavel.llm import providers
from gavel.llm.cassette import Cassette, Entry, Storage
from gavel.llm.client import PROBE_MESSAGES, Client, traced_calls
from gavel.llm.decisions import PROBE, decide
from gavel.llm.errors import ContextError, LlmError, MissingKeyError, UnknownModelError
from gavel.llm.failures import CONTENT_FILTER
from gavel.llm.prompt_cut import PromptCutError, check_not_cut, context_options, expected_tokens
from gavel.llm.providers import check_model
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


@pytest.mark.parametrize("model", ["openai/judge", "hosted_vllm/judge"])
@pytest.mark.parametrize("parts", [False, True])
async def test_a_reply_whole_or_in_parts_comes_with_its_tokens_and_its_price_once(endpoint, wire, model, parts):
    said = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    endpoint.script = [lambda _: says(said if parts else "hi", USAGE)]
    asking = client(endpoint, model, prices={model: (2.0, 8.0)})
    reply = await asking.ask(PROMPT, SCHEMA)
    assert (reply.text, reply.repairs) == ("hi", {"content parts": 1} if parts else {})
    assert (reply.prompt_tokens, reply.completion_tokens, reply.finish_reason) == (100, 20, "stop")
    assert reply.cost_usd == pytest.approx(0.00036)
    assert (asking.budget.spent_tokens, len(endpoint.requests)) == (120, 1)


@pytest.mark.parametrize(
    ("status", "words", "limit"),
    [
        (400, "This model's maximum context length is 100 tokens. Your messages resulted in 10000 tokens.", 100),
        (400, "prompt is too long: 210000 tokens > 200000 maximum", 200_000),
        (400, "Input tokens exceed the configured limit of 272000 tokens. They resulted in 300012.", 272_000),
        (400, "Requested token count exceeds the maximum context length of 131,072 tokens.", 131_072),
        (413, "Input is too long for requested model", None),
        (500, "the request exceeds the available context size (4096 tokens), try increasing it", 4096),
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


@pytest.mark.parametrize(
    "words",
    [
        "Invalid value for 'response_format': json_schema is not supported.",
        "Invalid schema for response_format 'scores'",
        "max_tokens must be at least 1, got 0",
        "unknown field",
        "Invalid 'user': string too long. Expected a string with maximum length 64, but got 80 instead.",
    ],
)
async def test_another_refusal_of_a_format_is_met_with_a_simpler_one_that_is_remembered(endpoint, wire, words):
    endpoint.script = [lambda asked: fails(400, words)(asked) if "response_format" in asked else says("hi")]
    judge = client(endpoint)
    assert [(await judge.ask(PROMPT, SCHEMA)).text for _ in range(2)] == ["hi", "hi"]
    assert formats(endpoint) == ["json_schema", "json_object", "plain", "plain"]
    endpoint.script = [fails(400, words)]
    with pytest.raises(LlmError) as error:
        await judge.ask(PROMPT, SCHEMA)
    assert not isinstance(error.value, ContextError)


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


@pytest.mark.parametrize(("answer", "told"), [("silence", "openai/judge has not answered"), (503, "overloaded")])
async def test_a_request_that_waits_long_is_told_with_the_reason(endpoint, wire, monkeypatch, answer, told):
    monkeypatch.setattr("gavel.llm.rate_limits._SILENT", 0.05)
    monkeypatch.setattr("gavel.llm.rate_limits.pause", lambda error, attempt: 5.0)
    endpoint.script = [endpoint.silence if answer == "silence" else fails(answer, "overloaded")]
    asking = client(endpoint, deadline=10)
    task = asyncio.create_task(asking.ask(PROMPT, SCHEMA))
    for _ in range(1000):
        await asyncio.sleep(0 if asking.activity.waiting else 0.01)
    assert told in asking.activity.waiting
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert asking.activity.waiting == ""


@pytest.mark.parametrize(
    ("message", "read"),
    [
        ({"reasoning_content": "in my thoughts"}, ("in my thoughts", "stop")),
        ({"reasoning": "in my thoughts"}, ("in my thoughts", "stop")),
        ({"refusal": "no"}, ("no", CONTENT_FILTER)),
        ({"provider_specific_fields": {"refusal": "no"}}, ("no", CONTENT_FILTER)),
    ],
)
async def test_thoughts_or_a_refusal_stand_in_for_a_reply_without_content(endpoint, wire, message, read):
    endpoint.script = [lambda _: says(None, **message)]
    reply = await client(endpoint).ask(PROMPT, SCHEMA)
    assert (reply.text, reply.finish_reason) == read


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
    endpoint.script = [lambda _: says("x" * 200_000, USAGE)]
    asking = client(endpoint, model)
    with pytest.raises(LlmError, match=f"{model} failed"):
        await asking.ask(PROMPT, SCHEMA)
    assert len(endpoint.requests) == 1
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
    body = f": hello\n\n{events}data: [DONE]\n\n".encode()
    endpoint.script = [lambda _: Answer(body, headers={"Content-Type": kind})]
    reply = await client(endpoint, model).ask(PROMPT, SCHEMA)
    assert json.loads(reply.text) == {"a": 'it\'s "so"'}
    assert (reply.prompt_tokens, reply.completion_tokens, len(endpoint.requests)) == (100, 20, 1)


@pytest.mark.parametrize("error", [{"code": 502, "message": "upstream"}, {"message": "upstream"}, None])
async def test_an_error_inside_a_choice_is_asked_again(endpoint, wire, error):
    failed = says("half a re")
    failed.body["choices"][0] |= {"finish_reason": "error"} | ({"error": error} if error else {})
    endpoint.script = [lambda _: failed, lambda _: says("hi")]
    assert (await client(endpoint).ask(PROMPT, SCHEMA)).text == "hi"
    assert endpoint.requests[0] == endpoint.requests[1]


CUT = {
    "cut connection": Answer(says("Here.").body, breaks_off=True),
    "cut body": Answer(b'{"id": "1", "object": "chat.comple'),
    "another body": Answer(b"<html>The gateway is tired.</html>"),
    "no body": Answer(b""),
}


@pytest.mark.parametrize("fault", [*CUT, 400, 401, 404, 429, 500, 502, 503, 529, "127.0.0.1:9", "no-such-host.invalid"])
async def test_a_reply_that_is_cut_has_an_unknown_cost_and_an_error_or_what_was_not_sent_none(
    endpoint, wire, monkeypatch, fault
):
    limit_attempts(monkeypatch, 1)
    endpoint.script = [fails(fault) if isinstance(fault, int) else lambda _: CUT[fault]]
    is_sent = fault in CUT or isinstance(fault, int)
    asking = Client("openai/m", endpoint.params | ({} if is_sent else {"api_base": f"http://{fault}/v1"}))
    with pytest.raises(LlmError) as failed:
        await asking.ask(PROMPT, SCHEMA)
    calls = len(endpoint.requests) if fault in CUT else 0
    assert (asking.budget.calls, asking.budget.unpriced_calls) == (calls, calls)
    assert failed.value.may_be_paid == (calls > 0)
    assert fault in CUT or asking.budget.cost == "0.00 USD"


@pytest.mark.parametrize("model", ["openai/judge", "anthropic/claude-haiku-4-5", "mistral/mistral-medium-latest"])
async def test_a_login_page_in_place_of_a_reply_is_an_error_about_the_address(endpoint, wire, model, monkeypatch):
    limit_attempts(monkeypatch, 1)
    page = b"<!DOCTYPE html><html><head><title>Sign in</title></head></html>"
    endpoint.script = [lambda _: Answer(page, headers={"Content-Type": "text/html"})]
    with pytest.raises(LlmError) as error:
        await client(endpoint, model).ask(PROMPT, SCHEMA)
    assert "api_base" in error.value.remedy
    assert "proxy" in error.value.remedy


@pytest.mark.parametrize("key", [None, "", " "])
def test_a_missing_key_is_named_with_what_to_do(key, monkeypatch):
    if key is not None:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(MissingKeyError) as error:
        check_model("openai/o3")
    assert error.value.message == "the model openai/o3 needs OPENAI_API_KEY, which is not set."
    assert "stand-in" in error.value.remedy
    assert "--" not in error.value.remedy  # it may be called from code
    assert isinstance(error.value, GavelError)


@pytest.mark.parametrize(
    "model",
    ["stand-in", "gavel/constant", "ollama/qwen3", "ollama_chat/qwen3", "hosted_vllm/x", "bedrock/anthropic.claude-v2"],
)
def test_judges_and_servers_that_need_no_key_are_not_asked_for_one(model, monkeypatch):
    check_model(model)
    check_model("openai/mine", {"api_base": "http://127.0.0.1:8000/v1"})
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    check_model("openai/mine")


@pytest.mark.parametrize("address", ["127.0.0.1:8000/v1", "ftp://desk/v1", "localhost"])
def test_an_address_without_its_scheme_is_refused_before_anything_is_asked(address, monkeypatch):
    with pytest.raises(LlmError, match="begins with http:// or https://") as error:
        check_model("hosted_vllm/mine", {"api_base": address})
    assert "api_base=http://" in error.value.remedy
    monkeypatch.setenv("OPENAI_BASE_URL", address)
    with pytest.raises(LlmError, match="OPENAI_BASE_URL"):
        check_model("openai/mine", {"api_key": "x"})
    check_model("openai/mine", {"base_url": "https://desk/v1"})


@pytest.mark.parametrize(
    ("model", "params"),
    [("not-a-model", {}), ("openay/o3", {}), ("gpt-99", {"api_base": "http://127.0.0.1:1/v1"}), ("gavel/nobody", {})],
)
def test_a_model_that_nobody_serves_is_named_with_what_to_do(model, params):
    with pytest.raises(UnknownModelError, match=f"there is no model {model}") as error:
        check_model(model, params)
    assert "stand-in" in error.value.remedy


async def broken(messages, schema):
    raise RuntimeError("your input was flagged by moderation")


async def cancelled(messages, schema):
    raise asyncio.CancelledError


async def slow(messages, schema):
    await asyncio.sleep(60)


@pytest.mark.parametrize(
    ("model", "limits", "told"),
    [
        (cancelled, {}, "cancelled failed: RuntimeError: it was cancelled from within"),
        (slow, {"timeout": 0.01}, r"slow did not answer within 0\.01 s"),
        (slow, {"deadline": 0.01}, r"slow did not answer within 0\.01 s"),
        (broken, {}, "broken failed: RuntimeError: your input was flagged"),
        (lambda *_: None, {}, "NoneType, not str"),
    ],
)
async def test_a_callable_that_raises_or_returns_no_text_in_time_is_a_judge_that_failed(model, limits, told):
    with pytest.raises(LlmError, match=told):
        await Client(model, limits=Limits(**limits)).ask(PROMPT, SCHEMA)


class Asked:
    async def __call__(self, messages, schema, name=""):
        return "hi"


@pytest.mark.parametrize(
    "model",
    [Asked(), partial(Asked(), name="x"), lambda messages, schema: Asked()(messages, schema), lambda *_: "hi"],
    ids=["object", "partial", "lambda", "plain"],
)
async def test_any_callable_may_answer_with_text_or_an_awaitable(model):
    assert (await Client(model).ask(PROMPT, SCHEMA)).text == "hi"


async def test_parts_of_a_message_are_sent_as_parts_of_the_input_or_refused():
    with pytest.raises(LlmError, match="'audio'"):
        await decide("openai/d", [{"role": "user", "content": [{"type": "audio"}]}], PROBE, {}, {}, 30)
    server = DecisionServer("openai")
    server.shown = lambda body: ""  # type: ignore[method-assign]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    message = {"role": "user", "content": [{"type": "text", "text": "Is it there?"}, image]}
    reply = await decide("openai/d", [message], PROBE, server.params, {}, 30)
    server.close()
    ((_, body, _),) = server.requests
    assert [part["type"] for part in body["input"][0]["content"]] == ["input_text", "input_image"]
    assert (reply.prompt_tokens, reply.served_by) == (900, "decider-1-2026")


async def test_the_first_question_goes_before_the_first_request_and_only_once(endpoint):
    endpoint.script = [lambda request: says('{"ready": true}')]
    asking = client(endpoint)
    asking.probe_when_asked()
    await asyncio.gather(*(asking.ask(PROMPT, {"type": "object"}) for _ in range(8)))
    assert [request["messages"] == PROBE_MESSAGES for request in endpoint.requests] == [True] + [False] * 8


async def test_every_attempt_has_a_span_after_the_conventions_and_an_error_is_told_by_its_kind(endpoint: Endpoint):
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    endpoint.script = [fails(500, "a secret message"), lambda _: says("a secret answer", USAGE)]
    with traced_calls(provider.get_tracer("test")):
        secret = [{"role": "user", "content": "a secret question"}]
        await asyncio.create_task(client(endpoint).ask(secret, SCHEMA))
    failed, answered = kept.get_finished_spans()
    assert (failed.status.status_code, dict(failed.attributes or {})["error.type"]) == (StatusCode.ERROR, "500")
    assert (failed.status.description, failed.events) == (None, ())
    assert answered.name == "chat judge"
    assert (answered.kind, answered.status.status_code) == (SpanKind.CLIENT, StatusCode.UNSET)
    told = {"operation.name": "chat", "provider.name": "openai", "request.model": "judge", "response.model": "m"}
    told |= {"response.finish_reasons": ("stop",), "usage.input_tokens": 100, "usage.output_tokens": 20}
    assert dict(answered.attributes or {}) == {f"gen_ai.{name}": value for name, value in told.items()}
    assert "secret" not in failed.to_json() + answered.to_json()


async def test_the_event_loop_goes_on_while_litellm_is_loaded(monkeypatch):
    loading, done = threading.Event(), list[bool]()
    monkeypatch.setitem(sys.modules, "litellm", ModuleType("litellm"))  # half imported
    monkeypatch.setattr(providers, "load_litellm", lambda: done.append(loading.wait(10)))
    asyncio.get_running_loop().call_soon(loading.set)
    await providers.load_litellm_in_thread()
    assert done == [True]


LONG_PROMPT = [{"role": "user", "content": "word " * 10_000}]


@pytest.mark.parametrize(
    ("model", "params"), [("openai/qwen3", {}), ("hosted_vllm/qwen3", {}), ("ollama_chat/qwen3", {"num_ctx": 4_096})]
)
def test_others_and_a_length_of_the_users_own_stay(model, params):
    assert context_options(model, params, LONG_PROMPT, 128_000, None) == {}


ENGLISH = "The agent looked the order up, and it was 12 days old; so it refunded 48.20 USD.\n" * 500
CHINESE = "代理查询了订单，发现订单只有十二天，因此退款了四十八美元。\n" * 500
CODE = "def refund(order_id: str, amount: float) -> bool:\n    return api.post(f'/orders/{order_id}')\n" * 500
TURKISH = "Temsilci siparişi kontrol etti ve on iki günlük olduğunu gördü, bu yüzden parayı iade etti.\n" * 500
TOKENS = {ENGLISH: 12_000, CHINESE: 8_500, CODE: 12_500, TURKISH: 12_000, "=" * 50_000: 781}
"""Of o200k_base, which holds more of most languages than cl100k_base."""


def cut(counted: int, text: str, *, own_server: bool = False, cached: int = 0, limits: tuple[int, ...] = ()) -> bool:
    reply = Reply("", counted, cached_prompt_tokens=cached)
    try:
        check_not_cut("m", reply, [{"role": "user", "content": text}], own_server=own_server, limits=limits)
    except PromptCutError as error:
        return error.reply is reply
    return False


@pytest.mark.parametrize(("text", "tokens"), TOKENS.items(), ids=["English", "Chinese", "code", "Turkish", "line"])
def test_what_another_tokenizer_counts_is_no_cut(text, tokens):
    assert not cut(tokens, text)
    assert not cut(int(0.8 * tokens), text), "a tokenizer that is more compact still"
    assert cut(expected_tokens(text) // 2, text) or text[0] == "="


@pytest.mark.parametrize("text", [ENGLISH, CHINESE, CODE], ids=["English", "Chinese", "code"])
def test_a_usual_context_is_a_cut_on_a_server_of_ones_own_and_chance_elsewhere(text):
    text = text[: int(len(text) * 4096 * 1.1 / expected_tokens(text))]
    assert cut(4096, text, own_server=True)
    assert cut(4095, text, own_server=True)
    assert not cut(4096, text)
    assert not cut(4094, text, own_server=True)
    assert cut(4094, text, own_server=True, limits=(4094,))


def test_tokens_from_a_cache_count_as_read():
    assert not cut(1_000, ENGLISH, cached=9_000)
    assert not cut(30, ENGLISH)
