"""What programs log as input and output of a call or of a whole run -> one conversation.

    conversation({"messages": [{"role": "user", "content": "Hi"}]}, {"role": "assistant", "content": "Hello"}, "f:1")

Messages are found in the shapes of OpenAI, Anthropic, LangChain and LangGraph, also as JSON text. Input and output that
hold no messages are a user's and an assistant's message with the same content.
"""

from collections.abc import Sequence
from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.formats import anthropic, chat
from gavel.scenarios.formats.row import is_list, is_object
from gavel.scenarios.formats.text import cell, is_conversation
from gavel.scenarios.formats.tool_calls import as_json
from gavel.scenarios.formats.tool_calls import tools as openai_tools

_LISTS = ("messages", "input", "prompt", "chat_history")
_OUTPUTS = ("messages", "output", "generations", "choices", "message")


def conversation(given: Any, answered: Any, where: str) -> list[Message]:
    """The messages of the input and those of the output; the output's alone where it holds the whole (LangGraph)."""
    before, _ = chat.messages(_messages(given, _LISTS, "user"), where)
    after, _ = chat.messages(_messages(answered, _OUTPUTS, "assistant"), where)
    if not has_messages(given) and any(message.get("role") == "user" for message in after):
        return after  # a whole conversation, for whose beginning the input holds only the values
    repeated = len(after) > len(before) and [_core(m) for m in after[: len(before)]] == [_core(m) for m in before]
    return after if repeated else [*before, *after]


def tools(given: Any) -> list[Message] | None:
    """The tools that a call's input offers."""
    given = cell(given) if isinstance(given, str) else given
    return openai_tools(given.get("tools")) if is_object(given, "tools") else None


def has_messages(given: Any) -> bool:
    """Whether an input holds messages, and not only text."""
    return bool(_found(given, _LISTS))


def parsed(value: Any) -> Any:
    """A payload that a table keeps as its JSON text."""
    return cell(value) if isinstance(value, str) else value


def longest(conversations: Sequence[list[Message]]) -> list[list[Message]]:
    """Those that are not the beginning of a later one: a call repeats the conversation so far. The longest first."""
    kept: list[list[Message]] = []
    cores = [[_core(message) for message in each] for each in conversations]
    for number, core in enumerate(cores):
        later = cores[number + 1 :]
        if not any(other[: len(core)] == core for other in later):
            kept.append(conversations[number])
    return sorted(kept, key=len, reverse=True)


def _core(message: Message) -> tuple[Any, ...]:
    """What makes two loggings of one message the same."""
    calls = message.get("tool_calls")
    named = [as_json(call.get("function")) for call in calls if is_object(call)] if is_list(calls) else []
    return message.get("role"), as_json(message.get("content") or ""), *named


def _messages(payload: Any, names: Sequence[str], role: str) -> list[Any]:
    """The payload's messages; a payload without any is one message of `role`."""
    payload = parsed(payload)
    if payload is None or payload in ("", {}, []):
        return []
    found = _found(payload, names)
    if found:
        system = anthropic.system(payload.get("system")) if is_object(payload, "messages", "system") else []
        return [*system, *found]
    if is_object(payload) and len(payload) == 1 and isinstance(only := next(iter(payload.values())), str):
        return [{"role": role, "content": only}]
    return [{"role": role, "content": payload if isinstance(payload, str) else as_json(payload)}]


def _found(payload: Any, names: Sequence[str]) -> list[Any]:
    """The conversation in a payload, however deep; none where there is none."""
    payload = parsed(payload)
    if is_list(payload):
        if is_conversation(payload):
            return payload
        return _found(payload[0], names) if len(payload) == 1 else []  # batches of one, as LangChain logs them
    if not is_object(payload):
        return []
    if is_conversation([payload]) and "finish_reason" not in payload:
        return [payload]
    for name in names:
        if found := _found(payload.get(name), names):
            return found
    return []
