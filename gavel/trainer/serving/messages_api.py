"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's Messages API over chat completions, so that its
conversations continue from sampled tokens too.

    thinking, text, tool_use   ->   one assistant message
    tool_result                ->   one tool message; text beside it is a user message

Cache marks and what else changes nothing that is sampled are left out. Fields that both APIs have pass through, so what
the endpoint does not know is refused there, by its name. Anthropic's clients add `/v1` to their base URL; one that is
given OpenAI's asks `/v1/v1`, which is served too.
"""

import itertools
import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gavel.llm.types import Message
from gavel.trainer.serving.answers import BadRequest, Unthreaded, event, json_answer, object_of, shown, streamed_answer
from gavel.trainer.serving.chat import ChatCompletions
from gavel.trainer.serving.chat_objects import Part, parts_of
from gavel.trainer.serving.chat_request import (
    STREAMED,
    an_object,
    check_types,
    function_tools,
    joined_text,
    kind_of,
    objects,
    parts,
    switch,
    text,
)

_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}
_DELTAS: dict[Part, tuple[str, str]] = {
    "reasoning": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "call": ("input_json_delta", "partial_json"),
}


def message(completion: Message) -> Message:
    """The message that says what `completion` says."""
    choice = completion["choices"][0]
    content = [_block(*part) for part in parts_of(choice["message"])]
    return _message(completion["model"], _usage(completion["usage"])) | {"content": content, **_stop(choice)}


def _block(kind: Part, call: Message, text: str) -> Message:
    match kind:
        case "reasoning":
            return {"type": "thinking", "thinking": text, "signature": ""}
        case "text":
            return {"type": "text", "text": text}
        case "call":
            name = (call.get("function") or {}).get("name") or ""
            return {"type": "tool_use", "id": call.get("id") or "", "name": name, "input": _input(text)}


def _input(arguments: str) -> Any:
    """Arguments that are not JSON stay as they are: the tool answers with an error."""
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return {"arguments": arguments}


def error_object(said: Message) -> Message:
    """An error of OpenAI's API as one of Anthropic's."""
    fault = said["error"]
    kind = "overloaded_error" if fault["type"] == "server_error" else fault["type"]
    details = {"details": fault["details"]} if "details" in fault else {}
    return {"type": "error", "error": {"type": kind, "message": fault["message"], **details}}


class MessageStream:
    """The message of a reply, while its chat completion arrives in chunks."""

    def __init__(self) -> None:
        self._begun = False
        self._open: tuple[Part, int] | None = None
        """The open content block: its kind, and the index of its tool call in the reply."""
        self._blocks = 0
        self._stop: Message = {"stop_reason": "end_turn", "stop_sequence": None}
        self._usage: Message = _usage({})

    async def events(self, chunks: AsyncIterator[Message]) -> AsyncIterator[Message]:
        async for chunk in chunks:
            for made in self._events_of(chunk):
                yield made
        if self._begun:
            for made in self._close():
                yield made
            yield {"type": "message_delta", "delta": self._stop, "usage": self._usage}
            yield {"type": "message_stop"}

    def _events_of(self, chunk: Message) -> Iterator[Message]:
        if chunk.get("usage"):
            self._usage = _usage(chunk["usage"])
        if not self._begun:
            self._begun = True
            yield {"type": "message_start", "message": _message(chunk["model"], self._usage)}
        for choice in chunk["choices"]:
            if choice.get("finish_reason"):
                self._stop = _stop(choice)
            for part in parts_of(choice["delta"]):
                yield from self._grow(*part)

    def _grow(self, kind: Part, call: Message, text: str) -> Iterator[Message]:
        if self._open != (kind, call.get("index", 0)):
            yield from self._close()
            self._open = (kind, call.get("index", 0))
            yield {"type": "content_block_start", "index": self._blocks, "content_block": _block(kind, call, "")}
        if text:
            delta_type, field = _DELTAS[kind]
            yield self._delta({"type": delta_type, field: text})

    def _close(self) -> Iterator[Message]:
        if self._open is None:
            return
        if self._open[0] == "reasoning":
            yield self._delta({"type": "signature_delta", "signature": ""})
        yield {"type": "content_block_stop", "index": self._blocks}
        self._blocks += 1
        self._open = None

    def _delta(self, delta: Message) -> Message:
        return {"type": "content_block_delta", "index": self._blocks, "delta": delta}


def _message(model: str, usage: Message) -> Message:
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def _stop(choice: Message) -> Message:
    """`stop_reason` of a chat choice is the stop sequence at which it ended, as vLLM has it."""
    sequence: Any = choice.get("stop_reason")
    if isinstance(sequence, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": sequence}
    return {"stop_reason": _STOP_REASONS.get(choice["finish_reason"], "end_turn"), "stop_sequence": None}


def _usage(usage: Message) -> Message:
    return {
        "input_tokens": usage.get("prompt_tokens", 0),
        "output_tokens": usage.get("completion_tokens", 0),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }


_INERT = {
    "cache_control": dict,
    "container": object,
    "inference_geo": str,
    "metadata": dict,
    "service_tier": str,
    "thinking": dict,
}
"""Accepted fields that do not affect sampling, with their types."""
_TRANSLATED = {
    "output_config",
    "output_format",
    "stop_sequences",
    "stream",
    "system",
    "tool_choice",
    "tools",
}
_ROLES = ("user", "assistant", "system")
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_request(body: Message) -> Message:
    """The chat request of `body`. Raises `BadRequest`."""
    chat = {name: value for name, value in body.items() if name not in _INERT.keys() | _TRANSLATED}
    check_types(body, _INERT)
    if body.get("thread") is not None:
        raise Unthreaded
    if not body.get("messages"):
        raise BadRequest("there are no messages", 'Give "messages": [{"role": "user", "content": "…"}].')
    system = body.get("system")
    opening = [{"role": "system", "content": joined_text(system, "system")}] if system else []
    said = objects(body["messages"], "messages", "message")
    chat["messages"] = opening + [
        made for number, message in enumerate(said) for made in _chat_messages(number, message)
    ]
    if body.get("stop_sequences"):
        if not isinstance(body["stop_sequences"], list):
            raise BadRequest(f"stop_sequences is {kind_of(body['stop_sequences'])}", "Give a list of texts.")
        chat["stop"] = body["stop_sequences"]
    if body.get("tools"):
        remedy = "Offer tools with an input_schema alone."
        chat["tools"] = function_tools(body["tools"], "custom", "input_schema", remedy)
    if body.get("tool_choice") is not None:
        chat |= _tool_choice(an_object(body["tool_choice"], "tool_choice"))
    form = body.get("output_format") or an_object(body.get("output_config") or {}, "output_config").get("format")
    if form is not None:
        schema = an_object(an_object(form, "the format").get("schema"), "the schema of the format")
        chat["response_format"] = {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}
    return chat


def _chat_messages(number: int, message: Message) -> list[Message]:
    where = f"message {number}"
    role = text(message, "role", where)
    if role not in _ROLES:
        raise BadRequest(
            f"{where} has the role {shown(role)}",
            f"Known: {', '.join(_ROLES)}. What a tool says is a tool_result of the user's.",
        )
    if not isinstance(message.get("content"), list):
        return [{"role": role, "content": text(message, "content", where)}]
    content = parts(message["content"], f"the content of {where}")
    if role == "assistant":
        return [_reply(where, content)]
    made: list[Message] = []
    for is_result, blocks in itertools.groupby(content, lambda block: block.get("type") == "tool_result"):
        if not is_result:
            made.append({"role": role, "content": joined_text(list(blocks), where)})
            continue
        for block in blocks:
            result = joined_text(block.get("content") or "", where)
            made.append({"role": "tool", "tool_call_id": text(block, "tool_use_id", where), "content": result})
    return made


def _reply(where: str, blocks: list[Message]) -> Message:
    thinking = "".join(text(block, "thinking", where) for block in blocks if block.get("type") == "thinking")
    texts = [block for block in blocks if block.get("type") not in ("thinking", "redacted_thinking", "tool_use")]
    reply: Message = {"role": "assistant", "content": joined_text(texts, where)}
    if thinking:
        reply["reasoning_content"] = thinking
    calls = [_call(where, block) for block in blocks if block.get("type") == "tool_use"]
    return reply | {"tool_calls": calls} if calls else reply


def _call(where: str, block: Message) -> Message:
    given = an_object(block.get("input"), f"the input of a tool_use in {where}")
    function = {"name": text(block, "name", where), "arguments": json.dumps(given, ensure_ascii=False)}
    return {"id": text(block, "id", where), "type": "function", "function": function}


def _tool_choice(choice: Message) -> Message:
    fields: Message = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
    kind = text(choice, "type", "tool_choice")
    if kind == "tool":
        name = text(choice, "name", "tool_choice")
        return fields | {"tool_choice": {"type": "function", "function": {"name": name}}}
    if kind not in _TOOL_CHOICES:
        raise BadRequest(f"tool_choice={shown(choice)} is not supported here", "Known: auto, any, tool, none.")
    return fields | {"tool_choice": _TOOL_CHOICES[kind]}


class MessagesApi:
    """The routes."""

    def __init__(self, chat: ChatCompletions) -> None:
        self._chat = chat
        self.routes = [
            route
            for path in ("/v1/messages", "/v1/v1/messages")
            for route in (
                Route(path, self._create, methods=["POST"]),
                Route(f"{path}/count_tokens", self._count, methods=["POST"]),
            )
        ]

    async def _create(self, request: Request) -> Response:
        body: Message = await object_of(request)
        asked = chat_request(body)
        if switch(body, "stream"):
            failed: Callable[[Message], bytes] = lambda said: event(error_object(said), "error")  # noqa: E731
            return await streamed_answer(request, self._events(asked), failed)
        return await json_answer(request, self._message(asked))

    async def _message(self, asked: Message) -> Message:
        return message(await self._chat.complete(asked))

    async def _events(self, asked: Message) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._chat.stream(asked | STREAMED)) as chunks:
            async for made in MessageStream().events(chunks):
                yield event(made, made["type"])

    async def _count(self, request: Request) -> Response:
        return JSONResponse({"input_tokens": self._chat.prompt_tokens(chat_request(await object_of(request)))})
