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
"""How a model is asked: for text; for text with the log-probabilities of its tokens (response.py); or questions that it
answers with probabilities (decisions.py), which stand in place of the schema."""
ModelCallable = Callable[[list[Message], Schema], Awaitable[str | Message] | str | Message]
"""Answers a prompt with text or an assistant's message: for custom models and tests. A plain one runs in a thread."""


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
    """Whether it was stored before; tokens and cost are those of the original call."""
    key: str = ""
    """Key of its question on the cassette; empty without one."""
    repairs: Counter[str] = field(default_factory=Counter[str])
    """Repairs that finding the text took, by kind."""
    cached_prompt_tokens: int = 0
    """Prompt tokens that the server had in its prompt cache; they cost less."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens of a call as its server reports them, in OpenAI's terms; 0 = not reported."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_prompt_tokens: int = 0
    """Prompt tokens that the server had in its cache."""
    written_prompt_tokens: int = 0
    """Prompt tokens that the server wrote to its cache, where it charges for that."""
    uncounted_reasoning: int = 0
    """Completion tokens of reasoning that the server did not count as completion."""


Accept = Callable[[Reply], bool]
"""Whether a reply can be used; a cassette keeps no other."""


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


_TEMPLATE = 32
"""Tokens that a chat template adds around a message."""
_IMAGE = 6_000
"""Bytes that an image counts as: vendors bill 1,000 to 1,600 tokens for one, whatever its file's size."""


def byte_bound(messages: Sequence[Message], schema: Schema) -> int:
    """Bytes of a request's text, with what stands for its images and for the chat template: no fewer than its tokens,
    and about four times as many."""
    others = [{name: value for name, value in message.items() if name != "content"} for message in messages]
    texts = [*map(text_of, messages), json.dumps([*others, schema], ensure_ascii=False)]
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    return size + _IMAGE * count_images(messages) + _TEMPLATE * len(messages)


def is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether parsed JSON is an object."""
    return isinstance(value, Mapping)


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The beginning that a request shares with others, and a callback for when it is sent."""

    message: int = 0
    """Index of the message in which the shared beginning ends."""
    characters: int = 0
    """Where it ends in that message; 0 = nothing is shared."""
    sent: Callable[[], None] = lambda: None
    """Called when the request is sent."""


NO_PREFIX = CachedPrefix()
