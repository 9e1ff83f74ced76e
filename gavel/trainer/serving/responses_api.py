"""`POST /v1/responses`: OpenAI's Responses API over chat completions, so that its conversations continue from sampled
tokens too.

    reasoning, message, function_call, function_call     ->   one assistant message, and back as output items
    function_call_output                                 ->   one tool message

Fields that both APIs have pass through, so what the endpoint does not know is refused there, by its name. A
conversation holds the messages of the one before it, so a chain of responses stores each message once.
"""

import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from starlette.routing import Route

from gavel.llm.types import Message
from gavel.trainer.serving.answers import BadRequest, shown
from gavel.trainer.serving.chat import ChatCompletions
from gavel.trainer.serving.chat_request import Given, Off, Text, function_choice, function_tool, read
from gavel.trainer.serving.translation import Answer, Part, route


class _Reasoning(Given):
    type: Literal["reasoning"]
    content: Text | None = None
    summary: Text | None = None


class _Said(Given):
    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: Text


class _FunctionCall(Given):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str | dict[str, Any]


class _FunctionOutput(Given):
    type: Literal["function_call_output"]
    call_id: str
    output: Text


def _with_type(item: Any) -> Any:
    return item | {"type": item.get("type") or "message"} if isinstance(item, dict) else item


_Item = Annotated[
    Annotated[_Reasoning | _Said | _FunctionCall | _FunctionOutput, Field(discriminator="type")],
    BeforeValidator(_with_type),
]


class _Input(Given):
    remedies: ClassVar = {"input": "Known: message, function_call, function_call_output, reasoning, item_reference."}
    input: list[_Item]


class _Tool(Given):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _NamedFunction(Given):
    remedies: ClassVar = {
        "type": "Known as tool_choice: auto, none, required, a function. To allow some tools alone, offer these alone."
    }
    type: Literal["function"]
    name: str


class _TextSettings(Given):
    format: dict[str, Any] | None = None


class _ResponsesRequest(Given):
    """What has another name or form in chat completions."""

    model_config = ConfigDict(extra="allow")
    inert = frozenset({"max_tool_calls", "metadata", "moderation", "prompt_cache_key", "prompt_cache_options"}) | {
        *("prompt_cache_retention", "reasoning", "safety_identifier", "service_tier", "stream_options", "user"),
    }
    remedies: ClassVar = {
        "tools": "Offer function tools alone.",
        "truncation": "Nothing is cut: leave truncation out.",
    }

    background: Off = None
    include: list[Any] | None = None
    input: Any = None
    instructions: Any = None
    previous_response_id: str | None = None
    store: bool = True
    stream: bool = False
    text: _TextSettings = _TextSettings()
    tool_choice: str | dict[str, Any] | None = None
    tools: list[_Tool] | None = None
    truncation: Literal["disabled"] | None = None


def chat_request(body: Message, earlier: Sequence[Message], items: Sequence[Message]) -> Message:
    """The chat request of `body`, whose conversation is `earlier` and then `items`. Raises `BadRequest`."""
    asked = read(_ResponsesRequest, body)
    if "message.output_text.logprobs" in (asked.include or ()):
        raise BadRequest("log-probs of a response's text are not served here", "Ask /v1/chat/completions for them.")
    chat: Message = {**(asked.model_extra or {})}
    chat["messages"] = [*chat_messages(input_items(body, "instructions", "system")), *earlier, *chat_messages(items)]
    if asked.tools:
        chat["tools"] = [function_tool(each.name, each.description, each.parameters) for each in asked.tools]
    if (choice := asked.tool_choice) is not None:
        chat["tool_choice"] = choice if isinstance(choice, str) else function_choice(read(_NamedFunction, choice).name)
    match asked.text.format:
        case None | {"type": "text"}:
            pass
        case {"type": "json_schema"} as form:
            named = {name: form[name] for name in ("name", "description", "schema", "strict") if name in form}
            chat["response_format"] = {"type": "json_schema", "json_schema": named}
        case form:
            chat["response_format"] = form
    return chat


