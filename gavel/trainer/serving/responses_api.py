"""`POST /v1/responses`: OpenAI's Responses API over chat completions, so that its conversations continue from sampled
tokens too.

    reasoning, message, function_call, function_call     ->   one assistant message, and back as output items
    function_call_output                                 ->   one tool message

Fields that both APIs have pass through, so what the endpoint does not know is refused there, by its name. A
conversation holds the messages of the one before it, so a chain of responses stores each message once.
"""

import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from starlette.routing import Route

from gavel.llm.types import Message
from gavel.trainer.serving.answers import BadRequest, shown, translated
from gavel.trainer.serving.chat import ChatCompletions
from gavel.trainer.serving.chat_objects import Part, parts_of
from gavel.trainer.serving.chat_request import Given, Off, Text, function_choice, function_tool, read


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


def response_object(request: Message, completion: Message) -> Message:
    """The response to `request` that says what `completion` does."""
    asked = {name: value for name, value in request.items() if value is not None}
    choice = completion["choices"][0]
    items = [_item(*part) for part in parts_of(choice["message"])]
    if all(item["type"] == "reasoning" for item in items):  # a reply always has a message or a tool call
        items.append(_item("text", {}, ""))
    cut = choice["finish_reason"] == "length"
    if cut:
        items[-1]["status"] = "incomplete"
    return {
        "id": _new_id("resp"),
        "object": "response",
        "created_at": completion["created"],
        "status": "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "model": completion["model"],
        "output": items,
        "usage": _usage(completion["usage"]),
        **{name: asked.get(name, default) for name, default in _ECHOED.items()},
    }


def _item(kind: Part, call: Message, text: str) -> Message:
    done = {"status": "completed"}
    match kind:
        case "reasoning":
            part = {"type": "reasoning_text", "text": text}
            return {"id": _new_id("rs"), **done, "type": "reasoning", "summary": [], "content": [part]}
        case "text":
            part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            return {"id": _new_id("msg"), **done, "type": "message", "role": "assistant", "content": [part]}
        case "call":
            called = {"call_id": call["id"], "name": call["function"]["name"], "arguments": text}
            return {"id": _new_id("fc"), **done, "type": "function_call", **called}


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


def response_events(response: Message) -> Iterator[Message]:
    """The events of a stream that says `response`."""
    begun = response | {"status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    events: list[tuple[str, Message]] = [(name, {"response": begun}) for name in ("created", "in_progress")]
    for index, item in enumerate(response["output"]):
        place = {"output_index": index}
        inside = {**place, "item_id": item["id"]}
        empty = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
        events.append(("output_item.added", {**place, "item": item | {"status": "in_progress"} | empty}))
        for part in item.get("content", ()):
            inside["content_index"] = 0
            kind, said = part["type"], {"logprobs": []} if part["type"] == "output_text" else {}
            events.append(("content_part.added", {**inside, "part": part | {"text": ""}}))
            events.append((f"{kind}.delta", {**inside, **said, "delta": part["text"]}))
            events.append((f"{kind}.done", {**inside, **said, "text": part["text"]}))
            events.append(("content_part.done", {**inside, "part": part}))
        if item["type"] == "function_call":
            events.append(("function_call_arguments.delta", {**inside, "delta": item["arguments"]}))
            done = {"arguments": item["arguments"], "name": item["name"]}
            events.append(("function_call_arguments.done", {**inside, **done}))
        events.append(("output_item.done", {**place, "item": item}))
    events.append((response["status"], {"response": response}))
    for number, (name, fields) in enumerate(events):
        yield {"type": f"response.{name}", **fields, "sequence_number": number}


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

    def translate(body: Message) -> tuple[Message, Callable[[Message], Message]]:
        earlier = store.conversation(body.get("previous_response_id"))
        items = store.resolved(input_items(body))
        asked = chat_request(body, earlier, items)

        def answer(completion: Message) -> Message:
            made = response_object(body, completion)
            if body.get("store") is not False:
                said = [*chat_messages(items), *chat_messages(made["output"])]
                store.add(made["id"], [*earlier, *said], made["output"])
            return made

        return asked, answer

    return [translated("/v1/responses", chat.complete, translate, response_events)]
