"""LangChain's messages, as LangSmith's and Langfuse's exports hold them: plain, under `data`, or serialised.

{"type": "ai", "content": "", "tool_calls": [{"name": "look_up", "args": {"id": "7"}, "id": "c1"}]}
{"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "AIMessage"], "kwargs": {"content": "Hi"}}
"""

from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.formats.row import is_list, is_object
from gavel.scenarios.formats.tool_calls import tool_call

NAME = "LangChain messages"
_ROLES = {
    "human": "user",
    "ai": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "function",
    "developer": "developer",
}


def unwrapped(fields: Message) -> Message:
    """The message itself, where it stands inside another object; anything else unchanged."""
    kind, data, path = fields.get("type"), fields.get("data"), fields.get("id")
    if is_object(fields, "lc", "kwargs") and is_object(fields["kwargs"]) and is_list(path) and path:
        return {"type": _kind(str(path[-1])), **fields["kwargs"]}
    if isinstance(kind, str) and kind in _ROLES and is_object(data, "content") and fields.keys() == {"type", "data"}:
        return {**data, "type": kind}
    return fields


def _kind(name: str) -> str:
    """`AIMessageChunk` -> `ai`."""
    return name.removesuffix("Chunk").removesuffix("Message").lower()


def is_message(fields: Message) -> bool:
    kind = fields.get("type")
    return "role" not in fields and "content" in fields and isinstance(kind, str) and _kind(kind) in (*_ROLES, "chat")


def message(fields: Message) -> Message:
    """The chat message; it may still hold Anthropic's blocks."""
    kind = _kind(fields["type"])
    extra: Any = fields.get("additional_kwargs") or {}
    found: Message = {"role": _ROLES.get(kind) or fields.get("role", "other"), "content": fields["content"]}
    calls = fields.get("tool_calls") or extra.get("tool_calls")
    if calls:
        found["tool_calls"] = [tool_call(call) for call in calls]
    if "function_call" in extra and not calls:
        found["function_call"] = extra["function_call"]
    if "reasoning_content" in extra:
        found["reasoning_content"] = extra["reasoning_content"]
    return found | {name: fields[name] for name in ("tool_call_id", "name") if fields.get(name)}