def input_items(body: Message, name: str = "input", role: str = "user") -> list[Any]:
    """The items of a field, which may be plain text of a role. Raises `BadRequest`."""
    given: Any = body.get(name)
    if isinstance(given, str):
        return [{"role": role, "content": given}] if given or name == "input" else []
    if not isinstance(given, list | None):
        raise BadRequest(f"{name} is {shown(given)}", "Give a text, or a list of items: [{…}].")
    return given or []


def chat_messages(items: Sequence[Message]) -> list[Message]:
    """The messages of input items; what one reply consists of becomes one assistant message. Raises `BadRequest`."""
    messages: list[Message] = []
    for item in read(_Input, {"input": items}).input:
        match item:
            case _FunctionOutput():
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": item.output})
            case _Said(role="user" | "system" | "developer"):
                messages.append({"role": item.role, "content": item.content})
            case _Reasoning():
                messages.append(_reply() | {"reasoning_content": item.content or item.summary or ""})
            case _Said():
                reply = messages[-1] if messages else {}
                if reply.get("role") != "assistant" or reply["content"] or "tool_calls" in reply:
                    messages.append(reply := _reply())
                reply["content"] = item.content
            case _FunctionCall():
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append(_reply())
                function = {"name": item.name, "arguments": item.arguments}
                call = {"id": item.call_id, "type": "function", "function": function}
                messages[-1].setdefault("tool_calls", []).append(call)
    return messages


def _reply() -> Message:
    return {"role": "assistant", "content": ""}


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
_STORED = 4096
"""Responses that are kept; of more, the one that was used least recently is forgotten."""


class ResponseStore:
    """The conversations of responses, without their instructions, and their output items by id."""

    def __init__(self) -> None:
        self._responses: OrderedDict[str, tuple[list[Message], dict[str, Message]]] = OrderedDict()

    def add(self, response_id: str, conversation: Sequence[Message], output: Sequence[Message]) -> None:
        """`conversation` ends with the reply, whose items are `output`."""
        self._responses[response_id] = [*conversation], {item["id"]: item for item in output}
        while len(self._responses) > _STORED:
            self._responses.popitem(last=False)

    def conversation(self, response_id: Any) -> list[Message]:
        """The messages up to a response; none for None. Raises `BadRequest` for one that is not stored."""
        if response_id is None:
            return []
        if not isinstance(response_id, str) or response_id not in self._responses:
            raise _not_stored(f"previous_response_id={shown(response_id)}", "the whole conversation as input")
        self._responses.move_to_end(response_id)
        return self._responses[response_id][0]

    def resolved(self, items: Sequence[Any]) -> list[Any]:
        """`items` with those that they refer to. Raises `BadRequest` for one that is not stored."""
        refers: Callable[[Any], bool] = lambda item: isinstance(item, dict) and item.get("type") == "item_reference"  # noqa: E731
        return [self._item(str(item.get("id"))) if refers(item) else item for item in items]

    def _item(self, item_id: str) -> Message:
        for _, output in reversed(self._responses.values()):
            if item_id in output:
                return output[item_id]
        raise _not_stored(f"the item {shown(item_id)}", "the item itself")


def _not_stored(what: str, instead: str) -> BadRequest:
    return BadRequest(f"{what} is not stored here", f"Send {instead}, and do not set store to false.")


_ID_KINDS: dict[Part, str] = {"reasoning": "rs", "text": "msg", "call": "fc"}
_EVENTS: dict[Part, str] = {"reasoning": "reasoning_text", "text": "output_text", "call": "function_call_arguments"}
_LOGPROBS: dict[Part, Message] = {"text": {"logprobs": []}}
"""A field that clients expect of a text's events."""


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


