"""A request of OpenAI's Responses API as a request of Chat Completions.

    reasoning, message, function_call, function_call     ->   one assistant message
    function_call_output                                 ->   one tool message

Fields that both APIs have pass through, so what the endpoint does not know is refused there, by its name.
"""

from collections.abc import Sequence
from typing import Any

from gavel.llm.types import Message
from gavel.trainer.serving.errors import BadRequest

_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_INERT = {
    "include",
    "max_tool_calls",
    "metadata",
    "moderation",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "stream_options",
    "user",
}
"""What changes nothing that is sampled."""
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
    chat = {name: value for name, value in body.items() if name not in _INERT | _TRANSLATED}
    instructions = body.get("instructions")
    if isinstance(instructions, list):
        opening = chat_messages(instructions)
    else:
        opening = [{"role": "system", "content": instructions}] if instructions else []
    chat["messages"] = [*opening, *earlier, *chat_messages(items)]
    if body.get("tools"):
        chat["tools"] = [_tool(number, tool) for number, tool in enumerate(body["tools"])]
    if body.get("tool_choice") is not None:
        chat["tool_choice"] = _tool_choice(body["tool_choice"])
    if body.get("max_output_tokens") is not None:
        chat["max_completion_tokens"] = body["max_output_tokens"]
    form = (body.get("text") or {}).get("format") or {"type": "text"}
    if form["type"] == "json_schema":
        named = {name: form[name] for name in ("name", "description", "schema", "strict") if name in form}
        chat["response_format"] = {"type": "json_schema", "json_schema": named}
    elif form["type"] != "text":
        chat["response_format"] = form
    return chat


def shows_logprobs(body: Message) -> bool:
    """Whether the response has log-probs beside its text."""
    return _LOGPROBS in (body.get("include") or ()) or bool(body.get("top_logprobs"))


def input_items(body: Message) -> list[Message]:
    """The items of `input`, which may be plain text."""
    given: Any = body.get("input")
    if given is None:
        return []
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise BadRequest("input is neither text nor a list of items")
    return given


def chat_messages(items: Sequence[Message]) -> list[Message]:
    """The messages of input items; what one reply consists of becomes one assistant message."""
    messages: list[Message] = []
    reply: Message | None = None
    """The assistant message that the next item may still belong to."""
    for number, item in enumerate(items):
        kind = item.get("type") or "message"
        if kind == "reasoning":
            reply = {"role": "assistant", "content": "", "reasoning_content": _reasoning(item)}
            messages.append(reply)
        elif kind == "function_call":
            if reply is None:
                reply = {"role": "assistant", "content": ""}
                messages.append(reply)
            function = {"name": item["name"], "arguments": item["arguments"]}
            reply.setdefault("tool_calls", []).append({"id": item["call_id"], "type": "function", "function": function})
        elif kind == "message" and item["role"] == "assistant":
            if reply is None or reply["content"] or "tool_calls" in reply:
                reply = {"role": "assistant", "content": ""}
                messages.append(reply)
            reply["content"] = _text(item["content"], number)
        elif kind == "message":
            reply = None
            messages.append({"role": item["role"], "content": _text(item["content"], number)})
        elif kind == "function_call_output":
            reply = None
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": _text(item["output"], number)})
        else:
            raise BadRequest(
                f"input item {number} is of type {kind!r}, which is not supported here",
                "Known: message, function_call, function_call_output, reasoning, item_reference.",
            )
    return messages


def _text(content: Any, number: int) -> str:
    """Of a string, or of content parts."""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in content:
        if part.get("type") == "refusal":
            texts.append(part["refusal"])
        elif part.get("type") in _TEXT_PARTS:
            texts.append(part["text"])
        else:
            raise BadRequest(
                f"input item {number} has content of type {part.get('type')!r}", "This endpoint serves text only."
            )
    return "".join(texts)


def _reasoning(item: Message) -> str:
    return "".join(part["text"] for part in item.get("content") or item.get("summary") or ())


def _tool(number: int, tool: Message) -> Message:
    if tool.get("type") != "function":
        raise BadRequest(
            f"tool {number} is of type {tool.get('type')!r}, which is not supported here", "Offer function tools alone."
        )
    # `strict` stays away: the same tools then make the same prompt, whichever API they come by.
    function = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, str):
        return choice
    if choice.get("type") != "function":
        raise BadRequest(
            f"tool_choice={choice!r} is not supported here",
            "Known: auto, none, required, a function. To allow some tools alone, offer these alone.",
        )
    return {"type": "function", "function": {"name": choice["name"]}}


def _check(body: Message) -> None:
    if body.get("background"):
        raise BadRequest("background=True is not supported here", "Leave background out.")
    if body.get("truncation") not in (None, "disabled"):
        raise BadRequest(
            f"truncation={body['truncation']!r} is not supported here", "Nothing is cut: leave truncation out."
        )
