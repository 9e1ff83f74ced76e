"""One call to a language model: bounded in time, retried where that can help, and accounted for.

The loops of `Client.ask`, outermost first; all of them run within one deadline:

    ask                                  answers from the cassette, where it holds the reply
    └─ _ask_with_transport_retries       the same request after a pause, when the server or the network fails
       └─ _complete_with_format_fallbacks    a plainer reply format, when the server refuses the first
          └─ _accounted                      one request: waits for budget and rate limits, then is sent

An attempt has a timeout, and a call that sleeps does not count as running. Errors that asking again cannot mend (a
wrong key, a prompt too long) are raised at once.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import openai
from tenacity import AsyncRetrying, retry_if_exception

from gavel.llm.budget import Budget, Size
from gavel.llm.call import Call
from gavel.llm.cancellation import contain_cancellation
from gavel.llm.cassette import Cassette
from gavel.llm.completion import completion, read_answer, read_message
from gavel.llm.errors import ContextError, GavelError, LlmError, RefusedError
from gavel.llm.local_models import model_id
from gavel.llm.prices import Price, Prices, cost, price
from gavel.llm.providers import check_model, load_litellm, model_info
from gavel.llm.question import Question
from gavel.llm.rate_limits import Limits, endpoint_limits
from gavel.llm.refusal import CONTENT_FILTER, is_refusal, refusal_in
from gavel.llm.retry import context_limit, is_too_long, may_be_the_format, may_pass, pause, remedy
from gavel.llm.types import Accept, Message, ModelCallable, Reply, Schema


@dataclass(frozen=True, slots=True)
class Client:
    """A language model that can be asked."""

    model: str | ModelCallable
    """A LiteLLM id, or an async callable."""
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Extra LiteLLM parameters, such as `temperature` or `api_base`."""
    limits: Limits = field(default_factory=Limits)
    prices: Prices = field(default_factory=dict[str, Price])
    budget: Budget = field(default_factory=Budget)
    """May be shared with other clients."""
    cassette: Cassette | None = None
    """Used for LiteLLM models only: two callables of one name may answer differently."""
    context: int | None = None
    """Context length, in tokens of prompt and reply; None = as LiteLLM's table says."""

    @property
    def name(self) -> str:
        if isinstance(self.model, str):
            return model_id(self.model)
        return getattr(self.model, "__qualname__", type(self.model).__name__)

    def check(self) -> None:
        """Raises what `check_model` raises, `UnknownPriceError`, and `CassetteError` for a cassette that cannot be
        used. A replayed cassette needs no key and no price."""
        if not self._replays:
            if isinstance(self.model, str):
                check_model(self.model, self.params)
            if self.budget.max_cost_usd is not None:
                self.budget.check(self.name, price(self.name, self.prices))
        if self.cassette is not None and isinstance(self.model, str):
            self.cassette.check()

    def room(self, entries: int) -> int:
        """Max prompt tokens, in `cl100k_base`, when the reply has `entries` entries: the context minus the reply, with
        a margin for the model's own tokenizer."""
        context = self._context
        return int((context - min(self._reply_tokens(entries), context // 2)) / _TOKENIZER_MARGIN)

    def shrink(self, room: int, sent: int, entries: int, limit: int | None) -> None:
        """Lowers the assumed context: a prompt of `sent` tokens, made for `room` tokens, was refused as too long.

        `limit`: the context that the server names, in tokens; None = it names none.
        """
        if self.room(entries) < room:
            return  # another call has lowered it
        smaller = int(_SHRINK_FACTOR * sent * _TOKENIZER_MARGIN) + self._reply_tokens(entries)
        _contexts[self._endpoint] = limit if limit is not None and limit < self._context else smaller

    @property
    def _context(self) -> int:
        if (learned := _contexts.get(self._endpoint)) is not None:
            return learned
        listed = model_info(self.name).get("max_input_tokens") if isinstance(self.model, str) else None
        return self.context or listed or _CONTEXT

    def _reply_tokens(self, entries: int) -> int:
        return max(1000 + 200 * entries, self._set_completion or 0)

    async def ask(
        self,
        messages: list[Message],
        schema: Schema,
        accept: Accept | None = None,
        repairs: Sequence[tuple[list[Message], Reply]] = (),
    ) -> Reply:
        """The model's reply. Raises `LlmError` when there is none, a `ContextError` when the prompt is too long.

        A cassette keeps the reply if `accept` says that it can be used (None = always), and with it the unusable ones
        that `messages` send back: `repairs` holds them with their messages, oldest first.
        """
        if self.cassette is None or not isinstance(self.model, str):
            return await self._ask_with_transport_retries(messages, schema)
        question = Question(self.name, self.params, schema, messages)
        ask = partial(self._ask_with_transport_retries, messages, schema)
        earlier = [(Question(self.name, self.params, schema, before), reply) for before, reply in repairs]
        return await self.cassette.answer(question, ask, accept, earlier)

    async def _ask_with_transport_retries(self, messages: list[Message], schema: Schema) -> Reply:
        call = Call(endpoint_limits(self._endpoint), self.limits)
        retrying = AsyncRetrying(
            retry=retry_if_exception(may_pass),
            wait=pause,
            stop=call.is_over,
            sleep=call.sleep,
            reraise=True,
        )
        await call.acquire()
        try:
            async with call.deadline:
                call.start_deadline()
                return await retrying(self._attempt, call, messages, schema)
        except LlmError:
            raise
        except Exception as error:  # foreign code: whatever it raises, the call failed
            if call.deadline.expired():
                raise LlmError(f"{self.name} did not answer within {self.limits.deadline:g} s.") from error
            if isinstance(error, TimeoutError) and not str(error):  # a callable's attempt
                raise LlmError(f"{self.name} did not answer within {self.limits.timeout:g} s.") from error
            if isinstance(error.__cause__, GavelError):  # of a local model: it says itself what is wrong
                raise LlmError(error.__cause__.message, error.__cause__.remedy) from error
            what = str(error) if isinstance(error, openai.OpenAIError) else f"{type(error).__name__}: {error}"
            message = f"{self.name} failed: {what}"
            if is_too_long(error):
                raise ContextError(message, remedy(error), context_limit(what)) from error
            if is_refusal(error):
                raise RefusedError(message) from error
            raise LlmError(message, remedy(error)) from error
        finally:
            call.release()

    async def _attempt(self, call: Call, messages: list[Message], schema: Schema) -> Reply:
        if isinstance(self.model, str):
            return await self._complete_with_format_fallbacks(call, messages, schema)
        async with self._accounted(call, messages, schema) as account, asyncio.timeout(self.limits.timeout):
            answer = await contain_cancellation(self.model(messages, schema))
            text, repairs = read_answer(answer)
            account.reply = Reply(text, repairs=repairs)
        return account.reply

    async def _complete_with_format_fallbacks(self, call: Call, messages: list[Message], schema: Schema) -> Reply:
        """Asks in the first reply format that the endpoint accepts, from the one that it accepted before."""
        once = {"timeout": self.limits.timeout, "max_retries": 0, "num_retries": 0}
        number = _formats.get(self._endpoint, 0)
        while True:
            options = {**once, **REPLY_FORMATS[number](schema), **self.params}
            try:
                async with self._accounted(call, messages, schema) as account:
                    response, repairs = await completion(model=self.name, messages=messages, **options)
                    account.reply = self.read_response(response, messages, repairs)
            except openai.BadRequestError as error:
                if number + 1 == len(REPLY_FORMATS) or not may_be_the_format(error):
                    raise
                number += 1
            else:
                _formats[self._endpoint] = number
                return account.reply

    def read_response(self, response: Any, messages: list[Message], repairs: Counter[str]) -> Reply:
        """The reply in LiteLLM's response to `messages`. `repairs`: those that the response took."""
        litellm = load_litellm()
        finish_reason = response.choices[0].finish_reason if response.choices else None
        message: dict[str, Any] = response.choices[0].message.model_dump() if response.choices else {}
        if finish_reason == "length":
            message["reasoning_content"] = None  # reasoning that is cut off holds no answer
        text, more = read_message(message)
        if not text.strip() and (refusal := refusal_in(message)):
            text, finish_reason = refusal, CONTENT_FILTER
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
    async def _accounted(self, call: Call, messages: list[Message], schema: Schema) -> AsyncGenerator["_Account", None]:
        """Waits until budget and rate limits allow one request; the block sends it and sets the account's reply."""
        size = self._size(messages, schema)
        known = price(self.name, self.prices) if self.budget.max_cost_usd is not None else None
        reservation = await call.off_the_clock(self.budget.reserve(self.name, known, size))
        account = _Account()
        try:
            expected = reservation.expected[1]
            sent = await call.off_the_clock(call.endpoint.wait_for_rate(expected, self.limits))
        except BaseException:
            self.budget.release(reservation)
            raise
        try:
            yield account
            reply = account.reply
            tokens = reply.prompt_tokens or size.prompt, reply.completion_tokens or len(reply.text) // 4
            self.budget.settle(reservation, reply.cost_usd, *tokens)
            call.endpoint.window.correct(sent, sum(tokens))
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
        bound = sum(map(_bytes, [*messages, schema])) + 32 * len(messages)  # chat templates add tokens around each
        return Size(prompt=bound // 4, prompt_bound=bound, completion_bound=self._completion_bound)

    @property
    def _completion_bound(self) -> int:
        listed = model_info(self.name).get("max_output_tokens") if isinstance(self.model, str) else None
        return self._set_completion or listed or _LONGEST_COMPLETION

    @property
    def _set_completion(self) -> int | None:
        """Max tokens of a reply, where the user sets them."""
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
"""Max reply tokens of a model that LiteLLM's table does not list."""
_CONTEXT = 128_000
"""Context length of a model that LiteLLM's table does not list."""
_SHRINK_FACTOR = 0.5
"""Factor by which a refused prompt is shortened when the server names no limit."""
_TOKENIZER_MARGIN = 1.2
"""Max ratio of a model's own token count to that of `cl100k_base`."""

REPLY_FORMATS: tuple[Callable[[Schema], dict[str, Any]], ...] = (
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
"""Context lengths learned from endpoints' refusals."""
_formats: dict[Hashable, int] = {}
"""Index of the first of `REPLY_FORMATS` that an endpoint accepted, found by trying."""


def _bytes(part: Mapping[str, Any]) -> int:
    """Bytes of a message or a schema. Text content is measured directly: JSON of a long text takes milliseconds."""
    text = part.get("content")
    words = text if isinstance(text, str) else json.dumps(part, ensure_ascii=False)
    return len(words.encode("utf-8", "surrogatepass"))


@dataclass(slots=True)
class _Account:
    """The reply of one request, once it arrived."""

    reply: Reply = field(default_factory=lambda: Reply(""))
