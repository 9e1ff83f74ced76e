"""`POST /v1/responses`: OpenAI's Responses API over chat completions, so that its conversations continue from sampled
tokens too.

    reasoning, message, function_call, function_call     ->   one assistant message, and back as output items
    function_call_output                                 ->   one tool message

Fields that both APIs have pass through, so what the endpoint does not know is refused there, by its name. A
conversation holds the messages of the one before it, so a chain of responses stores each message once. In a stream an
item is done when the next one begins, so no two are open at once.
"""

import uuid
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gavel.llm.types import Message
from gavel.trainer.serving.answers import BadRequest, event, json_answer, object_of, shown, streamed_answer
from gavel.trainer.serving.chat import ChatCompletions
from gavel.trainer.serving.chat_objects import Part, parts_of
from gavel.trainer.serving.chat_request import (
    STREAMED,
    an_object,
    check_types,
    function_tools,
    joined_text,
    objects,
    switch,
    text,
)

_ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal")
_INERT = {
    "include": list,
    "max_tool_calls": int,
    "metadata": dict,
    "moderation": object,
    "prompt_cache_key": str,
    "prompt_cache_options": dict,
    "prompt_cache_retention": str,
    "reasoning": dict,
    "safety_identifier": str,
    "service_tier": str,
    "store": bool,
    "stream_options": dict,
    "user": str,
}
"""Accepted fields that do not affect sampling, with their types."""
_TRANSLATED = {
    "background",
    "input",
    "instructions",
    "previous_response_id",
    "stream",
    "text",
    "tool_choice",
    "tools",
    "truncation",
}


def chat_request(body: Message, earlier: Sequence[Message], items: Sequence[Message]) -> Message:
    """The chat request of `body`, whose conversation is `earlier` and then `items`. Raises `BadRequest`."""
    _check(body)
    chat = {name: value for name, value in body.items() if name not in _INERT.keys() | _TRANSLATED}
    opening = chat_messages(input_items(body, "instructions", "system")) if body.get("instructions") else []
    chat["messages"] = [*opening, *earlier, *chat_messages(items)]
    if body.get("tools"):
        chat["tools"] = function_tools(body["tools"], "function", "parameters", "Offer function tools alone.")
    if body.get("tool_choice") is not None:
        chat["tool_choice"] = _tool_choice(body["tool_choice"])
    form = an_object(an_object(body.get("text") or {}, "text").get("format") or {"type": "text"}, "the format of text")
    kind = text(form, "type", "the format of text")
    if kind == "json_schema":
        named = {name: form[name] for name in ("name", "description", "schema", "strict") if name in form}
        chat["response_format"] = {"type": "json_schema", "json_schema": named}
    elif kind != "text":
        chat["response_format"] = form
    return chat


def input_items(body: Message, name: str = "input", role: str = "user") -> list[Message]:
    """The items of a field, which may be plain text of a role."""
    given: Any = body.get(name)
    if isinstance(given, str):
        return [{"role": role, "content": given}]
    return [] if given is None else objects(given, name, f"{name} item")