class ResponseAnswer(Answer):
    """The response to a request, while its chat completion arrives in chunks."""

    def __init__(self, request: Message, done: Callable[[Message], None] = lambda response: None) -> None:
        """`done` takes the whole response before it is sent."""
        super().__init__()
        self._request, self._done = request, done
        self._response: Message = {}
        self._items: list[Message] = []
        self._id, self._text = "", ""
        self._call: Message = {}
        self._sent = 0

    async def events(self, chunks: AsyncIterator[Message]) -> AsyncIterator[Message]:
        async for each in super().events(chunks):
            yield self._numbered(each)

    def whole(self, completion: Message) -> Message:
        choice = completion["choices"][0]
        chunk = completion | {"choices": [choice | {"delta": choice["message"]}]}
        *_, last = (*self.take(chunk), *self.end())
        return last["response"]

    def failure(self, said: Message) -> Message:
        fault = said["error"]
        return self._numbered({"type": "error", "code": fault["code"], "message": fault["message"], "param": None})

    def _numbered(self, event: Message) -> Message:
        self._sent += 1
        return event | {"sequence_number": self._sent - 1}

    def begin(self, chunk: Message) -> Iterator[Message]:
        asked = {name: value for name, value in self._request.items() if value is not None}
        self._response = {
            "id": _new_id("resp"),
            "object": "response",
            "created_at": chunk["created"],
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": chunk["model"],
            "output": [],
            "usage": None,
            **{name: asked.get(name, default) for name, default in _ECHOED.items()},
        }
        yield {"type": "response.created", "response": self._response}
        yield {"type": "response.in_progress", "response": self._response}

    def start(self, kind: Part, call: Message) -> Iterator[Message]:
        self._id, self._call, self._text = _new_id(_ID_KINDS[kind]), call, ""
        yield self._event("output_item.added", item=self._item(kind, "in_progress"))
        if kind != "call":
            yield self._event("content_part.added", kind, part=self._part(kind))

    def more(self, kind: Part, text: str) -> Message:
        self._text += text
        return self._event(f"{_EVENTS[kind]}.delta", kind, delta=text, **_LOGPROBS.get(kind, {}))

    def stop(self, kind: Part) -> Iterator[Message]:
        item, done = self._item(kind, "completed"), f"{_EVENTS[kind]}.done"
        if kind == "call":
            yield self._event(done, kind, arguments=self._text, name=item["name"])
        else:
            yield self._event(done, kind, text=self._text, **_LOGPROBS.get(kind, {}))
            yield self._event("content_part.done", kind, part=self._part(kind))
        yield self._event("output_item.done", item=item)
        self._items.append(item)

    def end(self) -> Iterator[Message]:
        if self.item is None or self.item[0] == "reasoning":  # a reply always has a message or a tool call
            yield from self.grow("text", {}, "")
        yield from self.close()
        status, details = "completed", None
        if self.choice["finish_reason"] == "length":
            status, details = "incomplete", {"reason": "max_output_tokens"}
            self._items[-1] = self._items[-1] | {"status": status}
        done = {"status": status, "incomplete_details": details, "output": self._items, "usage": _usage(self.usage)}
        self._done(self._response | done)
        yield {"type": f"response.{status}", "response": self._response | done}

    def _item(self, kind: Part, status: str) -> Message:
        own: Message = {"id": self._id, "status": status}
        match kind:
            case "reasoning":
                return own | {"type": "reasoning", "summary": [], "content": [self._part(kind)] if self._text else []}
            case "text":
                content = [] if status == "in_progress" else [self._part(kind)]
                return own | {"type": "message", "role": "assistant", "content": content}
            case "call":
                name, call_id = (self._call.get("function") or {}).get("name") or "", self._call.get("id") or ""
                return own | {"type": "function_call", "call_id": call_id, "name": name, "arguments": self._text}

    def _part(self, kind: Part) -> Message:
        if kind == "reasoning":
            return {"type": "reasoning_text", "text": self._text}
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": []}

    def _event(self, name: str, within: Part | None = None, /, **fields: Any) -> Message:
        """An event of the open item, or, with its kind, `within` it."""
        place: Message = {} if within is None else {"item_id": self._id}
        if within in ("reasoning", "text"):
            place["content_index"] = 0
        return {"type": f"response.{name}", "output_index": len(self._items), **place, **fields}


def _usage(usage: Message) -> Message:
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }


def routes(chat: ChatCompletions) -> list[Route]:
    """The route, whose responses later ones can go on from."""
    store = ResponseStore()

    def translate(body: Message) -> tuple[Message, Answer]:
        earlier = store.conversation(body.get("previous_response_id"))
        items = store.resolved(input_items(body))
        asked = chat_request(body, earlier, items)

        def remember(made: Message) -> None:
            if body.get("store") is not False:
                said = [*chat_messages(items), *chat_messages(made["output"])]
                store.add(made["id"], [*earlier, *said], made["output"])

        return asked, ResponseAnswer(body, remember)

    return [route("/v1/responses", chat, translate)]
