"""Chat replies, whole and in chunks, for tests of what is made of them."""

from collections.abc import AsyncIterator
from typing import Any

from hypothesis import strategies as st

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
texts = st.text(max_size=12)


def replies(arguments: st.SearchStrategy[str] = texts) -> st.SearchStrategy[dict[str, Any]]:
    """Assistant messages as the endpoint makes them."""
    function = st.fixed_dictionaries({"name": texts, "arguments": arguments})
    call = st.fixed_dictionaries({"id": texts.filter(bool), "type": st.just("function"), "function": function})
    calls = st.lists(call, min_size=1, max_size=3)
    return st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": texts},
        optional={"reasoning_content": texts.filter(bool), "tool_calls": calls},
    )


def completion_of(reply: dict[str, Any], finish_reason: str = "stop") -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": finish_reason, "message": reply}
    return {"id": "chatcmpl-1", "created": 5, "model": "desk@3", "choices": [choice], "usage": USAGE}


async def chunks_of(reply: dict[str, Any], size: int = 3, finish_reason: str = "stop") -> AsyncIterator[dict[str, Any]]:
    """The reply in pieces of `size` characters, as the endpoint streams it."""

    def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return {"id": "chatcmpl-1", "created": 5, "model": "desk@3", "choices": [choice]}

    yield chunk({"role": "assistant", "content": ""})
    for field in ("reasoning_content", "content"):
        for piece in _pieces(reply.get(field) or "", size):
            yield chunk({field: piece})
    for index, call in enumerate(reply.get("tool_calls") or ()):
        named = call["function"]["name"]
        yield chunk({"tool_calls": [{**call, "index": index, "function": {"name": named, "arguments": ""}}]})
        for piece in _pieces(call["function"]["arguments"], size):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, finish_reason)
    yield {**chunk({}), "choices": [], "usage": USAGE}


def _pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]
