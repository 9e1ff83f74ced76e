"""The text and the images of chat messages, whose content is a text or a list of parts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from gavel.llm.types import Message

IMAGE_TOKENS = 1_600
"""Tokens that an image is taken for. Vendors count by size: OpenAI up to about 1,500, Anthropic up to about 1,600."""


def text_of(message: Message) -> str:
    """The text of a message, that of its parts joined."""
    content: Any = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in _parts(content) if isinstance(part.get("text"), str))


def count_images(messages: Iterable[Message]) -> int:
    """The images of all messages."""
    contents: list[Any] = [message.get("content") for message in messages]
    lists = [_parts(content) for content in contents if isinstance(content, list)]
    return sum(part.get("type") == "image_url" for parts in lists for part in parts)


def _parts(content: Any) -> Sequence[Mapping[str, Any]]:
    return [cast("Mapping[str, Any]", part) for part in cast("list[Any]", content) if isinstance(part, dict)]
