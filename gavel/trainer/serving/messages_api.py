"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's Messages API over chat completions, so that its
conversations continue from sampled tokens too.

    thinking, text, tool_use   ->   one assistant message
    tool_result                ->   one tool message; text beside it is a user message

Cache marks and what else changes nothing that is sampled are left out. Fields that both APIs have pass through, so what
the endpoint does not know is refused there, by its name. Anthropic's clients add `/v1` to their base URL; one that is
given OpenAI's asks `/v1/v1`, which is served too.
"""

import json
import uuid
from collections.abc import Iterator
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gavel.llm.types import Message
from gavel.trainer.serving.answers import BadRequest, object_of, translated
from gavel.trainer.serving.chat import ChatCompletions
from gavel.trainer.serving.chat_objects import Part, parts_of
from gavel.trainer.serving.chat_request import Given, Text, function_choice, function_tool, read

_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


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


def message_object(completion: Message) -> Message:
    choice = completion["choices"][0]
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": completion["model"],
        "content": [_block(*part) for part in parts_of(choice["message"])],
        **_stop(choice),
        "usage": {
            "input_tokens": completion["usage"]["prompt_tokens"],
            "output_tokens": completion["usage"]["completion_tokens"],
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        },
    }


def message_events(message: Message) -> Iterator[Message]:
    """The events of a stream that says `message`."""
    stopped = {name: message[name] for name in ("stop_reason", "stop_sequence")}
    begun = {"content": [], **dict.fromkeys(stopped), "usage": message["usage"] | {"output_tokens": 0}}
    yield {"type": "message_start", "message": message | begun}
    for index, block in enumerate(message["content"]):
        place = {"index": index}
        match block:
            case {"type": "thinking"}:
                empty, delta = {"thinking": ""}, {"type": "thinking_delta", "thinking": block["thinking"]}
            case {"type": "text"}:
                empty, delta = {"text": ""}, {"type": "text_delta", "text": block["text"]}
            case _:
                said = json.dumps(block["input"])
                empty, delta = {"input": {}}, {"type": "input_json_delta", "partial_json": said}
        yield {"type": "content_block_start", **place, "content_block": block | empty}
        yield {"type": "content_block_delta", **place, "delta": delta}
        yield {"type": "content_block_stop", **place}
    yield {"type": "message_delta", "delta": stopped, "usage": message["usage"]}
    yield {"type": "message_stop"}


def _stop(choice: Message) -> Message:
    """`stop_reason` of a chat choice is the stop sequence at which it ended, as vLLM has it."""
    if isinstance(sequence := choice.get("stop_reason"), str):
        return {"stop_reason": "stop_sequence", "stop_sequence": sequence}
    return {"stop_reason": _STOP_REASONS.get(choice["finish_reason"], "end_turn"), "stop_sequence": None}


class _TextBlock(Given):
    type: Literal["text"]
    text: str


class _Thinking(Given):
    type: Literal["thinking", "redacted_thinking"]
    thinking: str = ""


class _ToolUse(Given):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class _ToolResult(Given):
    type: Literal["tool_result"]
    tool_use_id: str
    content: Text | None = None


_AsBlocks = BeforeValidator(lambda given: [{"type": "text", "text": given}] if isinstance(given, str) else given)


class _Reply(Given):
    role: Literal["assistant"]
    content: Annotated[list[Annotated[_TextBlock | _Thinking | _ToolUse, Field(discriminator="type")]], _AsBlocks]

    def chat_messages(self) -> Iterator[Message]:
        reply: Message = {"role": "assistant", "content": ""}
        for block in self.content:
            match block:
                case _TextBlock():
                    reply["content"] += block.text
                case _Thinking():
                    reply["reasoning_content"] = reply.get("reasoning_content", "") + block.thinking
                case _ToolUse():
                    function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
                    call = {"id": block.id, "type": "function", "function": function}
                    reply.setdefault("tool_calls", []).append(call)
        yield {name: value for name, value in reply.items() if value or name == "content"}


class _Said(Given):
    role: Literal["user", "system"]
    content: Annotated[list[Annotated[_TextBlock | _ToolResult, Field(discriminator="type")]], _AsBlocks]

    def chat_messages(self) -> Iterator[Message]:
        for kind, same in groupby(self.content, type):
            blocks = [*same]
            if kind is _TextBlock:
                yield {"role": self.role, "content": "".join(each.text for each in blocks if each.type == "text")}
            for each in blocks:
                if each.type == "tool_result":
                    yield {"role": "tool", "tool_call_id": each.tool_use_id, "content": each.content or ""}


class _Tool(Given):
    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class _ToolChoice(Given):
    type: Literal["auto", "any", "none", "tool"]
    name: str = ""
    disable_parallel_tool_use: bool | None = None


class _Format(Given):
    json_schema: dict[str, Any] = Field(alias="schema")


class _OutputConfig(Given):
    format: _Format | None = None


class _MessagesRequest(Given):
    """What has another name or form in chat completions."""

    model_config = ConfigDict(extra="allow")
    inert = frozenset({"cache_control", "container", "inference_geo", "metadata", "service_tier", "thinking"})
    remedies: ClassVar = {
        "messages": 'Give text: [{"role": "user", "content": "…"}]; what a tool says is a tool_result of the user.',
        "tools": "Offer tools with an input_schema alone.",
    }

    messages: Annotated[list[Annotated[_Reply | _Said, Field(discriminator="role")]], Field(min_length=1)]
    system: Text = ""
    tools: list[_Tool] | None = None
    tool_choice: _ToolChoice | None = None
    stop_sequences: list[Any] | None = None
    output_format: _Format | None = None
    output_config: _OutputConfig = _OutputConfig()
    stream: bool = False


def chat_request(body: Message) -> Message:
    """The chat request of `body`. Raises `BadRequest`."""
    if body.get("thread") is not None:
        details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}  # clients go on without one
        raise BadRequest("thread is not supported here", "Send the whole conversation as messages.", details=details)
    asked = read(_MessagesRequest, body)
    chat: Message = {**(asked.model_extra or {})}
    opening = [{"role": "system", "content": asked.system}] if asked.system else []
    chat["messages"] = [*opening, *(made for each in asked.messages for made in each.chat_messages())]
    if asked.stop_sequences:
        chat["stop"] = asked.stop_sequences
    if asked.tools:
        chat["tools"] = [function_tool(each.name, each.description, each.input_schema) for each in asked.tools]
    if choice := asked.tool_choice:
        known = {"any": "required", "tool": function_choice(choice.name)}
        chat["tool_choice"] = known.get(choice.type, choice.type)
        if choice.disable_parallel_tool_use:
            chat["parallel_tool_calls"] = False
    if form := asked.output_format or asked.output_config.format:
        named = {"name": "reply", "schema": form.json_schema}
        chat["response_format"] = {"type": "json_schema", "json_schema": named}
    return chat


def routes(chat: ChatCompletions) -> list[Route]:
    """The routes, with Anthropic's base URL and with OpenAI's."""

    async def count(request: Request) -> Response:
        return JSONResponse({"input_tokens": chat.prompt_tokens(chat_request(await object_of(request)))})

    return [
        each
        for path in ("/v1/messages", "/v1/v1/messages")
        for each in (
            translated(path, chat.complete, lambda body: (chat_request(body), message_object), message_events),
            Route(f"{path}/count_tokens", count, methods=["POST"]),
        )
    ]
