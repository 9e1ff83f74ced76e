"""One call to a language model: bounded in time, retried where that can help, and accounted for.

    ask                        answers from the cassette, where it holds the reply
    └─ _asked                     holds a concurrency slot until the reply is stored
       └─ _ask_until_deadline        loop 1: the same request after a pause, while the server or the network fails
          └─ _ask_as_accepted           loop 2: another reply format or parameter, when the server refuses the first
             └─ complete_in_time           one request, over LiteLLM or the direct wire (completion.py)

Loop 3 is the caller's: the next of a juror's models, of which each has an equal share of the deadline. A temporary
failure (429, 5xx, a timeout, no connection, a truncated reply) is retried until then, however often; pauses occupy no
concurrency slot, and waiting for budget or rate limits does not count. A permanent one (a wrong key) is raised at once,
and nothing more is sent for a minute; so it is with `has_fallback` after a client used up its share.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Generator, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

import openai
from openai.types.chat.chat_completion import ChatCompletion
from tenacity import stop_after_attempt

from gavel.base.errors import contain_cancellation
from gavel.base.plain_calls import PlainCalls, is_async
from gavel.llm.budget import (
    LONGEST_COMPLETION,
    Budget,
    Price,
    Prices,
    Reservation,
    ledger_of_this_work,
    price,
    prices_from_environment,
)
from gavel.llm.cassette import Cassette, Question
from gavel.llm.completion import COMPLETION_CAPS, FORMATS, complete_in_time, dialects, endpoint_of, response_format
from gavel.llm.decisions import EXPECTED_COMPLETION, PROBE, decide
from gavel.llm.errors import LlmError, NotAskedError, PermanentError, UnknownModelError
from gavel.llm.failures import CONTENT_FILTER, as_llm_error, kind_of, may_be_paid, may_pass, retrying
from gavel.llm.prompt_cut import DEFAULT_CONTEXT, check_not_cut, context_options, contexts, room_in, shrink_context
from gavel.llm.providers import OWN_SERVERS, answer, check_model, is_local, model_id, model_info, with_breakpoint
from gavel.llm.rate_limits import Activity, Breaker, Call, Limits, endpoint_limits
from gavel.llm.response import WITHOUT_LOGPROBS, is_json_alone, read_answer, read_response, read_usage, with_logprobs
from gavel.llm.types import NO_PREFIX, Accept, CachedPrefix, Message, ModelCallable, Reply, Schema, Wire, byte_bound

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_PROBE_PATIENCE = 15.0
"""Seconds for which a probe is retried: nothing is lost yet, and a wrong address should show soon."""
_TURN_SECONDS = 300.0
"""Timeout of one attempt at an agent's turn."""

