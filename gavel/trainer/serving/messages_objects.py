"""A chat completion as a message of Anthropic's API, whole or as the events of a stream."""

import json
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

from gavel.llm.types import Message

_Kind = Literal["thinking", "text", "tool_use"]
_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}
_DELTAS: dict[_Kind, tuple[str, str]] = {
    "thinking": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "tool_use": ("input_json_delta", "partial_json"),
}


def message(completion: Message) -> Message:
    """The message that says what `completion` says."""
    choice = completion["choices"][0]
    return _message(completion["model"], _usage(completion["usage"])) | {
        "content": content_blocks(choice["message"]),
        **_stop(choice),
    }


def content_blocks(reply: Message) -> list[Message]:
    """Thinking, text and tool calls of an assistant message."""
    blocks: list[Message] = []
    if reply.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": reply["reasoning_content"], "signature": ""})
    if reply.get("content"):
        blocks.append({"type": "text", "text": reply["content"]})
    for call in reply.get("tool_calls") or ():
        function = call["function"]
        given = _input(function["arguments"])
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": given})
    return blocks


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
        self._open: tuple[_Kind, int] | None = None
        """Of the block that grows: its kind, and the index of its tool call in the reply."""
        self._blocks = 0
        self._stop: Message = {"stop_reason": "end_turn", "stop_sequence": None}
        self._usage: Message = _usage({})

    async def events(self, chunks: AsyncIterator[Message]) -> AsyncIterator[Message]:
        async for chunk in chunks:
            for event in self._events_of(chunk):
                yield event
        if self._begun:
            for event in self._close():
                yield event
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
            delta = choice["delta"]
            if delta.get("reasoning_content"):
                yield from self._grow("thinking", {}, delta["reasoning_content"])
            if delta.get("content"):
                yield from self._grow("text", {}, delta["content"])
            for call in delta.get("tool_calls") or ():
                yield from self._grow("tool_use", call, (call.get("function") or {}).get("arguments") or "")

    def _grow(self, kind: _Kind, call: Message, text: str) -> Iterator[Message]:
        if self._open != (kind, call.get("index", 0)):
            yield from self._close()
            self._open = (kind, call.get("index", 0))
            yield {"type": "content_block_start", "index": self._blocks, "content_block": _empty_block(kind, call)}
        if text:
            delta_type, field = _DELTAS[kind]
            yield self._delta({"type": delta_type, field: text})

    def _close(self) -> Iterator[Message]:
        if self._open is None:
            return
        if self._open[0] == "thinking":
            yield self._delta({"type": "signature_delta", "signature": ""})
        yield {"type": "content_block_stop", "index": self._blocks}
        self._blocks += 1
        self._open = None

    def _delta(self, delta: Message) -> Message:
        return {"type": "content_block_delta", "index": self._blocks, "delta": delta}


def _empty_block(kind: _Kind, call: Message) -> Message:
    match kind:
        case "thinking":
            return {"type": "thinking", "thinking": "", "signature": ""}
        case "text":
            return {"type": "text", "text": ""}
        case "tool_use":
            name = (call.get("function") or {}).get("name") or ""
            return {"type": "tool_use", "id": call.get("id") or "", "name": name, "input": {}}


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
