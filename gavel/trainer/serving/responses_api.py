"""`POST /v1/responses`: OpenAI's Responses API over chat completions, so that its conversations continue from sampled
tokens too.

Responses that a later request may go on from, by `previous_response_id`, or refer to item by item.

A conversation holds the messages of the one before it, so a chain of responses stores each message once.

Chunks of a chat completion as the events of a streamed response.

    reasoning, text, tool call   ->   for each an output item: added, deltas, done

An item is done when the next one begins, so no two are open at once.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gavel.llm.types import Message
from gavel.trainer.serving.body_fields import text
from gavel.trainer.serving.chat import ChatCompletions
from gavel.trainer.serving.chat_request import switch
from gavel.trainer.serving.errors import ANSWERED, BadRequest, shown
from gavel.trainer.serving.responses_objects import (
    call_item,
    complete,
    message_item,
    new_id,
    reasoning_item,
    response,
    response_object,
    text_part,
)
from gavel.trainer.serving.responses_request import chat_messages, chat_request, input_items, shows_logprobs
from gavel.trainer.serving.sse import event, json_answer, object_of, refused, streamed_answer
from gavel.trainer.serving.text_logprobs import TextLogprobs

_STORED = 4096
"""Responses that are kept; of more, the one that was used least recently is forgotten."""


class ResponseStore:
    """The conversations of responses, without their instructions."""

    def __init__(self) -> None:
        self._conversations: OrderedDict[str, list[Message]] = OrderedDict()
        self._items: dict[str, Message] = {}
        self._items_of: dict[str, list[str]] = {}

    def add(self, response_id: str, conversation: Sequence[Message], output: Sequence[Message]) -> None:
        """`conversation` ends with the reply, whose items are `output`."""
        self._conversations[response_id] = list(conversation)
        self._items_of[response_id] = [item["id"] for item in output]
        self._items |= {item["id"]: item for item in output}
        while len(self._conversations) > _STORED:
            oldest, _ = self._conversations.popitem(last=False)
            for item_id in self._items_of.pop(oldest):
                del self._items[item_id]

    def conversation(self, response_id: str | None) -> list[Message]:
        """The messages up to a response; none for None. Raises `BadRequest` for one that is not stored."""
        if response_id is None:
            return []
        if not isinstance(response_id, str) or response_id not in self._conversations:
            raise BadRequest(
                f"previous_response_id={shown(response_id)} is not stored here",
                "Send the whole conversation as input, and do not set store to false.",
            )
        self._conversations.move_to_end(response_id)
        return self._conversations[response_id]

    def resolved(self, items: Sequence[Message]) -> list[Message]:
        """`items` with those that they refer to. Raises `BadRequest` for one that is not stored."""
        return [
            self._item(text(item, "id", "an item_reference")) if item.get("type") == "item_reference" else item
            for item in items
        ]

    def _item(self, item_id: str) -> Message:
        if item_id not in self._items:
            raise BadRequest(
                f"the item {item_id!r} is not stored here", "Send the item itself, and do not set store to false."
            )
        return self._items[item_id]


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
            for each in self._events_of(chunk):
                yield self._numbered(each)
        for each in self._last_events():
            yield self._numbered(each)

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


class ResponsesApi:
    """The route, and the responses that later ones go on from."""

    def __init__(self, chat: ChatCompletions) -> None:
        self._chat = chat
        self._store = ResponseStore()
        self.routes = [Route("/v1/responses", self._create, methods=["POST"])]

    async def _create(self, request: Request) -> Response:
        try:
            body: Message = await object_of(request)
            earlier = self._store.conversation(body.get("previous_response_id"))
            items = self._store.resolved(input_items(body))
            asked = chat_request(body, earlier, items)
            conversation = [*earlier, *chat_messages(items)]
            streams = switch(body, "stream")
        except ANSWERED as error:
            return refused(error)
        if streams:
            stream = ResponseStream(body, new_id("resp"))
            events = self._events(body, conversation, stream, asked)
            return await streamed_answer(request, events, lambda said: _event(stream.failure(**said["error"])))
        return await json_answer(request, self._response(body, conversation, asked))

    async def _response(self, body: Message, conversation: list[Message], asked: Message) -> Message:
        made = response(body, await self._chat.complete(asked), new_id("resp"))
        self._remember(body, conversation, made)
        return made

    async def _events(
        self, body: Message, conversation: list[Message], stream: ResponseStream, asked: Message
    ) -> AsyncGenerator[bytes, None]:
        """The response of the last event is stored before it is sent."""
        chunks = self._chat.stream(asked | {"stream": True, "stream_options": {"include_usage": True}})
        try:
            async for made in stream.events(chunks):
                if made["type"] in ("response.completed", "response.incomplete"):
                    self._remember(body, conversation, made["response"])
                yield _event(made)
        finally:
            await chunks.aclose()

    def _remember(self, body: Message, conversation: list[Message], made: Message) -> None:
        if body.get("store") is not False:
            output = made["output"]
            self._store.add(made["id"], [*conversation, *chat_messages(output)], output)


def _event(made: Message) -> bytes:
    return event(made, made["type"])