PROBE_MESSAGES: list[Message] = [
    {"role": "system", "content": "You answer in JSON."},
    {"role": "user", "content": 'Are you there? Reply with the JSON object {"ready": true} and nothing else.'},
]
PROBE_SCHEMA: Schema = {
    "type": "object",
    "properties": {"ready": {"type": "boolean"}},
    "required": ["ready"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Probe:
    """Result of a probe."""

    model: str
    served_by: str
    """The model's name according to the server, or ""."""
    reply_format: str
    """Reply format of later requests: "json_schema", "json_object" or "text"."""
    seconds: float
    cost_usd: float | None
    """None = unknown."""
    problem: str = ""
    """Reason why the model cannot be called; it is a fallback of a juror that can."""
    is_alone: bool = True
    """Whether the reply was the JSON object alone. If not, replies need repair requests, which cost calls."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client of one language model."""

    model: str | ModelCallable
    """A LiteLLM id, or a callable; a synchronous one runs in a thread."""
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Extra LiteLLM parameters, such as `temperature` or `api_base`."""
    limits: Limits = field(default_factory=Limits)
    prices: Prices = field(default_factory=dict[str, Price])
    budget: Budget = field(default_factory=Budget)
    """May be shared with other clients."""
    cassette: Cassette | None = None
    """Used for LiteLLM models only: two callables of one name may answer differently."""
    context: int | None = None
    """Context length, in tokens of prompt and reply; None = from LiteLLM's table."""
    activity: Activity = field(default_factory=Activity, compare=False, repr=False)
    """May be shared with other clients."""
    breaker: Breaker = field(default_factory=Breaker, compare=False, repr=False)
    wire: Wire = "chat"
    has_fallback: bool = False
    """Whether another model is called if this one does not answer within its deadline."""

    @property
    def name(self) -> str:
        if isinstance(self.model, str):
            return model_id(self.model)
        return getattr(self.model, "__qualname__", type(self.model).__name__)

    def check(self) -> None:
        """Raises what `check_model` raises, `LlmError` for a price that is not known, and `CassetteError` for a
        cassette that cannot be used. A replayed cassette needs no key and no price."""
        if self.wire != "chat" and is_local(self.name):
            raise LlmError(
                f"{self.name} answers with text, and no probabilities can be read from it.",
                'Name a model that gives them, or take mode="groupwise".',
            )
        if self.cassette is None or self.cassette.mode != "replay":
            if isinstance(self.model, str):
                check_model(self.model, self.params)
            if self.budget.max_cost_usd is not None:
                self.budget.check(self.name, price(self.name, self.prices))
        if self.cassette is not None and isinstance(self.model, str):
            self.cassette.check()

    def room(self, entries: int) -> int:
        """Max prompt tokens, in `cl100k_base`, for a reply with `entries` entries."""
        return room_in(self._context, self._reply_tokens(entries))

    def shrink(self, room: int, sent: int, entries: int, limit: int | None) -> None:
        """Lowers the assumed context: a prompt of `sent` tokens, made to fit `room` tokens, was rejected as too long.

        `limit`: the context that the server names, in tokens; None = it names none.
        """
        shrink_context(self._endpoint, self._context, room, sent, self._reply_tokens(entries), limit)

    @property
    def _context(self) -> int:
        listed = model_info(self.name).get("max_input_tokens") if isinstance(self.model, str) else None
        assumed = self.context or self._int_param("num_ctx") or listed or DEFAULT_CONTEXT
        return contexts.get(self._endpoint, assumed)

    def _int_param(self, *names: str) -> int | None:
        """The first of these parameters that the user sets to a number."""
        return next((value for name in names if isinstance(value := self.params.get(name), int)), None)

    @property
    def _set_completion(self) -> int | None:
        """Max tokens of a reply, if the user sets them."""
        return self._int_param(*COMPLETION_CAPS)

    def _reply_tokens(self, entries: int) -> int:
        return max(1000 + 200 * entries, self._set_completion or 0)

    @property
    def _endpoint(self) -> Hashable:
        return endpoint_of(self.name, self.params) if isinstance(self.model, str) else id(self.model)

    @property
    def _is_served(self) -> bool:
        """Whether requests leave this process."""
        return isinstance(self.model, str) and not is_local(self.name)

    async def ask(
        self,
        messages: list[Message],
        schema: Schema,
        accept: Accept | None = None,
        repairs: Sequence[tuple[list[Message], Reply]] = (),
        prefix: CachedPrefix = NO_PREFIX,
    ) -> Reply:
        """Returns the model's reply. Raises `LlmError` if there is none, `ContextError` if the prompt is too long.

        The cassette stores the reply if `accept` says that it is usable (None = always), together with the unusable
        ones that `messages` send back: `repairs` holds them with their messages, oldest first. `prefix`: the beginning
        shared with other requests, for the server's prompt cache.
        """
        if self.cassette is None or not isinstance(self.model, str):
            async with self._asked(messages, schema, prefix) as reply:
                return reply
        question = Question(self.name, self.params, schema, messages)
        ask = partial(self._asked, messages, schema, prefix)
        earlier = [(Question(self.name, self.params, schema, before), reply) for before, reply in repairs]
        reply = await self.cassette.answer(question, ask, accept, earlier)
        return self._answering_all_of(messages, reply)

    async def probe(self) -> Probe:
        """Sends one cheap request, which verifies key, model, credit and parameters.

        Raises what `ask` raises. The answer never comes from a cassette.
        """
        self.breaker.close()
        started, decides = time.monotonic(), self.wire == "decisions"
        asked = partial(self._asked, PROBE_MESSAGES, PROBE if decides else PROBE_SCHEMA, is_probe=True)
        async with asked() as reply:
            pass
        if not reply.text.strip():  # that may pass
            async with asked() as reply:
                pass
        if not reply.text.strip():
            raise LlmError(
                f"{self.name} answered a question with an empty reply (finish_reason {reply.finish_reason!r}).",
                "Try it by hand, raise max_tokens if you set it, or pick another model.",
            )
        is_alone = self.wire != "chat" or is_json_alone(reply.text)
        if reply.repairs["reasoning"] and not is_alone:
            raise LlmError(
                f"{self.name} answered with reasoning alone: its server takes the answer for a part of it.",
                "Start the server with the reasoning parser of this model (vLLM, SGLang: --reasoning-parser NAME), or "
                "turn thinking off.",
            )
        is_readout = self.wire == "logprobs" and reply.finish_reason != CONTENT_FILTER
        if is_readout and json.loads(reply.text)["tokens"] is None:
            advice = WITHOUT_LOGPROBS[0].upper() + WITHOUT_LOGPROBS[1:]
            raise LlmError(f"{self.name} returned no log-probabilities of tokens.", advice)
        reply_format = self.wire if decides else FORMATS[dialects[self._endpoint].format]
        seconds = time.monotonic() - started
        return Probe(self.name, reply.served_by, reply_format, seconds, reply.cost_usd, is_alone=is_alone)

    def probe_when_asked(self) -> None:
        """Probes before the first request that has to be sent. If the probe fails, nothing is sent for a while."""
        if self.can_be_probed:
            self.breaker.await_probe()

    @property
    def can_be_probed(self) -> bool:
        """Whether a request to the model leaves this process."""
        return self._is_served and (self.cassette is None or self.cassette.asks_now)

    @asynccontextmanager
    async def _asked(
        self, messages: list[Message], schema: Schema, prefix: CachedPrefix = NO_PREFIX, *, is_probe: bool = False
    ) -> AsyncGenerator[Reply]:
        """Gives the reply. The call holds its concurrency slot to the end of the block, which stores the reply, so that
        a process that is killed loses no more paid replies than `concurrency`."""
        if not is_probe:
            await self.breaker.probed(self.probe)
        patience = _PROBE_PATIENCE if is_probe else self.limits.deadline
        call = Call(endpoint_limits(self._endpoint), self.limits, self.activity, prefix, patience)
        await call.acquire()
        try:
            yield await self._ask_until_deadline(call, messages, schema)
        finally:
            call.release()

    async def _ask_until_deadline(self, call: Call, messages: list[Message], schema: Schema) -> Reply:
        while True:
            try:
                self.breaker.check()
                with self.activity.asking(self.name):
                    reply = await self._ask_as_accepted(call, messages, schema)
                self.breaker.close()
                return reply
            except Exception as error:  # foreign code: any exception means that the call failed
                failure = error if isinstance(error, LlmError) else None
                if failure is None:
                    if (pause := call.pause_after(error)) is not None:
                        await call.sleep(pause, error)
                        continue
                    longest = min(self.limits.timeout, self.limits.deadline)
                    failure = as_llm_error(error, self.name, longest, call.attempts)
                failure.may_be_paid = call.may_be_paid
                is_outage = self.has_fallback and failure is not error and may_pass(error)
                if is_outage or isinstance(failure, PermanentError):  # other requests would hit it too
                    self.breaker.open(failure)
                if failure is error:
                    raise
                raise failure from error

    async def _ask_as_accepted(self, call: Call, messages: list[Message], schema: Schema) -> Reply:
        """Sends the request in the first reply format, and with the parameters, that the endpoint accepts."""
        if not self._is_served or self.wire == "decisions":
            async with self._account_for(call, messages, schema):
                call.reply = await self._ask_once(messages, schema, call.attempt_seconds)
            return self._answering_all_of(messages, call.reply) if self._is_served else call.reply
        complete = self.cassette.complete if self.cassette else complete_in_time
        dialect = dialects[self._endpoint]
        marked = with_breakpoint(self.name, messages, call.prefix)
        num_ctx = self._context_options(messages)
        number = dialect.format
        while True:
            params, sent, cap = dict[str, Any](self.params), dict[str, Any](), None
            try:
                async with self._account_for(call, messages, schema) as reservation:
                    if (cap := reservation.cap) is not None:
                        params[COMPLETION_CAPS[0]] = cap
                    sent = dialect.translate(params)
                    options = response_format(FORMATS[number], schema) | num_ctx | sent
                    body = await complete(self.name, marked, options, call.attempt_seconds)
                    call.reply = read_response(self.name, body, messages, self.prices)
                    if self.wire == "logprobs":
                        call.reply = with_logprobs(call.reply, body)
            except openai.OpenAIError as error:
                if dialect.adapt(error, self.name, params, sent):
                    continue
                if number + 1 == len(FORMATS) or kind_of(error) != "rejected":
                    raise
                number += 1
            else:
                dialect.format = number
                if cap is not None and call.reply.completion_tokens > cap:
                    dialect.takes_cap = False
                return self._answering_all_of(messages, call.reply)

    async def _ask_once(self, messages: list[Message], schema: Schema, seconds: float) -> Reply:
        """The reply of a callable, a local model or a decision model."""
        model = self.model
        if isinstance(model, str):
            if self._is_served:
                return await decide(self.name, messages, schema, self.params, self.prices, seconds)
            return answer(self.name, messages)
        async with asyncio.timeout(seconds):
            on_loop = is_async(model)  # a synchronous function runs in a thread, so that a timeout can abandon it
            answered: Any = model(messages, schema) if on_loop else PlainCalls().run(partial(model, messages, schema))
            while isawaitable(answered):
                answered = await contain_cancellation(answered)
        text, repairs = read_answer(answered)
        return Reply(text, repairs=repairs)

    def _context_options(self, messages: list[Message]) -> dict[str, int]:
        return context_options(self.name, self.params, messages, self._context, self._set_completion)

    def _answering_all_of(self, messages: list[Message], reply: Reply) -> Reply:
        """Returns the reply. Raises `PromptCutError` if the server read only a part of the messages."""
        own_server = self.name.startswith(OWN_SERVERS) or bool(self.params.keys() & {"api_base", "base_url"})
        limits = {self._int_param("num_ctx") or 0, *self._context_options(messages).values()}
        check_not_cut(self.name, reply, messages, own_server=own_server, limits=limits)
        return reply

    @asynccontextmanager
    async def _account_for(
        self, call: Call, messages: list[Message], schema: Schema
    ) -> AsyncGenerator[Reservation, None]:
        """Waits until budget and rate limits allow one request; the block sends it and sets the call's reply."""
        bound, known = byte_bound(messages, schema), None
        if self.budget.max_cost_usd is not None:
            known = price(self.name, self.prices)
        longest, can_be_capped = self._longest_completion()
        reserving = self.budget.reserve(self.name, known, bound, longest, can_be_capped=can_be_capped)
        reservation, ledger = await call.off_the_clock(reserving), ledger_of_this_work()
        try:
            sent = await call.wait_for_rate(reservation.expected[1])
            await ledger.begin()
        except BaseException:
            self.budget.release(reservation)
            raise
        call.prefix.sent()
        try:
            with _call_span(self.name, self.wire) as note:
                yield reservation
                note(reply := call.reply)
            tokens = reply.prompt_tokens or bound // 4, reply.completion_tokens or len(reply.text) // 4
            self.budget.settle(reservation, reply.cost_usd, *tokens)
            ledger.end(reply.cost_usd)
            sent.tokens = sum(tokens)
        except BaseException as error:
            is_free = isinstance(error, NotAskedError) or is_local(self.name)
            is_free = is_free or (isinstance(error, openai.OpenAIError) and not may_be_paid(error))
            (self.budget.release if is_free else self.budget.forfeit)(reservation)
            call.may_be_paid = call.may_be_paid or not is_free
            ledger.end(is_free=is_free)
            raise

    def _longest_completion(self) -> tuple[int, bool]:
        """Max tokens of a reply, and whether a request can limit them."""
        if self.wire == "decisions":
            return EXPECTED_COMPLETION, False
        if not self._is_served:
            return self._set_completion or LONGEST_COMPLETION, False
        longest = self._set_completion or model_info(self.name).get("max_output_tokens") or LONGEST_COMPLETION
        # the user sets no limit, and no thinking that needs one
        is_free = not self.params.keys() & {*COMPLETION_CAPS, "thinking"}
        return longest, is_free and dialects[self._endpoint].takes_cap


_TRACER: "ContextVar[Tracer | None]" = ContextVar("gavel_tracer", default=None)


@contextmanager
def traced_calls(tracer: "Tracer") -> Generator[None]:
    """Traces requests sent in the block, also by tasks that start in it, with spans after OpenTelemetry's conventions
    for generative AI: "chat gpt-5-mini", with model, server, tokens and error kind, and without any content."""
    token = _TRACER.set(tracer)
    try:
        yield
    finally:
        _TRACER.reset(token)


@contextmanager
def _call_span(name: str, wire: Wire) -> Generator[Callable[[Reply], None]]:
    """The span of a request to the model of this name; gives a callback that records its reply."""
    tracer = _TRACER.get()
    if tracer is None:
        yield lambda reply: None
        return
    from opentelemetry.trace import SpanKind, StatusCode

    provider, slash, model = name.partition("/")
    if not slash:
        provider, model = model_info(name).get("litellm_provider"), name
    operation = "decisions" if wire == "decisions" else "chat"
    quiet: dict[str, Any] = {"record_exception": False, "set_status_on_exception": False}
    with tracer.start_as_current_span(f"{operation} {model}", kind=SpanKind.CLIENT, **quiet) as span:

        def note(attributes: Mapping[str, Any]) -> None:
            span.set_attributes({f"gen_ai.{name}": value for name, value in attributes.items() if value})

        note({"operation.name": operation, "request.model": model, "provider.name": provider})
        try:
            yield lambda reply: note(
                {
                    "response.model": reply.served_by,
                    "response.finish_reasons": [reply.finish_reason] if reply.finish_reason else None,
                    "usage.input_tokens": reply.prompt_tokens,
                    "usage.output_tokens": reply.completion_tokens,
                    "usage.cache_read.input_tokens": reply.cached_prompt_tokens,
                }
            )
        except BaseException as error:  # identified by its status or class, never by its message
            is_answer = isinstance(error, openai.APIStatusError)
            span.set_attribute("error.type", str(error.status_code) if is_answer else type(error).__name__)
            span.set_status(StatusCode.ERROR)
            raise


class ChatAgent:
    """An agent's model by its LiteLLM id, tools included, with the cost of its turns."""

    def __init__(self, model: str, budget: Budget | None = None, *, instead: str = "ollama/qwen3") -> None:
        """`instead`: what a remedy offers without a key. Raises what `check_model` raises, `UnknownModelError` for a
        local model, and `LlmError` for a budget in dollars that cannot be kept."""
        if is_local(model):
            raise UnknownModelError(
                f"{model} goes by rules and cannot act as an agent.",
                "Name a language model: openai/gpt-5-mini, ollama/qwen3.",
            )
        check_model(model, {}, instead=instead)
        self.model = model
        self.cost_usd: float | None = 0.0
        """None as soon as one turn's price is unknown."""
        self._price, self._budget = price(model, prices_from_environment()), budget or Budget()
        self._budget.check(model, self._price)

    async def turn(self, messages: list[Message], tools: list[Message], **options: Any) -> ChatCompletion:
        """The model's next turn; temporary failures are retried. LiteLLM `options` that the model does not support are
        dropped. Raises `BudgetError`, and the errors of LiteLLM, which are those of OpenAI's client."""
        request = {name: value for name, value in options.items() if value is not None}
        if tools:
            request["tools"] = tools
        return await retrying(stop_after_attempt(4))(self._attempt, messages, request)

    async def _attempt(self, messages: list[Message], request: dict[str, Any]) -> ChatCompletion:
        bound = byte_bound(messages, {"tools": request.get("tools", [])})
        longest = request.get("max_completion_tokens") or model_info(self.model).get("max_output_tokens")
        reservation = await self._budget.reserve(self.model, self._price, bound, longest or LONGEST_COMPLETION)
        try:
            body = await complete_in_time(self.model, messages, request | {"drop_params": True}, _TURN_SECONDS)
        except BaseException as error:
            is_free = isinstance(error, openai.OpenAIError) and not may_be_paid(error)
            (self._budget.release if is_free else self._budget.forfeit)(reservation)
            raise
        usage = read_usage(body.get("usage"))
        self._budget.settle(reservation, None, usage.prompt_tokens or bound // 4, usage.completion_tokens)
        if self._price is None or not usage.prompt_tokens or self.cost_usd is None:
            self.cost_usd = None
        else:
            self.cost_usd += (usage.prompt_tokens * self._price[0] + usage.completion_tokens * self._price[1]) / 1e6
        return ChatCompletion.construct(**body)
