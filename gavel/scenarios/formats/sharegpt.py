"""ShareGPT turns: `{"from": "human", "value": "Hi"}`, with calls and their results as turns of their own."""

import json
from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.formats.row import RowError, is_list, is_object
from gavel.scenarios.formats.tool_calls import tool_call

NAME = "ShareGPT"
_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
    "tool_response": "tool",
    "tool_result": "tool",
}
_CALLS = ("function_call", "tool_call", "function")


def is_turn(fields: Message) -> bool:
    return ("from" in fields and "value" in fields and "role" not in fields) or is_exchange(fields)


def is_exchange(fields: Message) -> bool:
    """Whether one object holds what both said: `{"human": "Hi", "assistant": "Hello"}`."""
    return fields.keys() <= {"human", "assistant", "gpt"} and "human" in fields and len(fields) == 2


def messages(turn: Message, number: int, where: str) -> list[Message]:
    """The turn as a chat message. Raises `RowError` for a speaker that is not known."""
    if is_exchange(turn):
        answer = next(value for name, value in turn.items() if name != "human")
        return [{"role": "user", "content": turn["human"]}, {"role": "assistant", "content": answer}]
    speaker, value = turn["from"], turn["value"]
    if speaker in _CALLS and (calls := _calls(value, f"call_{number}")):
        return [{"role": "assistant", "content": None, "tool_calls": calls}]
    if speaker == "function_call" or speaker == "tool_call":
        return [{"role": "assistant", "content": value}]
    role = "tool" if speaker == "function" else _ROLES.get(speaker) if isinstance(speaker, str) else None
    if role is None:
        raise RowError(
            f"{where}.from: {speaker!r} is no speaker that is known.",
            f"ShareGPT's speakers are {', '.join([*_ROLES, *_CALLS])}.",
        )
    return [{"role": role, "content": value}]


def _calls(value: Any, name: str) -> list[Any]:
    """The calls that a turn holds as JSON, as they are called in OpenAI's form; none when it holds none."""
    try:
        parsed: Any = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return []
    calls = parsed if is_list(parsed) else [parsed]
    if not calls or not all(is_object(call, "name", "arguments|parameters") for call in calls):
        return []
    forms = ({"name": call["name"], "arguments": call.get("arguments", call.get("parameters"))} for call in calls)
    return [tool_call({"id": f"{name}_{number}", **form}) for number, form in enumerate(forms)]
