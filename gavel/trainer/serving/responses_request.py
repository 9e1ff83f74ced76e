"""A request of OpenAI's Responses API as a request of Chat Completions.

    reasoning, message, function_call, function_call     ->   one assistant message
    function_call_output                                 ->   one tool message

Fields that both APIs have pass through, so what the endpoint does not know is refused there, by its name.
"""

from collections.abc import Sequence
from typing import Any

from gavel.llm.types import Message
from gavel.trainer.serving.body_fields import an_object, check_types, kind_of, objects, parts, text
from gavel.trainer.serving.chat_request import token_limit
from gavel.trainer.serving.errors import BadRequest, shown

_ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_INERT = {
    "include": list,
    "max_tool_calls": int,
    "metadata": dict,
    "moderation": object,
    "prompt_cache_key": str,
    "prompt_cache_options": dict,
    "prompt_cache_retention": str,
    "reasoning": dict,
    "safety_identifier": str,
    "service_tier": str,
    "store": bool,
    "stream_options": dict,
    "user": str,
}
"""What changes nothing that is sampled, with its types."""
_TRANSLATED = {
    "background",
    "input",
    "instructions",
    "max_output_tokens",
    "previous_response_id",
    "stream",
    "text",
    "tool_choice",
    "tools",
    "truncation",
}
_LOGPROBS = "message.output_text.logprobs"


def chat_request(body: Message, earlier: Sequence[Message], items: Sequence[Message]) -> Message:
    """The chat request of `body`, whose conversation is `earlier` and then `items`. Raises `BadRequest`."""
    _check(body)
    chat = {name: value for name, value in body.items() if name not in _INERT.keys() | _TRANSLATED}
    instructions = body.get("instructions")
    if isinstance(instructions, list):
        opening = chat_messages(objects(instructions, "instructions", "instruction"))
    elif instructions is None or isinstance(instructions, str):
        opening = [{"role": "system", "content": instructions}] if instructions else []
    else:
        raise BadRequest(f"instructions is {kind_of(instructions)}", "Give text, or a list of items.")
    chat["messages"] = [*opening, *earlier, *chat_messages(items)]
    if body.get("tools"):
        chat["tools"] = [_tool(number, tool) for number, tool in enumerate(objects(body["tools"], "tools", "tool"))]
    if body.get("tool_choice") is not None:
        chat["tool_choice"] = _tool_choice(body["tool_choice"])
    if (limit := token_limit(body, "max_output_tokens")) is not None:
        chat["max_completion_tokens"] = limit
    form = an_object(an_object(body.get("text") or {}, "text").get("format") or {"type": "text"}, "the format of text")
    kind = text(form, "type", "the format of text")
    if kind == "json_schema":
        named = {name: form[name] for name in ("name", "description", "schema", "strict") if name in form}
        chat["response_format"] = {"type": "json_schema", "json_schema": named}
    elif kind != "text":
        chat["response_format"] = form
    return chat


def shows_logprobs(body: Message) -> bool:
    """Whether the response has log-probs beside its text."""
    return _LOGPROBS in (body.get("include") or []) or bool(body.get("top_logprobs"))


def input_items(body: Message) -> list[Message]:
    """The items of `input`, which may be plain text."""
    given: Any = body.get("input")
    if given is None:
        return []
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise BadRequest(f"input is {kind_of(given)}", "Give text, or a list of items.")
    return objects(given, "input", "input item")


def chat_messages(items: Sequence[Message]) -> list[Message]:
    """The messages of input items; what one reply consists of becomes one assistant message."""
    messages: list[Message] = []
    reply: Message | None = None
    """The assistant message that the next item may still belong to."""
    for number, item in enumerate(items):
        kind, where = item.get("type") or "message", f"input item {number}"
        if kind == "reasoning":
            reply = {"role": "assistant", "content": "", "reasoning_content": _reasoning(item, where)}
            messages.append(reply)
        elif kind == "function_call":
            if reply is None:
                reply = {"role": "assistant", "content": ""}
                messages.append(reply)
            given = item.get("arguments")
            arguments = given if isinstance(given, dict) else text(item, "arguments", where)
            function: Message = {"name": text(item, "name", where), "arguments": arguments}
            call_id = text(item, "call_id", where)
            reply.setdefault("tool_calls", []).append({"id": call_id, "type": "function", "function": function})
        elif kind == "message" and text(item, "role", where) == "assistant":
            if reply is None or reply["content"] or "tool_calls" in reply:
                reply = {"role": "assistant", "content": ""}
                messages.append(reply)
            reply["content"] = _text(item, "content", where)
        elif kind == "message":
            reply = None
            if item["role"] not in _ROLES:
                raise BadRequest(
                    f"{where} has the role {shown(item['role'])}",
                    f"Known: {', '.join(_ROLES)}. What a tool says is a function_call_output.",
                )
            messages.append({"role": item["role"], "content": _text(item, "content", where)})
        elif kind == "function_call_output":
            reply = None
            call_id = text(item, "call_id", where)
            messages.append({"role": "tool", "tool_call_id": call_id, "content": _text(item, "output", where)})
        else:
            raise BadRequest(
                f"{where} is of type {shown(kind)}, which is not supported here",
                "Known: message, function_call, function_call_output, reasoning, item_reference.",
            )
    return messages


def _text(item: Message, name: str, where: str) -> str:
    """Of a field that is a string, or content parts."""
    if not isinstance(item.get(name), list):
        return text(item, name, where)
    texts: list[str] = []
    for part in parts(item[name], f"the {name} of {where}"):
        if part.get("type") == "refusal":
            texts.append(text(part, "refusal", where))
        elif part.get("type") in _TEXT_PARTS:
            texts.append(text(part, "text", f"the {name} of {where}"))
        else:
            raise BadRequest(
                f"{where} has content of type {shown(part.get('type'))}", "This endpoint serves text only."
            )
    return "".join(texts)


def _reasoning(item: Message, where: str) -> str:
    thoughts = parts(item.get("content") or item.get("summary") or [], f"the reasoning of {where}")
    return "".join(text(part, "text", f"the reasoning of {where}") for part in thoughts)


def _tool(number: int, tool: Message) -> Message:
    if tool.get("type") != "function":
        raise BadRequest(
            f"tool {number} is of type {shown(tool.get('type'))}, which is not supported here",
            "Offer function tools alone.",
        )
    text(tool, "name", f"tool {number}")
    # `strict` stays away: the same tools then make the same prompt, whichever API they come by.
    function = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, str):
        return choice
    if an_object(choice, "tool_choice").get("type") != "function":
        raise BadRequest(
            f"tool_choice={shown(choice)} is not supported here",
            "Known: auto, none, required, a function. To allow some tools alone, offer these alone.",
        )
    return {"type": "function", "function": {"name": text(choice, "name", "tool_choice")}}


def _check(body: Message) -> None:
    check_types(body, _INERT)
    if body.get("background"):
        raise BadRequest("background=True is not supported here", "Leave background out.")
    if body.get("truncation") not in (None, "disabled"):
        raise BadRequest(
            f"truncation={shown(body['truncation'])} is not supported here", "Nothing is cut: leave truncation out."
        )
