"""Anthropic messages: blocks of text, thinking, tool use and tool results within a message, and `system` beside them.

    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "look_up", "input": {"id": "7"}}]}
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "on its way"}]}

become an assistant message with `tool_calls` and a `tool` message. Thinking becomes `reasoning_content`. Further fields
of a block stay beside its call, its result or its text.
"""

import json
from typing import Any, cast

from gavel.llm.types import Message
from gavel.scenarios.formats.row import is_list, is_object
from gavel.scenarios.formats.tool_calls import as_json

NAME = "Anthropic messages"
_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")
_THOUGHTS = ("thinking", "redacted_thinking")
_CACHE = "cache_control"


def has_blocks(message: Message) -> bool:
    """Whether a message holds blocks that OpenAI's chat messages do not have."""
    return "role" in message and any(_is_foreign(block) for block in _blocks(message.get("content")))


def _blocks(content: Any) -> list[Message]:
    if not isinstance(content, list):
        return []
    return [cast(Message, block) for block in cast(list[Any], content) if isinstance(block, dict)]


def _is_foreign(block: Message) -> bool:
    kind = block.get("type")
    return (
        kind in (*_CALLS, *_THOUGHTS)
        or _is_result(block)
        or (kind == "image" and ("source" in block or "data" in block))
    )


def _is_result(block: Message) -> bool:
    return "tool_use_id" in block and str(block.get("type", "")).endswith("tool_result")


def system(value: Any) -> list[Message]:
    """The top-level `system` as a message."""
    if not value:
        return []
    return [{"role": "system", "content": _content(value)}]


def messages(message: Message) -> list[Message]:
    """One message as the chat messages that say the same, in the same order."""
    content = message.get("content")
    if not isinstance(content, list):
        return [message]
    called = message.get("tool_calls")
    rest = _rest(message, "content", *(["tool_calls"] if is_list(called) else []))
    found: list[Message] = []
    parts: list[Any] = []
    calls: list[Any] = list(called) if is_list(called) else []
    known = list(calls)
    thoughts: list[str] = []

    def flush() -> None:
        if parts or calls or thoughts:
            said: Message = {**rest, "content": _content(parts) if parts else None}
            if thoughts:
                said["reasoning_content"] = "\n".join(thoughts)
            if calls:
                said["tool_calls"] = list(calls)
            found.append(said)
            parts.clear()
            calls.clear()
            thoughts.clear()

    for block in cast(list[Any], content):
        fields: Message = cast(Message, block) if isinstance(block, dict) else {}
        kind = fields.get("type")
        if kind in _CALLS:
            if not any(_is_same_call(fields, call) for call in known):
                function = {"name": fields.get("name", ""), "arguments": as_json(fields.get("input"))}
                more = _rest(fields, "type", "id", "name", "input", "caller", _CACHE)
                calls.append({**more, "id": fields.get("id"), "type": "function", "function": function})
        elif _is_result(fields):
            flush()
            found.append(_result(fields))
        elif kind in _THOUGHTS:
            thoughts.append(str(fields.get("thinking") or "[redacted]"))
        else:
            parts.append(block)
    flush()
    if found and all(each.get("role") == "tool" for each in found):  # nothing was said that could hold the rest
        found[0] = {**rest, **found[0]}
    return found or [{**rest, "content": ""}]


def _is_same_call(block: Message, call: Any) -> bool:
    """Whether a call of `tool_calls` is that of a block: LangChain writes both, and no input yet where it streams."""
    if not is_object(call, "id", "function") or not is_object(call["function"], "name") or not block.get("id"):
        return False
    function, given = call["function"], block.get("input")
    if (call["id"], function["name"]) != (block["id"], block.get("name", "")):
        return False
    try:
        return not given or json.loads(function.get("arguments") or "{}") == given
    except (ValueError, TypeError):
        return False


def _rest(block: Message, *used: str) -> Message:
    return {name: value for name, value in block.items() if name not in used and value is not None}


def _result(block: Message) -> Message:
    more = _rest(block, "type", "tool_use_id", "content", "caller", _CACHE)
    if not more.get("is_error"):
        more.pop("is_error", None)
    content = _content(block.get("content", ""))
    return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": "" if content is None else content, **more}


def _content(content: Any) -> Any:
    """Text where there is nothing else, or the parts, images in OpenAI's form."""
    if not isinstance(content, list):
        return content
    parts = [_part(part) for part in cast(list[Any], content)]
    match parts:
        case [{"type": "text", "text": str() as text, **rest}] if not rest:
            return text
        case _:
            return parts


def _part(part: Any) -> Any:
    match part:
        case {"type": "image", "source": {"type": "base64", "media_type": media, "data": data, **other}, **rest} if (
            not other
        ):
            return {"type": "image_url", "image_url": {"url": f"data:{media};base64,{data}"}, **rest}
        case {"type": "image", "source": {"type": "url", "url": url, **other}, **rest} if not other:
            return {"type": "image_url", "image_url": {"url": url}, **rest}
        case {"type": "image", "data": str() as data, "mimeType": media, **rest}:  # of the Model Context Protocol
            return {"type": "image_url", "image_url": {"url": f"data:{media};base64,{data}"}, **rest}
        case {"type": "text", **rest}:
            return {"type": "text", **_rest(rest, _CACHE)}
        case _:
            return part
