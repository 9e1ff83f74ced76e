"""Items of OpenAI's Responses: messages, reasoning, and calls with their outputs as items of their own.

    {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": "{}"}
    {"type": "function_call_output", "call_id": "c1", "output": "on its way"}

become an assistant message with `tool_calls` and a `tool` message; reasoning goes to `reasoning_content` of the message
that it led to. Calls of tools that OpenAI runs keep all their fields as arguments.
"""

from collections.abc import Sequence
from typing import Any, cast

from gavel.llm.types import Message
from gavel.scenarios.formats.row import is_object
from gavel.scenarios.formats.tool_calls import as_json

NAME = "OpenAI Responses items"
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_ENVELOPE = ("type", "id", "status", "call_id")


def is_item(fields: Message) -> bool:
    """Whether it is an item that no chat message is."""
    kind = fields.get("type")
    if kind == "message":
        return "role" in fields
    if "role" in fields:
        return any(is_object(part) and part.get("type") in _TEXTS[:2] for part in _list(fields.get("content")))
    return isinstance(kind, str) and (
        kind in ("reasoning", "item_reference", "compaction", "mcp_list_tools")
        or kind.endswith(("_call", "_call_output", "_approval_request", "_approval_response"))
    )


def is_plain(fields: Message) -> bool:
    """Whether it is a message with text alone, as it may stand among items."""
    return fields.keys() <= {"role", "content"} and isinstance(fields.get("content"), str)


def _list(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


def messages(items: Sequence[Message]) -> list[Message]:
    """The chat messages that say the same; what the assistant said and called in one turn is one message."""
    found: list[Message] = []
    thoughts: list[str] = []
    for item in items:
        kind = str(item.get("type", "message"))
        if kind == "reasoning":
            parts = _list(item.get("content")) or _list(item.get("summary"))
            thoughts += [str(part["text"]) for part in parts if is_object(part, "text")]
            continue
        if kind.endswith("_call_output"):
            found.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": _content(item.get("output"))})
            continue
        if kind.endswith("_call"):
            turn = _turn(found, thoughts)
            turn.setdefault("tool_calls", []).append(_call(item, kind))
            output = item.get("output", item.get("result", item.get("results", item.get("outputs"))))
            if kind not in ("function_call", "custom_tool_call") and output is not None:
                identity = turn["tool_calls"][-1]["id"]
                found.append({"role": "tool", "tool_call_id": identity, "content": _content(output)})
            continue
        if kind != "message":  # kept as it is
            _turn(found, thoughts)["content"] = [item]
            continue
        content = _content(item.get("content"))
        if item.get("role") != "assistant":
            rest = {"name": item["name"]} if "name" in item else {}
            found.append({"role": item["role"], "content": content, **rest})
            continue
        turn = _turn(found, thoughts)
        if turn["content"] is not None or "tool_calls" in turn:
            turn = {"role": "assistant", "content": None}
            found.append(turn)
        turn["content"] = content
    if thoughts:
        _turn(found, thoughts)
    return found


def _turn(found: list[Message], thoughts: list[str]) -> Message:
    """The assistant's message that goes on; a new one after anyone else's, and with new thoughts."""
    if thoughts or not found or found[-1]["role"] != "assistant":
        found.append({"role": "assistant", "content": None})
        if thoughts:
            found[-1]["reasoning_content"] = "\n".join(thoughts)
            thoughts.clear()
    return found[-1]


def _call(item: Message, kind: str) -> Message:
    identity = item.get("call_id") or item.get("id") or ""
    if kind in ("function_call", "custom_tool_call"):
        name, arguments = item.get("name", ""), item.get("arguments", item.get("input"))
    elif kind == "mcp_call":
        name, arguments = item.get("name", ""), item.get("arguments")
    else:
        hidden = (*_ENVELOPE, "output", "outputs", "result", "results")
        name, arguments = kind.removesuffix("_call"), {k: v for k, v in item.items() if k not in hidden}
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": as_json(arguments)}}


def _content(content: Any) -> Any:
    """Text where there is nothing else, or the parts, images in OpenAI's form."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        return as_json(content)
    parts = [_part(part) for part in cast(list[Any], content)]
    match parts:
        case []:
            return ""
        case [{"type": "text", "text": str() as text}]:
            return text
        case _:
            return parts


def _part(part: Any) -> Any:
    match part:
        case {"type": kind, "text": str() as text} if kind in _TEXTS:
            return {"type": "text", "text": text}
        case {"type": "input_image", "image_url": str() as url}:
            return {"type": "image_url", "image_url": {"url": url}}
        case _:
            return part