def chat_messages(items: Sequence[Message]) -> list[Message]:
    """The messages of input items; what one reply consists of becomes one assistant message."""
    messages: list[Message] = []
    reply: Message | None = None
    """The assistant message that the next item may still belong to."""
    for number, item in enumerate(items):
        kind, where = item.get("type") or "message", f"input item {number}"
        if kind == "reasoning":
            reply = {
                "role": "assistant",
                "content": "",
                "reasoning_content": joined_text(item.get("content") or item.get("summary") or [], where, _TEXT_PARTS),
            }
            messages.append(reply)
        elif kind == "function_call":
            if reply is None:
                reply = {"role": "assistant", "content": ""}
                messages.append(reply)
            given = item.get("arguments")
            arguments = given if isinstance(given, dict) else text(item, "arguments", where)
            function: Message = {"name": text(item, "name", where), "arguments": arguments}
            call_id = text(item, "call_id", where)
            reply.setdefault("tool_calls", []).append({"id": call_id, "type": "function", "function": function})
        elif kind == "message" and text(item, "role", where) == "assistant":
            if reply is None or reply["content"] or "tool_calls" in reply:
                reply = {"role": "assistant", "content": ""}
                messages.append(reply)
            reply["content"] = joined_text(item.get("content"), where, _TEXT_PARTS)
        elif kind == "message":
            reply = None
            if item["role"] not in _ROLES:
                raise BadRequest(
                    f"{where} has the role {shown(item['role'])}",
                    f"Known: {', '.join(_ROLES)}. What a tool says is a function_call_output.",
                )
            messages.append({"role": item["role"], "content": joined_text(item.get("content"), where, _TEXT_PARTS)})
        elif kind == "function_call_output":
            reply = None
            call_id = text(item, "call_id", where)
            said = joined_text(item.get("output"), f"the output of {where}", _TEXT_PARTS)
            messages.append({"role": "tool", "tool_call_id": call_id, "content": said})
        else:
            raise BadRequest(
                f"{where} is of type {shown(kind)}, which is not supported here",
                "Known: message, function_call, function_call_output, reasoning, item_reference.",
            )
    return messages


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, str):
        return choice
    if an_object(choice, "tool_choice").get("type") != "function":
        raise BadRequest(
            f"tool_choice={shown(choice)} is not supported here",
            "Known: auto, none, required, a function. To allow some tools alone, offer these alone.",
        )
    return {"type": "function", "function": {"name": text(choice, "name", "tool_choice")}}


def _check(body: Message) -> None:
    check_types(body, _INERT)
    if "message.output_text.logprobs" in (body.get("include") or ()) or body.get("top_logprobs"):
        raise BadRequest("log-probs of a response's text are not served here", "Ask /v1/chat/completions for them.")
    if body.get("background"):
        raise BadRequest("background=True is not supported here", "Leave background out.")
    if body.get("truncation") not in (None, "disabled"):
        raise BadRequest(
            f"truncation={shown(body['truncation'])} is not supported here", "Nothing is cut: leave truncation out."
        )


_ECHOED = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""Fields of a request that its response repeats, and what they are where it has none."""


def new_id(kind: str) -> str:
    """An id as OpenAI's: the kind (`resp`, `rs`, `msg`, `fc`) and what tells it from all others."""
    return f"{kind}_{uuid.uuid4().hex}"


def response_object(request: Message, model: str, response_id: str, created: int) -> Message:
    """A response in progress, without output."""
    echoed = {name: default if request.get(name) is None else request[name] for name, default in _ECHOED.items()}
    return {
        "id": response_id,
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [],
        "usage": None,
        **echoed,
    }


_ID_KINDS: dict[Part, str] = {"reasoning": "rs", "text": "msg", "call": "fc"}


def output_item(kind: Part, item_id: str, call: Message, text: str | None) -> Message:
    """`text` None: it has just begun."""
    own: Message = {"id": item_id, "status": "in_progress" if text is None else "completed"}
    match kind:
        case "reasoning":
            content = [{"type": "reasoning_text", "text": text}] if text else []
            return own | {"type": "reasoning", "summary": [], "content": content}
        case "text":
            content = [] if text is None else [text_part(text)]
            return own | {"type": "message", "role": "assistant", "content": content}
        case "call":
            name = (call.get("function") or {}).get("name") or ""
            return own | {
                "type": "function_call",
                "call_id": call.get("id") or "",
                "name": name,
                "arguments": text or "",
            }


def text_part(text: str) -> Message:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Message) -> Message:
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    thought = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": usage["total_tokens"],
    }


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


_EVENTS: dict[Part, str] = {
    "reasoning": "reasoning_text",
    "text": "output_text",
    "call": "function_call_arguments",
}
_LOGPROBS: dict[Part, Message] = {"text": {"logprobs": []}}
"""A field that clients expect of a text's events."""


