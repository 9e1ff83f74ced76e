"""Ollama's context: it reads 4,096 tokens of a prompt unless a request says how many it needs."""

from collections.abc import Mapping, Sequence
from typing import Any

from gavel.llm.message_parts import IMAGE_TOKENS, count_images, text_of
from gavel.llm.types import Message

_PROVIDERS = ("ollama/", "ollama_chat/")
_REPLY_TOKENS = 4_096
"""Room for a reply and the thinking before it, unless the user sets the reply's length."""
_BYTES_PER_TOKEN = 2.5
"""Of dense text, such as numbers; prose has four."""
_STEPS = tuple(sorted(size * 2**power for power in range(13, 21) for size in (1, 1.5)))
"""Ollama loads a model anew when the context changes, so only a few lengths are asked for."""


def context_options(
    model: str, params: Mapping[str, Any], messages: Sequence[Message], longest: int, completion: int | None
) -> dict[str, int]:
    """`num_ctx` for a request to Ollama: room for prompt and reply, at most `longest` tokens; empty for other models.

    A `num_ctx` of the user's own stays. `completion`: the reply's length, where the user sets it.
    """
    if not model.startswith(_PROVIDERS) or "num_ctx" in params:
        return {}
    size = sum(len(text_of(message).encode("utf-8", "surrogatepass")) for message in messages)
    needed = size / _BYTES_PER_TOKEN + IMAGE_TOKENS * count_images(messages) + (completion or _REPLY_TOKENS)
    return {"num_ctx": int(min(next((step for step in _STEPS if step >= needed), needed), longest))}
