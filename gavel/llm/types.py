"""Messages to a language model, and its reply."""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Message = dict[str, Any]
"""One OpenAI chat message."""
Schema = dict[str, Any]
Wire = Literal["chat", "logprobs", "decisions"]
"""How a model is asked: for text; for text with the log-probabilities of its tokens (logprobs.py); or questions that it
answers with probabilities (decisions.py), which stand in place of the schema."""
ModelCallable = Callable[[list[Message], Schema], Awaitable[str | Message] | str | Message]
"""An async function that answers a prompt with text or an assistant's message: for custom models and tests."""


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
    """Of the prompt tokens, those that the server had in its prompt cache; they cost less."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens of a call as its server reports them, in OpenAI's terms; 0 = not reported."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_prompt_tokens: int = 0
    """Of the prompt tokens, those that the server had in its cache."""
    written_prompt_tokens: int = 0
    """Of the prompt tokens, those that the server wrote to its cache, where it charges for that."""
    reasoning_apart: int = 0
    """Of the completion tokens, those of reasoning that the server did not count as such."""


Accept = Callable[[Reply], bool]
"""Whether a reply can be used; a cassette keeps no other."""
