"""A chat completion as an object of OpenAI's Responses API."""

import uuid
from collections.abc import Sequence

from gavel.llm.types import Message
from gavel.trainer.serving.responses_request import shows_logprobs
from gavel.trainer.serving.text_logprobs import TextLogprobs

_ECHOED = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""Fields of a request that its response repeats, and what they are where it has none."""


def new_id(kind: str) -> str:
    """An id as OpenAI's: the kind (`resp`, `rs`, `msg`, `fc`) and what tells it from all others."""
    return f"{kind}_{uuid.uuid4().hex}"


def response(request: Message, completion: Message, response_id: str) -> Message:
    """The response to `request` that says what `completion` says."""
    choice = completion["choices"][0]
    tokens = choice["logprobs"]["content"] if shows_logprobs(request) else ()
    begun = response_object(request, completion["model"], response_id, completion["created"])
    return complete(begun, output_items(choice["message"], tokens), choice["finish_reason"], completion["usage"])


def response_object(request: Message, model: str, response_id: str, created: int) -> Message:
    """A response in progress, without output."""
    echoed = {name: default if request.get(name) is None else request[name] for name, default in _ECHOED.items()}
    return {
        "id": response_id,
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [],
        "usage": None,
        **echoed,
    }


def complete(begun: Message, output: list[Message], finish_reason: str | None, usage: Message | None) -> Message:
    """`begun` with all its output."""
    cut = finish_reason == "length"
    if cut:
        output = [*output[:-1], {**output[-1], "status": "incomplete"}]
    return begun | {
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": output,
        "usage": usage and _usage(usage),
    }


def output_items(message: Message, tokens: Sequence[Message] = ()) -> list[Message]:
    """The reasoning, the text and the tool calls of an assistant message; at least one item. `tokens`: those of the
    turn, with their log-probs, of which the text shows its own."""
    logprobs = TextLogprobs()
    logprobs.add(tokens)
    items: list[Message] = []
    if message.get("reasoning_content"):
        logprobs.of(message["reasoning_content"])
        items.append(reasoning_item(new_id("rs"), message["reasoning_content"]))
    calls = message.get("tool_calls") or ()
    if message.get("content") or not calls:
        text = message.get("content") or ""
        items.append(message_item(new_id("msg"), text, logprobs=logprobs.of(text)))
    return items + [call_item(new_id("fc"), call["id"], **call["function"]) for call in calls]


def reasoning_item(item_id: str, text: str | None, status: str = "completed") -> Message:
    """`text` None: it has just begun."""
    content = [] if text is None else [{"type": "reasoning_text", "text": text}]
    return {"id": item_id, "type": "reasoning", "summary": [], "content": content, "status": status}


def message_item(
    item_id: str, text: str | None, status: str = "completed", logprobs: Sequence[Message] = ()
) -> Message:
    """`text` None: it has just begun."""
    content = [] if text is None else [text_part(text, logprobs)]
    return {"id": item_id, "type": "message", "role": "assistant", "content": content, "status": status}


def call_item(item_id: str, call_id: str, name: str, arguments: str, status: str = "completed") -> Message:
    return {
        "id": item_id,
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": status,
    }


def text_part(text: str, logprobs: Sequence[Message] = ()) -> Message:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def _usage(usage: Message) -> Message:
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    thought = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": usage["total_tokens"],
    }
