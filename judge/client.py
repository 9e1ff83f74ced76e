"""One call to a judge model: bounded, retried where that can help, and accounted for.

Every wait has an end: an attempt has a timeout, all attempts and the sleeps between them a deadline, and a call
that sleeps holds no slot. What cannot be mended by asking again (a wrong key, a prompt too long) fails at once.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import openai
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, stop_before_delay

from judge.errors import JudgeError
from judge.prices import Prices, cost
from judge.providers import load_litellm, model_id
from judge.retry import may_be_the_format, may_pass, pause, remedy
from scenarios.trajectory import Message

Schema = dict[str, Any]
JudgeModel = Callable[[list[Message], Schema], Awaitable[str | Message]]
"""Anything that answers a prompt, with text or an assistant's message: the seam for self-made judges and tests."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How hard and how long a judge model may be asked. Times are in seconds."""

    concurrency: int = 16
    """Calls to one model at the same time, over all judges of an event loop."""
    timeout: float = 180.0
    """For one attempt."""
    deadline: float = 600.0
    """For a call with all its attempts, from the moment when it has a slot."""
    attempts: int = 6

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.attempts < 1 or self.timeout <= 0 or self.deadline <= 0:
            raise JudgeError(f"a judge needs time, attempts and concurrency above 0: {self}.")


@dataclass(frozen=True, slots=True)
class Reply:
    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = None
    """None = unknown."""
    repairs: Counter[str] = field(default_factory=Counter)
    """Where the text had to be looked for, by kind."""


@dataclass(frozen=True, slots=True)
class Client:
    """A judge model that can be asked."""

    model: str | JudgeModel
    """A LiteLLM id, or an async callable."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Extra LiteLLM parameters, such as `temperature` or `api_base`."""
    limits: Limits = Limits()
    prices: Prices = field(default_factory=dict)

    @property
    def name(self) -> str:
        if isinstance(self.model, str):
            return model_id(self.model)
        return getattr(self.model, "__qualname__", type(self.model).__name__)

    async def ask(self, messages: list[Message], schema: Schema) -> Reply:
        """The model's reply. Raises `JudgeError` when there is none."""
        slot = _Slot(self._slots())
        retrying = AsyncRetrying(
            retry=retry_if_exception(may_pass),
            wait=pause,
            stop=stop_after_attempt(self.limits.attempts) | stop_before_delay(self.limits.deadline),
            sleep=slot.sleep,
            reraise=True,
        )
        await slot.take()
        deadline = asyncio.timeout(self.limits.deadline)
        try:
            async with deadline:
                return await retrying(self._attempt, messages, schema)
        except Exception as error:  # foreign code: whatever a judge model raises is a judge that failed
            if deadline.expired():
                raise JudgeError(f"{self.name} did not answer within {self.limits.deadline:g} s.") from error
            what = str(error) if isinstance(error, openai.OpenAIError) else f"{type(error).__name__}: {error}"
            raise JudgeError(f"{self.name} failed: {what}", remedy(error)) from error
        finally:
            slot.give_back()

    async def _attempt(self, messages: list[Message], schema: Schema) -> Reply:
        if isinstance(self.model, str):
            return await self._complete(messages, schema, _formats.get(self._endpoint, 0))
        async with asyncio.timeout(self.limits.timeout):
            said = await self.model(messages, schema)
        if isinstance(said, str):
            return Reply(said)
        if not isinstance(said, Mapping):
            raise TypeError(f"it returned {type(said).__name__}, not str or a message")
        text, repairs = _read(said)
        return Reply(text, repairs=repairs)

    async def _complete(self, messages: list[Message], schema: Schema, rung: int) -> Reply:
        litellm = load_litellm()
        once = {"timeout": self.limits.timeout, "max_retries": 0, "num_retries": 0}
        options = {**once, **_FORMATS[rung](schema), **self.params}
        try:
            response = await litellm.acompletion(model=self.name, messages=messages, **options)
        except openai.BadRequestError as error:
            if rung + 1 == len(_FORMATS) or not may_be_the_format(error):
                raise
            return await self._complete(messages, schema, rung + 1)
        _formats[self._endpoint] = rung
        text, repairs = _read(response.choices[0].message.model_dump() if response.choices else {})
        usage = response.usage
        prompt_tokens = usage.prompt_tokens or litellm.token_counter(model=self.name, messages=messages)
        completion_tokens = usage.completion_tokens or litellm.token_counter(model=self.name, text=text)
        price = cost(self.name, prompt_tokens, completion_tokens, self.prices)
        if price is None:
            price = response._hidden_params.get("response_cost") or None  # 0 = LiteLLM has no price
        return Reply(text, prompt_tokens, completion_tokens, price, repairs)

    @property
    def _endpoint(self) -> tuple[str, str]:
        return self.name, str(self.params.get("api_base") or self.params.get("base_url") or "")

    def _slots(self) -> asyncio.Semaphore:
        """Shared by all clients of this event loop that ask the same model."""
        of_loop = _slots.setdefault(asyncio.get_running_loop(), {})
        who = self._endpoint if isinstance(self.model, str) else id(self.model)
        return of_loop.setdefault((who, self.limits.concurrency), asyncio.Semaphore(self.limits.concurrency))


_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, asyncio.Semaphore]] = WeakKeyDictionary()

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

_formats: dict[tuple[str, str], int] = {}
"""The first of `_FORMATS` that an endpoint took: no table tells that, only trying."""


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


def _text_of_part(part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) else part
    return text if isinstance(text, str) else ""


class _Slot:
    """A place among the running calls, given back while its holder sleeps."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._held = False

    async def take(self) -> None:
        await self._places.acquire()
        self._held = True

    def give_back(self) -> None:
        if self._held:
            self._held = False
            self._places.release()

    async def sleep(self, seconds: float) -> None:
        self.give_back()
        await asyncio.sleep(seconds)
        await self.take()
