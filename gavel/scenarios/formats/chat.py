"""Converts any conversation to OpenAI chat messages.

    messages([{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}], "f.jsonl:1")
    # ([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}], "ShareGPT")

Each item is told apart by its own fields: an OpenAI chat message, one with Anthropic's blocks, an item of OpenAI's
Responses, a ShareGPT turn or a LangChain message. Chat messages are returned unchanged. Parts without a counterpart
(images, audio, unknown blocks) stay in the content unchanged, and so do unknown fields.
"""

from collections.abc import Sequence
from typing import Any, cast

from gavel.llm.types import Message
from gavel.scenarios.formats import anthropic, bodies
from gavel.scenarios.formats.anthropic import with_blocks
from gavel.scenarios.formats.row import RowError, as_list, is_list, is_object, loaded, tool_call
from gavel.scenarios.formats.text import PRINTED, cell, is_printed

OPENAI = "OpenAI messages"
_ROLES = {"human": "user", "ai": "assistant", "gpt": "assistant", "model": "assistant", "bot": "assistant"}
"""Other programs' names of the roles."""
KNOWN_ROLES = {**{name: name for name in ("system", "developer", "user", "assistant", "tool", "function")}, **_ROLES}


def messages(items: Any, where: str) -> tuple[list[Message], str]:
    """The messages of a conversation, and the name of its format. Raises `RowError`."""
    if isinstance(items, str):
        items = _unpacked(items, where)
    if not isinstance(items, list):
        raise RowError(f"{where} cannot be judged: messages: it is no list.", 'Write [{"role": …, "content": …}, …].')
    found, forms = _convert_all(cast(list[Any], items), where)
    found = [each if "role" in each or "message" in each else {"role": "user", **each} for each in found]
    return _link_results(found), next(iter(forms), OPENAI)


def as_chat(items: Sequence[Message]) -> list[Message]:
    """Converts messages of a program; a message of no known form is kept unchanged."""
    return _link_results(_convert_all(items, None)[0])


def _unpacked(text: str, where: str) -> Any:
    """Parses a list that a table or another program stores as JSON, or as Python prints it."""
    value = cell(text)
    if not isinstance(value, str):
        return value
    remedy = PRINTED if is_printed(text) else 'Write [{"role": …, "content": …}, …].'
    raise RowError(f"{where} cannot be judged: messages: it is text, and no JSON list.", remedy)


def _convert_all(items: Sequence[Any], where: str | None) -> tuple[list[Message], dict[str, None]]:
    """Converts items to messages, with the names of their forms. Raises `RowError` for an unknown item, unless `where`
    is None."""
    found: list[Message] = []
    forms: dict[str, None] = {}
    responses: list[Message] = []
    for number, item in enumerate(items):
        if not isinstance(item, dict):
            raise RowError(
                f"{where} cannot be judged: {number}: it is no message.", "A message is an object with a role."
            )
        if not responses and _is_plain(cast(Message, item)):
            found.append(cast(Message, item))
            continue
        fields = unwrapped(cast(Message, item))
        if bodies.is_item(fields):
            forms[bodies.NAME] = None
            responses.append(fields)
            continue
        if responses and bodies.is_plain(fields):  # a message among items
            responses.append(fields)
            continue
        found += bodies.messages(responses)
        responses = []
        try:
            said, form = _convert_one(fields, len(found), f"{where} cannot be judged: {number}")
        except RowError:
            if where is not None:
                raise
            said, form = [fields], ""
        found += said
        if form:
            forms[form] = None
    found += bodies.messages(responses)
    return found, forms


def _convert_one(fields: Message, number: int, where: str) -> tuple[list[Message], str]:
    """Converts an item to chat messages, with the name of its form, which is empty for a chat message."""
    if (foreign := with_blocks(fields)) is not None:
        return [said for each in foreign[0] for said in anthropic.messages(each)], foreign[1]
    if ("role" not in fields and is_object(fields, "from", "value")) or is_exchange(fields):
        return sharegpt_messages(fields, number, where), NAME
    if is_message(fields):
        return anthropic.messages(message(fields)), LANGCHAIN_NAME
    if anthropic.has_blocks(fields):
        return anthropic.messages(fields), anthropic.NAME
    return [_normalize(fields, where)], ""


def _is_plain(message: Message) -> bool:
    """Whether it is a role with its text and nothing else, as most messages are."""
    if message.keys() != {"role", "content"} or not isinstance(message["content"], str):
        return False
    role = message["role"]
    return isinstance(role, str) and role not in _ROLES and role == KNOWN_ROLES.get(role.lower(), role)


def _normalize(message: Message, where: str) -> Message:
    """A chat message with calls in OpenAI's form; a choice, or a message in that form, is returned unchanged."""
    if "role" not in message:
        if "message" in message and "finish_reason" in message:
            return message
        raise RowError(f"{where}.role: field required", "Rows hold messages and tools in OpenAI's chat format.")
    role = message["role"]
    message = {name: value for name, value in message.items() if value is not None or name == "content"}
    if isinstance(role, str):
        message["role"] = KNOWN_ROLES.get(role.lower(), role)
    if is_list(calls := message.get("tool_calls")):
        message["tool_calls"] = [tool_call(call) for call in calls]
    return message


