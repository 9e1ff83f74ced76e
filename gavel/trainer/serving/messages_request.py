"""A request of Anthropic's Messages API as a request of Chat Completions.

    thinking, text, tool_use   ->   one assistant message
    tool_result                ->   one tool message; text beside it is a user message

Cache marks and what else changes nothing that is sampled are left out. Fields that both APIs have pass through, so what
the endpoint does not know is refused there, by its name.
"""

import json
from typing import Any

from gavel.llm.types import Message
from gavel.trainer.serving.errors import BadRequest

_INERT = {"cache_control", "container", "inference_geo", "metadata", "service_tier", "thinking"}
_TRANSLATED = {
    "max_tokens",
    "output_config",
    "output_format",
    "stop_sequences",
    "stream",
    "system",
    "tool_choice",
    "tools",
}
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_request(body: Message) -> Message:
    """The chat request of `body`. Raises `BadRequest`."""
    chat = {name: value for name, value in body.items() if name not in _INERT | _TRANSLATED}
    if not body["messages"]:
        raise BadRequest("there are no messages")
    system = body.get("system")
    opening = [{"role": "system", "content": _text(system, "system")}] if system else []
    chat["messages"] = opening + [
        made for number, message in enumerate(body["messages"]) for made in _chat_messages(number, message)
    ]
    if body.get("max_tokens") is not None:
        chat["max_completion_tokens"] = body["max_tokens"]
    if body.get("stop_sequences"):
        chat["stop"] = body["stop_sequences"]
    if body.get("tools"):
        chat["tools"] = [_tool(number, tool) for number, tool in enumerate(body["tools"])]
    if body.get("tool_choice") is not None:
        chat |= _tool_choice(body["tool_choice"])
    form = body.get("output_format") or (body.get("output_config") or {}).get("format")
    if form is not None:
        chat["response_format"] = {"type": "json_schema", "json_schema": {"name": "reply", "schema": form["schema"]}}
    return chat


def _chat_messages(number: int, message: Message) -> list[Message]:
    role, content = message["role"], message["content"]
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if role == "assistant":
        return [_reply(number, content)]
    made: list[Message] = []
    texts: list[Message] = []
    for block in content:
        if block["type"] == "tool_result":
            made += _said(role, texts, number)
            texts = []
            result = _text(block.get("content") or "", f"message {number}")
            made.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": result})
        else:
            texts.append(block)
    return made + _said(role, texts, number)


def _said(role: str, texts: list[Message], number: int) -> list[Message]:
    return [{"role": role, "content": _text(texts, f"message {number}")}] if texts else []


def _reply(number: int, blocks: list[Message]) -> Message:
    thinking = "".join(block["thinking"] for block in blocks if block["type"] == "thinking")
    texts = [block for block in blocks if block["type"] not in ("thinking", "redacted_thinking", "tool_use")]
    reply: Message = {"role": "assistant", "content": _text(texts, f"message {number}")}
    if thinking:
        reply["reasoning_content"] = thinking
    calls = [
        {
            "id": block["id"],
            "type": "function",
            "function": {"name": block["name"], "arguments": json.dumps(block["input"], ensure_ascii=False)},
        }
        for block in blocks
        if block["type"] == "tool_use"
    ]
    return reply | {"tool_calls": calls} if calls else reply


def _text(content: Any, where: str) -> str:
    """Of a string, or of text blocks."""
    if isinstance(content, str):
        return content
    foreign = [block.get("type") for block in content if block.get("type") != "text"]
    if foreign:
        raise BadRequest(f"{where} has content of type {foreign[0]!r}", "This endpoint serves text only.")
    return "".join(block["text"] for block in content)


def _tool(number: int, tool: Message) -> Message:
    if tool.get("type", "custom") not in (None, "custom"):
        raise BadRequest(
            f"tool {number} is of type {tool['type']!r}, which is not supported here",
            "Offer tools with an input_schema alone.",
        )
    function = {"name": tool["name"], "description": tool.get("description"), "parameters": tool.get("input_schema")}
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


def _tool_choice(choice: Message) -> Message:
    fields: Message = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
    if choice["type"] == "tool":
        return fields | {"tool_choice": {"type": "function", "function": {"name": choice["name"]}}}
    if choice["type"] not in _TOOL_CHOICES:
        raise BadRequest(f"tool_choice={choice!r} is not supported here", "Known: auto, any, tool, none.")
    return fields | {"tool_choice": _TOOL_CHOICES[choice["type"]]}
