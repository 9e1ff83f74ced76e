"""Upper bounds of tokens before anything is sent: a token is at least one byte of text, and about four."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from gavel.llm.types import Message, Schema

_TEMPLATE = 32
"""Tokens that a chat template adds around a message."""
_IMAGE = 6_000
"""Bytes that an image counts as: vendors bill 1,000 to 1,600 tokens for one, whatever its file's size."""


def byte_bound(messages: Sequence[Message], schema: Schema) -> int:
    """Bytes of a request's text, with what stands for its images and for the chat template."""
    return sum(map(_bytes, [*messages, schema])) + _TEMPLATE * len(messages)


def _bytes(part: Mapping[str, Any]) -> int:
    """Bytes of a message or a schema. Text content is measured directly: JSON of a long text takes milliseconds."""
    content = part.get("content")
    if isinstance(content, str):
        return _length(content)
    if _is_list(content):
        return sum(map(_bytes_of_part, content))
    return _length(json.dumps(part, ensure_ascii=False))


def _bytes_of_part(part: Any) -> int:
    match part:
        case {"type": "text", "text": str(text)}:
            return _length(text)
        case {"type": "image_url" | "image" | "input_image"}:
            return _IMAGE
        case _:
            return _length(json.dumps(part, ensure_ascii=False))


def _length(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)
