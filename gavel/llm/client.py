"""One call to a judge model: bounded, retried where that can help, and accounted for.

Every wait has an end: an attempt has a timeout, all attempts and the sleeps between them a deadline, and a call
that sleeps holds no slot. What cannot be mended by asking again (a wrong key, a prompt too long) fails at once.
A request leaves only when limits and budget have room for it, and what it came to is put down when it is back.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import openai
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

from gavel.llm.budget import Budget, Size
from gavel.llm.cancellation import contained
from gavel.llm.cassette import Cassette, Question
from gavel.llm.errors import ContextError, LlmError
from gavel.llm.local_models import model_id
from gavel.llm.prices import Prices, cost, price
from gavel.llm.providers import check_judge, facts, load_litellm
from gavel.llm.rate_limits import Lane, Limits, lane
from gavel.llm.retry import context_limit, is_in_parts, is_too_long, may_be_the_format, may_pass, pause, remedy
from gavel.llm.types import JudgeModel, Message, Reply, Schema

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Client:
    """A judge model that can be asked."""

    model: str | JudgeModel
    """A LiteLLM id, or an async callable."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Extra LiteLLM parameters, such as `temperature` or `api_base`."""
    limits: Limits = field(default_factory=Limits)
    prices: Prices = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    """Shared with others, perhaps."""
    cassette: Cassette | None = None
    """For models behind LiteLLM; whether two callables would answer alike, nobody can tell."""
    context: int | None = None
    """Tokens of prompt and reply that the model has room for; None = as LiteLLM's table says."""

    @property
    def name(self) -> str:
        if isinstance(self.model, str):
            return model_id(self.model)
        return getattr(self.model, "__qualname__", type(self.model).__name__)

    def check(self) -> None:
        """Raises what `check_judge` raises, and `UnknownPriceError`; a replay asks nobody and needs no key or price."""
        if self._replays:
            return
        if isinstance(self.model, str):
            check_judge(self.model, self.params)
        if self.budget.max_cost_usd is not None:
            self.budget.check(self.name, price(self.name, self.prices))

    def room(self, entries: int) -> int:
        """Tokens of `cl100k_base` that a prompt may take whose reply has `entries` entries: the context less the reply,
        and less an allowance for a tokenizer that is not known."""
        context = self._context
        return int((context - min(self._reply_tokens(entries), context // 2)) / _TOKENIZERS)

    def shrink(self, room: int, sent: int, entries: int, limit: int | None) -> None:
        """Remembers that a prompt for which there was `room`, of `sent` tokens, was too long for the model."""
        if self.room(entries) < room:
            return  # another call has found out
        less = int(_LESS * sent * _TOKENIZERS) + self._reply_tokens(entries)
        _contexts[self._endpoint] = limit if limit is not None and limit < self._context else less

    @property
    def _context(self) -> int:
        if (learned := _contexts.get(self._endpoint)) is not None:
            return learned
        listed = facts(self.name).get("max_input_tokens") if isinstance(self.model, str) else None
        return self.context or listed or _CONTEXT

    def _reply_tokens(self, entries: int) -> int:
        return max(1000 + 200 * entries, self._set_completion or 0)

    async def ask(self, messages: list[Message], schema: Schema) -> Reply:
        """The model's reply. Raises `LlmError` when there is none, a `ContextError` when the prompt is too long."""
        if self.cassette is None or not isinstance(self.model, str):
            return await self._ask(messages, schema)
        question = Question(self.name, self.params, schema, messages)
        return await self.cassette.answer(question, partial(self._ask, messages, schema))

    async def _ask(self, messages: list[Message], schema: Schema) -> Reply:
        call = _Call(lane(self._endpoint), self.limits)
        retrying = AsyncRetrying(
            retry=retry_if_exception(may_pass),
            wait=pause,
            stop=call.is_over,
            sleep=call.sleep,
            reraise=True,
        )
        await call.take()
        try:
            async with call.deadline:
                call.start()
                return await retrying(self._attempt, call, messages, schema)
        except LlmError:
            raise
        except Exception as error:  # foreign code: whatever a judge model raises is a judge that failed
            if call.deadline.expired():
                raise LlmError(f"{self.name} did not answer within {self.limits.deadline:g} s.") from error
            if isinstance(error, TimeoutError) and not str(error):  # a callable's attempt
                raise LlmError(f"{self.name} did not answer within {self.limits.timeout:g} s.") from error
            what = str(error) if isinstance(error, openai.OpenAIError) else f"{type(error).__name__}: {error}"
            message = f"{self.name} failed: {what}"
            if is_too_long(error):
                raise ContextError(message, remedy(error), context_limit(what)) from error
            raise LlmError(message, remedy(error)) from error
        finally:
            call.give_back()

    async def _attempt(self, call: "_Call", messages: list[Message], schema: Schema) -> Reply:
        if isinstance(self.model, str):
            return await self._complete(call, messages, schema, _formats.get(self._endpoint, 0))
        async with self._accounted(call, messages, schema) as account, asyncio.timeout(self.limits.timeout):
            said = await contained(self.model(messages, schema))
            if not isinstance(said, str | Mapping):
                raise TypeError(f"it returned {type(said).__name__}, not str or a message")
            text, repairs = (said, Counter[str]()) if isinstance(said, str) else _read(said)
            account.reply = Reply(text, repairs=repairs)
        return account.reply

    async def _complete(self, call: "_Call", messages: list[Message], schema: Schema, rung: int) -> Reply:
        once = {"timeout": self.limits.timeout, "max_retries": 0, "num_retries": 0}
        options = {**once, **_FORMATS[rung](schema), **self.params}
        try:
            async with self._accounted(call, messages, schema) as account:
                response, repairs = await _completion(model=self.name, messages=messages, **options)
                account.reply = self._reply(response, messages, repairs)
        except openai.BadRequestError as error:
            if rung + 1 == len(_FORMATS) or not may_be_the_format(error):
                raise
            return await self._complete(call, messages, schema, rung + 1)
        _formats[self._endpoint] = rung
        return account.reply

    def _reply(self, response: Any, messages: list[Message], repairs: Counter[str]) -> Reply:
        litellm = load_litellm()
        finish_reason = response.choices[0].finish_reason if response.choices else None
        message = response.choices[0].message.model_dump() if response.choices else {}
        if finish_reason == "length":
            message["reasoning_content"] = None  # thoughts that break off come to no verdict
        text, more = _read(message)
        usage = response.usage
        prompt_tokens = usage.prompt_tokens or litellm.token_counter(model=self.name, messages=messages)
        completion_tokens = usage.completion_tokens or litellm.token_counter(model=self.name, text=text)
        usd = cost(self.name, prompt_tokens, completion_tokens, self.prices)
        if usd is None:
            usd = response._hidden_params.get("response_cost") or None  # 0 = LiteLLM has no price
        served_by = response.model or ""
        return Reply(
            text, prompt_tokens, completion_tokens, usd, finish_reason or "", served_by, repairs=repairs + more
        )

    @asynccontextmanager
    async def _accounted(self, call: "_Call", messages: list[Message], schema: Schema) -> AsyncIterator["_Account"]:
        """Room for one request in budget and limits; within, the request is made and its reply put down."""
        size = self._size(messages, schema)
        known = price(self.name, self.prices) if self.budget.max_cost_usd is not None else None
        reservation = await call.wait(self.budget.reserve(self.name, known, size))
        account = _Account()
        try:
            expected = reservation.expected[1]
            sent = await call.wait(call.lane.pace(expected, self.limits))
        except BaseException:
            self.budget.release(reservation)
            raise
        try:
            yield account
            reply = account.reply
            tokens = reply.prompt_tokens or size.prompt, reply.completion_tokens or len(reply.text) // 4
            self.budget.settle(reservation, reply.cost_usd, *tokens)
            call.lane.minute.correct(sent, sum(tokens))
        except openai.APITimeoutError:
            self.budget.forfeit(reservation)
            raise
        except openai.OpenAIError:
            self.budget.release(reservation)
            raise
        except BaseException:
            self.budget.forfeit(reservation)
            raise

    def _size(self, messages: list[Message], schema: Schema) -> Size:
        """A token is at least one byte, and about four."""
        bound = sum(map(_bytes, [*messages, schema])) + 32 * len(messages)  # chat templates add their marks
        return Size(prompt=bound // 4, prompt_bound=bound, completion_bound=self._completion_bound)

    @property
    def _completion_bound(self) -> int:
        listed = facts(self.name).get("max_output_tokens") if isinstance(self.model, str) else None
        return self._set_completion or listed or _LONGEST_COMPLETION

    @property
    def _set_completion(self) -> int | None:
        """Tokens that the user allows a reply."""
        set_by_user = (self.params.get(name) for name in ("max_completion_tokens", "max_tokens"))
        return next((most for most in set_by_user if isinstance(most, int)), None)

    @property
    def _replays(self) -> bool:
        return self.cassette is not None and self.cassette.mode == "replay"

    @property
    def _endpoint(self) -> Hashable:
        if isinstance(self.model, str):
            return self.name, str(self.params.get("api_base") or self.params.get("base_url") or "")
        return id(self.model)


_LONGEST_COMPLETION = 32_768
"""Tokens, of a model that says nothing about it."""
_CONTEXT = 128_000
"""Tokens, of a model that says nothing about it."""
_LESS = 0.5
"""Of a prompt that was too long, when the server does not say by how much."""
_TOKENIZERS = 1.2
"""How many times the tokens of `cl100k_base` a model may count."""

_FORMATS: tuple[Callable[[Schema], dict[str, Any]], ...] = (
    lambda schema: {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "scores", "schema": schema, "strict": True},
        }
    },
    lambda schema: {"response_format": {"type": "json_object"}},
    lambda schema: {},
)
"""From the most helpful to the most widely understood."""

_contexts: dict[Hashable, int] = {}
"""What endpoints said that they have room for."""
_formats: dict[Hashable, int] = {}
"""The first of `_FORMATS` that an endpoint took: no table tells that, only trying."""


async def _completion(**request: Any) -> tuple[Any, Counter[str]]:
    """LiteLLM's response, and what had to be mended in the server's for LiteLLM to take it.

    It takes no message in content parts; of such a reply, which is there and paid for, it is given the text.
    """
    litellm, bodies = load_litellm(), list[str]()

    def listen(call: Mapping[str, Any]) -> None:
        if isinstance(body := call.get("original_response"), str):
            bodies.append(body)

    try:
        return await litellm.acompletion(logger_fn=listen, **request), Counter()
    except openai.OpenAIError as error:
        if not is_in_parts(error) or not bodies:
            raise
    body = json.loads(bodies[-1])
    message = body["choices"][0]["message"]
    message["content"] = "".join(map(_text_of_part, message["content"]))
    return litellm.ModelResponse(**{**body, "usage": body.get("usage") or {}}), Counter({"content parts": 1})


def _read(message: Mapping[str, Any]) -> tuple[str, Counter[str]]:
    """What an assistant's message says, and where it had to be looked for, by kind of repair.

    A reply may come in parts, as the arguments of a tool call, or in a thinking model's thoughts.
    """
    repairs: Counter[str] = Counter()
    text = message.get("content") or ""
    if not isinstance(text, str):
        text = "".join(map(_text_of_part, text))
        repairs["content parts"] += 1
    functions = [call.get("function") for call in message.get("tool_calls") or ()]
    for function in [*functions, message.get("function_call")]:
        if arguments := function and function.get("arguments"):
            text += "\n" + (arguments if isinstance(arguments, str) else json.dumps(arguments))
            repairs["tool call"] += 1
    if not text.strip() and isinstance(thoughts := message.get("reasoning_content"), str):
        text = thoughts
        repairs["reasoning"] += 1
    return text, repairs


def _bytes(part: Mapping[str, Any]) -> int:
    """Of a message or a schema. A long text is measured as it is: to write it as JSON takes milliseconds."""
    text = part.get("content")
    words = text if isinstance(text, str) else json.dumps(part, ensure_ascii=False)
    return len(words.encode("utf-8", "surrogatepass"))


def _text_of_part(part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) else part
    return text if isinstance(text, str) else ""


@dataclass(slots=True)
class _Account:
    """What one request came to, once it is back."""

    reply: Reply = field(default_factory=lambda: Reply(""))


class _Call:
    """A place among the running calls, given back while its holder sleeps, and the time that the call has left."""

    def __init__(self, to: Lane, limits: Limits) -> None:
        self.lane = to
        self.deadline = asyncio.timeout(None)
        self._limits = limits
        self._held = False

    async def take(self) -> None:
        await self.lane.places.take(self._limits.concurrency)
        self._held = True

    def start(self) -> None:
        self.deadline.reschedule(_now() + self._limits.deadline)

    def give_back(self) -> None:
        if self._held:
            self._held = False
            self.lane.places.give_back()

    async def sleep(self, seconds: float) -> None:
        self.give_back()
        await asyncio.sleep(seconds)
        await self.wait(self.lane.places.take(self._limits.concurrency))
        self._held = True

    async def wait(self, turn: Awaitable[_T]) -> _T:
        """Waits for one's own turn, with the clock stopped: the judge model is not to blame."""
        left = self._left
        self.deadline.reschedule(None)
        try:
            return await turn
        finally:
            self.deadline.reschedule(_now() + left)

    def is_over(self, state: RetryCallState) -> bool:
        """Whether there is no other attempt, or no time for it."""
        return state.attempt_number >= self._limits.attempts or state.upcoming_sleep >= self._left

    @property
    def _left(self) -> float:
        when = self.deadline.when()
        assert when is not None
        return when - _now()


def _now() -> float:
    return asyncio.get_running_loop().time()
