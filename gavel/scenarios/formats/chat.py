"""Any conversation -> OpenAI chat messages.

    messages([{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}], "f.jsonl:1")
    # ([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}], "ShareGPT")

Each item is told apart by its own fields: an OpenAI chat message, one with Anthropic's blocks, an item of OpenAI's
Responses, a ShareGPT turn or a LangChain message. Items that are chat messages already pass unchanged, and what has no
counterpart (images, audio, unknown blocks) stays in the content as it is, and so do fields that are unknown.
"""

from collections.abc import Sequence
from typing import Any, cast

from gavel.llm.types import Message
from gavel.scenarios.formats import anthropic, langchain, openai_responses, sharegpt
from gavel.scenarios.formats.foreign_blocks import with_blocks
from gavel.scenarios.formats.row import RowError, is_list, is_object
from gavel.scenarios.formats.text import PRINTED, cell, is_printed
from gavel.scenarios.formats.tool_calls import is_foreign, tool_call

OPENAI = "OpenAI messages"
_ROLES = {"human": "user", "ai": "assistant", "gpt": "assistant", "model": "assistant", "bot": "assistant"}
"""Other programs' names of the roles."""
_KNOWN = {**{name: name for name in ("system", "developer", "user", "assistant", "tool", "function")}, **_ROLES}


def messages(items: Any, where: str) -> tuple[list[Message], str]:
    """The messages of a conversation, and the name of its format. Raises `RowError`."""
    if isinstance(items, str):
        items = _unpacked(items, where)
    if not isinstance(items, list):
        raise RowError(f"{where} cannot be judged: messages: it is no list.", 'Write [{"role": …, "content": …}, …].')
    found, forms = _converted(cast(list[Any], items), where)
    found = [each if "role" in each or "message" in each else {"role": "user", **each} for each in found]
    return _linked(found), next(iter(forms), OPENAI)


def as_chat(items: Sequence[Message]) -> list[Message]:
    """The same for messages that a program made; one of no known form stays as it is."""
    return _linked(_converted(items, None)[0])


def _unpacked(text: str, where: str) -> Any:
    """A list that a table or another program keeps as its JSON, or as Python prints it."""
    value = cell(text)
    if not isinstance(value, str):
        return value
    remedy = PRINTED if is_printed(text) else 'Write [{"role": …, "content": …}, …].'
    raise RowError(f"{where} cannot be judged: messages: it is text, and no JSON list.", remedy)


def _converted(items: Sequence[Any], where: str | None) -> tuple[list[Message], dict[str, None]]:
    """Raises `RowError` for an item of no known form, unless `where` is None."""
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
        fields = langchain.unwrapped(cast(Message, item))
        if openai_responses.is_item(fields):
            forms[openai_responses.NAME] = None
            responses.append(fields)
            continue
        if responses and openai_responses.is_plain(fields):  # a message among items
            responses.append(fields)
            continue
        found += openai_responses.messages(responses)
        responses = []
        try:
            said, form = _one(fields, len(found), f"{where} cannot be judged: {number}")
        except RowError:
            if where is not None:
                raise
            said, form = [fields], ""
        found += said
        if form:
            forms[form] = None
    found += openai_responses.messages(responses)
    return found, forms


def _one(fields: Message, number: int, where: str) -> tuple[list[Message], str]:
    """An item as chat messages, and the name of its form; none where it is a chat message already."""
    if (foreign := with_blocks(fields)) is not None:
        return [said for each in foreign[0] for said in anthropic.messages(each)], foreign[1]
    if sharegpt.is_turn(fields):
        return sharegpt.messages(fields, number, where), sharegpt.NAME
    if langchain.is_message(fields):
        return anthropic.messages(langchain.message(fields)), langchain.NAME
    if anthropic.has_blocks(fields):
        return anthropic.messages(fields), anthropic.NAME
    return [_chat(fields, where)], ""


def _is_plain(message: Message) -> bool:
    """Whether it is a role with its text and nothing else: most messages are."""
    if message.keys() != {"role", "content"} or not isinstance(message["content"], str):
        return False
    role = message["role"]
    return isinstance(role, str) and role not in _ROLES and role == _KNOWN.get(role.lower(), role)


def _chat(message: Message, where: str) -> Message:
    """A chat message with calls in OpenAI's form; a choice, and what is in that form, pass unchanged."""
    if "role" not in message:
        if "message" in message and "finish_reason" in message:
            return message
        raise RowError(f"{where}.role: field required", "Rows hold messages and tools in OpenAI's chat format.")
    role = message["role"]
    message = {name: value for name, value in message.items() if value is not None or name == "content"}
    changed = {"role": _KNOWN.get(role.lower(), role)} if isinstance(role, str) else {}
    calls = message.get("tool_calls")
    if isinstance(calls, list) and any(is_foreign(call) for call in cast(list[Any], calls)):
        changed["tool_calls"] = [tool_call(call) for call in cast(list[Any], calls)]  # pyright: ignore
    return {**message, **changed} if changed else message


def _linked(found: list[Message]) -> list[Message]:
    """The messages, with the older function calls as tool calls, and results without an id given that of their call."""
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
            pending = []  # what comes without an id answers the newest turn
        linked.append(message)
        for call in message["tool_calls"] if is_list(message.get("tool_calls")) else []:
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