def _link_results(found: list[Message]) -> list[Message]:
    """The messages with legacy function calls as tool calls; results without an id get their call's id."""
    linked: list[Message] = []
    pending: list[tuple[str, str]] = []  # (id, name) of calls without a result
    for message in found:
        legacy = message.get("function_call")
        if is_object(legacy) and not message.get("tool_calls"):
            rest = {name: value for name, value in message.items() if name != "function_call"}
            call = {"id": f"call_{len(linked)}", "type": "function", "function": legacy}
            message = {**rest, "tool_calls": [tool_call(call)]}
        if message.get("role") == "function" or (message.get("role") == "tool" and not message.get("tool_call_id")):
            name = message.get("name")
            same = [call for call in pending if call[1] == name] or pending
            if same:
                message = {**message, "role": "tool", "tool_call_id": same[0][0]}
        if message.get("role") == "tool":
            pending = [call for call in pending if call[0] != message.get("tool_call_id")]
        if calls := message.get("tool_calls"):
            message = {**message, "tool_calls": _named(calls, f"call_{len(linked)}")}
            pending = []  # a result without an id answers the newest turn
        linked.append(message)
        for call in as_list(message.get("tool_calls")):
            if is_object(call, "id"):
                body = call.get("function")
                pending.append((str(call["id"]), str(body.get("name")) if is_object(body) else ""))
    return linked


def _named(calls: Any, name: str) -> Any:
    """The calls, each with an id."""
    if not is_list(calls):
        return calls
    return [
        {**call, "id": call.get("id") or f"{name}_{number}"} if is_object(call) else call
        for number, call in enumerate(calls)
    ]


NAME = "ShareGPT"
_SHAREGPT_ROLES = {
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


def is_exchange(fields: Message) -> bool:
    """Whether one object holds both sides' messages: `{"human": "Hi", "assistant": "Hello"}`."""
    return fields.keys() <= {"human", "assistant", "gpt"} and "human" in fields and len(fields) == 2


def sharegpt_messages(turn: Message, number: int, where: str) -> list[Message]:
    """Converts a ShareGPT turn to a chat message. Raises `RowError` for an unknown speaker."""
    if is_exchange(turn):
        answer = next(value for name, value in turn.items() if name != "human")
        return [{"role": "user", "content": turn["human"]}, {"role": "assistant", "content": answer}]
    speaker, value = turn["from"], turn["value"]
    if speaker in _CALLS and (calls := _calls(value, f"call_{number}")):
        return [{"role": "assistant", "content": None, "tool_calls": calls}]
    if speaker == "function_call" or speaker == "tool_call":
        return [{"role": "assistant", "content": value}]
    role = "tool" if speaker == "function" else _SHAREGPT_ROLES.get(speaker) if isinstance(speaker, str) else None
    if role is None:
        raise RowError(
            f"{where}.from: {speaker!r} is no speaker that is known.",
            f"ShareGPT's speakers are {', '.join([*_SHAREGPT_ROLES, *_CALLS])}.",
        )
    return [{"role": role, "content": value}]


def _calls(value: Any, name: str) -> list[Any]:
    """The tool calls that a turn holds as JSON, in OpenAI's form; empty if it holds none."""
    parsed = loaded(value) if isinstance(value, str) else value
    calls = parsed if is_list(parsed) else [parsed]
    if not calls or not all(is_object(call, "name", "arguments|parameters") for call in calls):
        return []
    forms = ({"name": call["name"], "arguments": call.get("arguments", call.get("parameters"))} for call in calls)
    return [tool_call({"id": f"{name}_{number}", **form}) for number, form in enumerate(forms)]


LANGCHAIN_NAME = "LangChain messages"
_LANGCHAIN_ROLES = {
    "human": "user",
    "ai": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "function",
    "developer": "developer",
}


def unwrapped(fields: Message) -> Message:
    """Unwraps a message nested in another object; anything else is returned unchanged."""
    match fields:
        case {"lc": _, "kwargs": {**inner}, "id": [*_, last]}:
            return {"type": _kind(str(last)), **inner}
        case {"type": str(kind), "data": {"content": _, **_rest} as data, **others} if (
            kind in _LANGCHAIN_ROLES and not others
        ):
            return {**data, "type": kind}
        case _:
            return fields


def _kind(name: str) -> str:
    """`AIMessageChunk` -> `ai`."""
    return name.removesuffix("Chunk").removesuffix("Message").lower()


def is_message(fields: Message) -> bool:
    kind = fields.get("type")
    return (
        "role" not in fields
        and "content" in fields
        and isinstance(kind, str)
        and _kind(kind) in (*_LANGCHAIN_ROLES, "chat")
    )


def message(fields: Message) -> Message:
    """The chat message; it may still hold Anthropic's blocks."""
    kind = _kind(fields["type"])
    extra: Any = fields.get("additional_kwargs") or {}
    found: Message = {"role": _LANGCHAIN_ROLES.get(kind) or fields.get("role", "other"), "content": fields["content"]}
    calls = fields.get("tool_calls") or extra.get("tool_calls")
    if calls:
        found["tool_calls"] = [tool_call(call) for call in calls]
    if "function_call" in extra and not calls:
        found["function_call"] = extra["function_call"]
    if "reasoning_content" in extra:
        found["reasoning_content"] = extra["reasoning_content"]
    return found | {name: fields[name] for name in ("tool_call_id", "name") if fields.get(name)}
