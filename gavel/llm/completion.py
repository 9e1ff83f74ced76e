"""One completion through LiteLLM, and the text of an assistant's message, wherever a server puts it."""

import ast
import asyncio
import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeGuard

import openai

from gavel.llm.providers import load_litellm, timed_out
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

    LiteLLM rejects a message in content parts, and server-sent events that were not asked for; such a reply is complete
    and paid for, so its text is passed on. An error inside the choice, as OpenRouter reports one of the provider behind
    it, is raised as what it is.
    """
    litellm, bodies = load_litellm(request.get("api_base") or request.get("base_url")), list[str]()

    def listen(call: Mapping[str, Any]) -> None:
        if isinstance(body := call.get("original_response"), str):
            bodies.append(body)

    try:
        response = await litellm.acompletion(**request, logger_fn=listen)
        _check_choice(response, str(request.get("model")))
        return response, Counter()
    except openai.OpenAIError as error:
        if chunks := _streamed(error, bodies):
            return litellm.stream_chunk_builder(chunks), Counter({"streamed": 1})
        if not is_in_parts(error) or not bodies:
            if bodies and isinstance(error, openai.BadRequestError):
                raise _server_failed(error, str(request.get("model"))) from error
            raise
    body, repairs = with_text_content(json.loads(bodies[-1]))
    return litellm.ModelResponse(**{**body, "usage": body.get("usage") or {}}), repairs


def _check_choice(response: Any, model: str) -> None:
    """Raises the error that a server put into its first choice, with status 200 for the whole."""
    specific: dict[str, Any] = {}
    if response.choices:
        specific = getattr(response.choices[0], "provider_specific_fields", None) or {}
    error = specific.get("error")
    if not error and specific.get("native_finish_reason") != "error":
        return
    code = error.get("code") if _is_mapping(error) else None
    status = code if isinstance(code, int) and 400 <= code < 600 else 502
    raise load_litellm().APIError(status, f"the provider failed: {json.dumps(error, default=str)}", "", model)


def _streamed(error: BaseException, bodies: list[str]) -> list[Any]:
    """The chunks of a completion that came as server-sent events, unasked, which LiteLLM calls an invalid response."""
    texts: list[str] = list(bodies)
    one: BaseException | None = error
    while one is not None and len(texts) < _MOST_TEXTS:
        texts.append(str(getattr(one, "doc", "")))  # of a JSONDecodeError
        if found := _RECEIVED.search(str(one)):
            texts.append(str(ast.literal_eval(found[1])))
        one = one.__cause__ or one.__context__
    stream = next((text for text in texts if _EVENT.match(text)), "")
    events = [line[5:].strip() for line in stream.splitlines() if line.startswith("data:")]
    try:
        chunks = [json.loads(event) for event in events if event not in ("", "[DONE]")]
    except ValueError:
        return []
    if not all("choices" in chunk and "error" not in chunk for chunk in chunks):
        return []
    return [load_litellm().ModelResponseStream(**chunk) for chunk in chunks]


_EVENT = re.compile(r"(?:\s|:[^\n]*\n|(?:event|id|retry):[^\n]*\n)*data:\s*\{")
_RECEIVED = re.compile(r"""Received: ('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""", re.DOTALL)
"""How LiteLLM quotes a body of the wrong kind."""
_MOST_TEXTS = 20


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
    """The text of a callable's answer, and its repairs.

    An answer is a text, an assistant's message, or the JSON object of the reply itself. Raises `TypeError` for others.
    """
    if isinstance(answer, str):
        return sendable(answer), Counter()
    if not _is_mapping(answer):
        raise TypeError(f"it returned {type(answer).__name__}, not str, a message, or a dict as the schema has it")
    if answer.keys() & _OF_MESSAGES:
        return read_message(answer)
    return sendable(json.dumps(dict(answer), ensure_ascii=False, default=float)), Counter()  # NumPy's numbers, Decimal


def _is_mapping(answer: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(answer, Mapping)


_OF_MESSAGES = {"role", "content", "tool_calls", "function_call"}


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
