"""One completion through LiteLLM, and the text of an assistant's message, wherever a server puts it."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeGuard

import openai

from gavel.llm.providers import load_litellm, timed_out
from gavel.llm.quiet_logging import quiet_logging
from gavel.llm.retry import is_in_parts
from gavel.llm.types import Message


async def complete_in_time(
    model: str, messages: list[Message], options: Mapping[str, Any], seconds: float
) -> tuple[Any, Counter[str]]:
    """One `completion` within `seconds`. LiteLLM's own timeout does not end a reply that comes in drips."""
    once = {"timeout": seconds, "max_retries": 0, "num_retries": 0}
    try:
        async with asyncio.timeout(seconds):
            return await completion(model=model, messages=messages, **once | dict(options))
    except TimeoutError as error:
        raise timed_out(model, seconds) from error


async def completion(**request: Any) -> tuple[Any, Counter[str]]:
    """LiteLLM's response, and the repairs of the server's response that it took, by kind.

    LiteLLM rejects a message in content parts; such a reply is complete and paid for, so its text is passed on.
    """
    litellm, bodies = load_litellm(), list[str]()

    def listen(call: Mapping[str, Any]) -> None:
        if isinstance(body := call.get("original_response"), str):
            bodies.append(body)

    try:
        heard = {**request, "logger_fn": listen}
        return await litellm.acompletion(**heard, **quiet_logging(heard)), Counter()
    except openai.OpenAIError as error:
        if not is_in_parts(error) or not bodies:
            if bodies and isinstance(error, openai.BadRequestError):
                raise _server_failed(error, str(request.get("model"))) from error
            raise
    body, repairs = with_text_content(json.loads(bodies[-1]))
    return litellm.ModelResponse(**{**body, "usage": body.get("usage") or {}}), repairs


def with_text_content(body: Mapping[str, Any]) -> tuple[dict[str, Any], Counter[str]]:
    """The body of a completion with the content of its message as text, and the repairs that this took."""
    choices = [dict(choice) for choice in body.get("choices") or ()]
    repairs: Counter[str] = Counter()
    for choice in choices[:1]:
        message = dict(choice.get("message") or {})
        if isinstance(message.get("content"), list):
            message["content"] = "".join(map(_text_of_part, message["content"]))
            repairs["content parts"] += 1
        choice["message"] = message
    return {**body, "choices": choices}, repairs


def _server_failed(error: openai.OpenAIError, model: str) -> openai.OpenAIError:
    """The error of a response with status 200 and an error for a body, which LiteLLM calls a bad request."""
    litellm = load_litellm()
    return litellm.APIError(500, f"the server answered with status 200 and an error: {error}", "", model)


def read_answer(answer: object) -> tuple[str, Counter[str]]:
    """The text of a callable's answer, and its repairs. Raises `TypeError` when it is neither text nor a message."""
    if isinstance(answer, str):
        return sendable(answer), Counter()
    if not _is_message(answer):
        raise TypeError(f"it returned {type(answer).__name__}, not str or a message")
    return read_message(answer)


def _is_message(answer: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(answer, Mapping)


def read_message(message: Mapping[str, Any]) -> tuple[str, Counter[str]]:
    """The text of an assistant's message, and the repairs that finding it took, by kind.

    A reply may come in content parts, as the arguments of a tool call, or as reasoning.
    """
    repairs: Counter[str] = Counter()
    text = message.get("content") or ""
    if not isinstance(text, str):
        text = "".join(map(_text_of_part, text))
        repairs["content parts"] += 1
    functions = [call.get("function") for call in message.get("tool_calls") or ()]
    calls = [given for one in (*functions, message.get("function_call")) if one and (given := one.get("arguments"))]
    if calls:  # text before a call announces it
        text = "\n".join(given if isinstance(given, str) else json.dumps(given) for given in calls)
        repairs["tool call"] += len(calls)
    if not text.strip() and isinstance(reasoning := message.get("reasoning_content"), str):
        text = reasoning
        repairs["reasoning"] += 1
    return sendable(text), repairs


def sendable(text: str) -> str:
    """The text with halves of surrogate pairs joined, or replaced where they are alone: JSON may hold them, but no
    request can send them back, and no database takes them."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _text_of_part(part: object) -> str:
    match part:
        case str(text) | {"text": str(text)}:
            return text
        case _:
            return ""
