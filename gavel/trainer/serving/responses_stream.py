"""Chunks of a chat completion as the events of a streamed response.

    reasoning, text, tool call   ->   for each an output item: added, deltas, done

An item is done when the next one begins, so no two are open at once.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

from gavel.llm.types import Message
from gavel.trainer.serving.responses_objects import (
    call_item,
    complete,
    message_item,
    new_id,
    reasoning_item,
    response_object,
    text_part,
)
from gavel.trainer.serving.responses_request import shows_logprobs
from gavel.trainer.serving.text_logprobs import TextLogprobs

_Kind = Literal["reasoning", "text", "call"]
_EVENTS: dict[_Kind, str] = {
    "reasoning": "response.reasoning_text",
    "text": "response.output_text",
    "call": "response.function_call_arguments",
}
_ID_KINDS: dict[_Kind, str] = {"reasoning": "rs", "text": "msg", "call": "fc"}


class ResponseStream:
    """The response to a request, while its chat completion arrives in chunks."""

    def __init__(self, request: Message, response_id: str) -> None:
        self._request = request
        self._response_id = response_id
        self._begun: Message | None = None
        self._items: list[Message] = []
        self._open: _OpenItem | None = None
        self._logprobs = TextLogprobs()
        self._shows_logprobs = shows_logprobs(request)
        self._sent = 0
        self._finish_reason: str | None = None
        self._usage: Message | None = None

    async def events(self, chunks: AsyncIterator[Message]) -> AsyncIterator[Message]:
        """The events, numbered; the last one holds the whole response."""
        async for chunk in chunks:
            for event in self._events_of(chunk):
                yield self._numbered(event)
        for event in self._last_events():
            yield self._numbered(event)

    def failure(self, code: str, message: str, **others: Any) -> Message:
        """The event that ends a stream which cannot go on, of the fields of an error object."""
        return self._numbered({"type": "error", "code": code, "message": message, "param": None})

    def _numbered(self, event: Message) -> Message:
        self._sent += 1
        return event | {"sequence_number": self._sent - 1}

    def _events_of(self, chunk: Message) -> Iterator[Message]:
        if self._begun is None:
            self._begun = response_object(self._request, chunk["model"], self._response_id, chunk["created"])
            yield {"type": "response.created", "response": self._begun}
            yield {"type": "response.in_progress", "response": self._begun}
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk["choices"]:
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            delta = choice["delta"]
            if self._shows_logprobs and choice.get("logprobs"):
                self._logprobs.add(choice["logprobs"]["content"])
            if delta.get("reasoning_content"):
                yield from self._grow("reasoning", {}, delta["reasoning_content"])
            if delta.get("content"):
                yield from self._grow("text", {}, delta["content"])
            for call in delta.get("tool_calls") or ():
                yield from self._grow("call", call, (call.get("function") or {}).get("arguments") or "")

    def _last_events(self) -> Iterator[Message]:
        if self._begun is None:
            return
        if self._open is None or self._open.kind == "reasoning":  # a reply always has a message or a tool call
            yield from self._grow("text", {}, "")
        yield from self._close()
        response = complete(self._begun, self._items, self._finish_reason, self._usage)
        yield {"type": f"response.{response['status']}", "response": response}

    def _grow(self, kind: _Kind, call: Message, text: str) -> Iterator[Message]:
        index = call.get("index", 0)
        if self._open is None or (self._open.kind, self._open.index) != (kind, index):
            yield from self._close()
            self._open = _OpenItem(kind, len(self._items), index, call)
            yield from self._open.begin()
        if text:
            yield self._open.grow(text, self._logprobs.of(text))

    def _close(self) -> Iterator[Message]:
        if self._open is not None:
            yield from self._open.end()
            self._items.append(self._open.item("completed"))
            self._open = None


class _OpenItem:
    """The output item that grows."""

    def __init__(self, kind: _Kind, position: int, index: int, call: Message) -> None:
        """`index`: of the tool call in the reply. `call`: its first delta."""
        self.kind: _Kind = kind
        self.index = index
        self._text = ""
        self._logprobs: list[Message] = []
        self._call_id: str = call.get("id") or ""
        self._name: str = (call.get("function") or {}).get("name") or ""
        self._id = new_id(_ID_KINDS[kind])
        self._position = position

    def item(self, status: str) -> Message:
        match self.kind:
            case "reasoning":
                return reasoning_item(self._id, self._text or None, status)
            case "text":
                text = None if status == "in_progress" else self._text
                return message_item(self._id, text, status, self._logprobs)
            case "call":
                return call_item(self._id, self._call_id, self._name, self._text, status)

    def begin(self) -> Iterator[Message]:
        item = self.item("in_progress")
        yield {"type": "response.output_item.added", "output_index": self._position, "item": item}
        if self.kind != "call":
            yield self._event("response.content_part.added", part=self._part())

    def grow(self, text: str, logprobs: list[Message]) -> Message:
        self._text += text
        self._logprobs += logprobs
        return self._event(f"{_EVENTS[self.kind]}.delta", delta=text, **self._shown(logprobs))

    def end(self) -> Iterator[Message]:
        done = f"{_EVENTS[self.kind]}.done"
        if self.kind == "call":
            yield self._event(done, arguments=self._text, name=self._name)
        else:
            yield self._event(done, text=self._text, **self._shown(self._logprobs))
            yield self._event("response.content_part.done", part=self._part())
        item = self.item("completed")
        yield {"type": "response.output_item.done", "output_index": self._position, "item": item}

    def _part(self) -> Message:
        if self.kind == "text":
            return text_part(self._text, self._logprobs)
        return {"type": "reasoning_text", "text": self._text}

    def _shown(self, logprobs: list[Message]) -> Message:
        return {"logprobs": logprobs} if self.kind == "text" else {}

    def _event(self, kind: str, **fields: Any) -> Message:
        within = {} if self.kind == "call" else {"content_index": 0}
        return {"type": kind, "item_id": self._id, "output_index": self._position, **within, **fields}