class ResponseStream:
    """The response to a request, while its chat completion arrives in chunks."""

    def __init__(self, request: Message, response_id: str) -> None:
        self._request = request
        self._response_id = response_id
        self._begun: Message | None = None
        self._items: list[Message] = []
        self._open: tuple[Part, int] | None = None
        """The kind of the item that grows, and the index of its tool call in the reply."""
        self._id, self._text = "", ""
        self._call: Message = {}
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

    def response(self, completion: Message) -> Message:
        """The response that says what a whole completion says."""
        choice = completion["choices"][0]
        chunk = completion | {"choices": [choice | {"delta": choice["message"]}]}
        *_, last = (*self._events_of(chunk), *self._last_events())
        return last["response"]

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
            for part in parts_of(choice["delta"]):
                yield from self._grow(*part)

    def _last_events(self) -> Iterator[Message]:
        if self._begun is None:
            return
        if self._open is None or self._open[0] == "reasoning":  # a reply always has a message or a tool call
            yield from self._grow("text", {}, "")
        yield from self._close()
        cut = self._finish_reason == "length"
        if cut:
            self._items[-1] = self._items[-1] | {"status": "incomplete"}
        status = "incomplete" if cut else "completed"
        response = self._begun | {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self._items,
            "usage": self._usage and _usage(self._usage),
        }
        yield {"type": f"response.{status}", "response": response}

    def _grow(self, kind: Part, call: Message, text: str) -> Iterator[Message]:
        item: tuple[Part, int] = kind, call.get("index", 0)
        if self._open != item:
            yield from self._close()
            self._open, self._id, self._call, self._text = item, new_id(_ID_KINDS[kind]), call, ""
            yield self._event("output_item.added", item=output_item(kind, self._id, call, None))
            if kind != "call":
                yield self._in_item("content_part.added", part=self._part(kind))
        if text:
            self._text += text
            yield self._in_item(f"{_EVENTS[kind]}.delta", delta=text, **_LOGPROBS.get(kind, {}))

    def _close(self) -> Iterator[Message]:
        if self._open is None:
            return
        kind, done = self._open[0], f"{_EVENTS[self._open[0]]}.done"
        item = output_item(kind, self._id, self._call, self._text)
        if kind == "call":
            yield self._in_item(done, arguments=self._text, name=item["name"])
        else:
            yield self._in_item(done, text=self._text, **_LOGPROBS.get(kind, {}))
            yield self._in_item("content_part.done", part=self._part(kind))
        yield self._event("output_item.done", item=item)
        self._items.append(item)
        self._open = None

    def _part(self, kind: Part) -> Message:
        return text_part(self._text) if kind == "text" else {"type": "reasoning_text", "text": self._text}

    def _event(self, kind: str, **fields: Any) -> Message:
        return {"type": f"response.{kind}", "output_index": len(self._items), **fields}

    def _in_item(self, kind: str, **fields: Any) -> Message:
        within = {} if self._open is None or self._open[0] == "call" else {"content_index": 0}
        return self._event(kind, item_id=self._id, **within, **fields)


class ResponsesApi:
    """The route, and the responses that later ones go on from."""

    def __init__(self, chat: ChatCompletions) -> None:
        self._chat = chat
        self._store = ResponseStore()
        self.routes = [Route("/v1/responses", self._create, methods=["POST"])]

    async def _create(self, request: Request) -> Response:
        body: Message = await object_of(request)
        earlier = self._store.conversation(body.get("previous_response_id"))
        items = self._store.resolved(input_items(body))
        asked = chat_request(body, earlier, items)
        conversation = [*earlier, *chat_messages(items)]
        if switch(body, "stream"):
            stream = ResponseStream(body, new_id("resp"))
            events = self._events(body, conversation, stream, asked)
            return await streamed_answer(request, events, lambda said: _event(stream.failure(**said["error"])))
        return await json_answer(request, self._response(body, conversation, asked))

    async def _response(self, body: Message, conversation: list[Message], asked: Message) -> Message:
        made = ResponseStream(body, new_id("resp")).response(await self._chat.complete(asked))
        self._remember(body, conversation, made)
        return made

    async def _events(
        self, body: Message, conversation: list[Message], stream: ResponseStream, asked: Message
    ) -> AsyncGenerator[bytes, None]:
        """The response of the last event is stored before it is sent."""
        async with aclosing(self._chat.stream(asked | STREAMED)) as chunks:
            async for made in stream.events(chunks):
                if made["type"] in ("response.completed", "response.incomplete"):
                    self._remember(body, conversation, made["response"])
                yield _event(made)

    def _remember(self, body: Message, conversation: list[Message], made: Message) -> None:
        if body.get("store") is not False:
            output = made["output"]
            self._store.add(made["id"], [*conversation, *chat_messages(output)], output)


def _event(made: Message) -> bytes:
    return event(made, made["type"])
