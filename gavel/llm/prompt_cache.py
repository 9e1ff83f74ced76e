"""Prompt caches of servers: requests that begin alike are computed once, and the beginning costs a tenth to a half.

Most servers find the common beginning themselves. Claude models store one only where the request has a breakpoint, a
`cache_control` on the part of the content that ends it. A beginning is in the cache when its first request is being
answered, so of several requests that begin alike one may go ahead:

    lead = Lead()
    await client.ask(first, schema, CachedPrefix(1, 6_000, lead.sent))      # and lead.answered() when it returns
    await lead.warm()                                                    # in the tasks that ask the others
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gavel.llm.providers import model_info
from gavel.llm.types import Message

WARM_SECONDS = 1.0
"""After so long a request that is being answered has its prompt in the cache."""
MIN_TOKENS = 1024
"""Shorter beginnings are not cached, except where LiteLLM's table says otherwise."""


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """What a request has in common with others, and who wants to know when it is sent."""

    message: int = 0
    """Index of the message in which the shared beginning ends."""
    characters: int = 0
    """Where it ends in that message; 0 = nothing is shared."""
    sent: Callable[[], None] = lambda: None
    """Called when the request is sent."""


NO_PREFIX = CachedPrefix()


class Lead:
    """The first of several requests that begin alike. The others wait until its prompt is in the server's cache."""

    def __init__(self) -> None:
        self._warm = asyncio.Event()
        self._is_sent = False

    def sent(self) -> None:
        """The request is on its way; a second later its prompt is taken to be in the cache."""
        if not self._is_sent:
            self._is_sent = True
            asyncio.get_running_loop().call_later(WARM_SECONDS, self._warm.set)

    def answered(self) -> None:
        """The request has its reply, or has failed."""
        self._warm.set()

    async def warm(self) -> None:
        """Returns when the others may be sent. The deadline of the first request bounds the wait."""
        await self._warm.wait()


def caches_prompts(model: object) -> bool:
    """Whether LiteLLM knows that the model's server caches prompts."""
    if not isinstance(model, str):
        return False
    return model.startswith(_CLAUDE_OF_OPENROUTER) or bool(model_info(model).get("supports_prompt_caching"))


def min_cached_tokens(model: object) -> int:
    """Tokens that a beginning must have to be cached."""
    listed = model_info(model).get("prompt_cache_min_tokens") if isinstance(model, str) else None
    return int(listed or MIN_TOKENS)


def with_breakpoint(model: str, messages: list[Message], prefix: CachedPrefix) -> list[Message]:
    """The messages with a breakpoint where the shared beginning ends, for a model that needs one."""
    if not prefix.characters or not _needs_breakpoint(model):
        return messages
    message = messages[prefix.message]
    content = message["content"]
    parts: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    text = parts[0].get("text") if parts else None
    if not isinstance(text, str) or len(text) <= prefix.characters:
        return messages
    shared = {"type": "text", "text": text[: prefix.characters], "cache_control": {"type": "ephemeral"}}
    rest = {**parts[0], "text": text[prefix.characters :]}
    marked = {**message, "content": [shared, rest, *parts[1:]]}
    return [*messages[: prefix.message], marked, *messages[prefix.message + 1 :]]


def _needs_breakpoint(model: str) -> bool:
    """Claude, wherever it is served, and Amazon's Nova; other servers find the beginning themselves."""
    return caches_prompts(model) and ("claude" in model or "amazon.nova" in model)


_CLAUDE_OF_OPENROUTER = "openrouter/anthropic/"
"""LiteLLM's table lists no models of OpenRouter, but LiteLLM passes breakpoints on to these."""
