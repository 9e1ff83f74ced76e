"""Messages to a language model, their text and size, and its reply."""

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard, cast

Message = dict[str, Any]
"""One OpenAI chat message."""
Schema = dict[str, Any]
Wire = Literal["chat", "logprobs", "decisions"]
"""How a model is called: for text; for text with log-probabilities of its tokens (response.py); or with questions, in
place of the schema, that it answers with probabilities (decisions.py)."""
ModelCallable = Callable[[list[Message], Schema], Awaitable[str | Message] | str | Message]
"""A custom model: answers a prompt with text or an assistant's message. A synchronous one runs in a thread."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The text of a reply, with its usage."""

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = None
    """None = unknown."""
    finish_reason: str = ""
    """"length" = cut off at the token limit."""
    served_by: str = ""
    """The model's name according to the server."""
    cached: bool = False
    """Whether it comes from the cassette; tokens and cost are those of the original call."""
    key: str = ""
    """Key of its question on the cassette; empty without one."""
    repairs: Counter[str] = field(default_factory=Counter[str])
    """Repairs needed to find the text, by kind."""
    cached_prompt_tokens: int = 0
    """Prompt tokens from the server's prompt cache; they cost less."""
    repaired_by: str = ""
    """Key of the question that sent this unusable reply back and whose reply is stored too; empty for a usable one."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The token usage of a call as its server reports it, in OpenAI's terms; 0 = not reported."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_prompt_tokens: int = 0
    """Prompt tokens from the server's cache."""
    written_prompt_tokens: int = 0
    """Prompt tokens that the server wrote to its cache, if it charges for that."""
    uncounted_reasoning: int = 0
    """Reasoning tokens that the server did not count as completion."""


Accept = Callable[[Reply], bool]
"""Whether a reply is usable; a cassette keeps no other."""


IMAGE_TOKENS = 1_600
"""Assumed tokens of an image. Vendors count by size: OpenAI up to about 1,500, Anthropic up to about 1,600."""


def text_of(message: Message) -> str:
    """The text of a message, with the texts of its parts joined."""
    content: Any = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in _parts(message) if isinstance(part.get("text"), str))


def count_images(messages: Iterable[Message]) -> int:
    """The number of images in all messages."""
    return sum(part.get("type") == "image_url" for message in messages for part in _parts(message))


def _parts(message: Message) -> list[Mapping[str, Any]]:
    content: object = message.get("content")
    return [part for part in cast("list[object]", content) if is_mapping(part)] if isinstance(content, list) else []


def byte_bound(messages: Sequence[Message], schema: Schema) -> int:
    """Upper bound of a request's tokens, about four times as many as it has: the bytes of its text, 6,000 for an image,
    which vendors bill as 1,000 to 1,600 tokens whatever its file's size, and 32 for a message's chat template."""
    others = [{name: value for name, value in message.items() if name != "content"} for message in messages]
    texts = [*map(text_of, messages), json.dumps([*others, schema], ensure_ascii=False)]
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    return size + 6_000 * count_images(messages) + 32 * len(messages)


def is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether parsed JSON is an object."""
    return isinstance(value, Mapping)


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The prompt prefix that a request shares with others, and a callback for when it is sent."""

    message: int = 0
    """Index of the message in which the shared prefix ends."""
    characters: int = 0
    """Length of the shared part of that message; 0 = nothing is shared."""
    sent: Callable[[], object] = lambda: None
    """Called when the request is sent."""


NO_PREFIX = CachedPrefix()
