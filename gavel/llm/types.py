"""What is asked of a judge model, and what comes back."""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
"""One OpenAI chat message."""
Schema = dict[str, Any]
JudgeModel = Callable[[list[Message], Schema], Awaitable[str | Message]]
"""Anything that answers a prompt, with text or an assistant's message: the seam for self-made judges and tests."""


@dataclass(frozen=True, slots=True)
class Reply:
    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = None
    """None = unknown."""
    finish_reason: str = ""
    """"length" = it was cut off at the token limit."""
    served_by: str = ""
    """What the server calls the model that answered."""
    cached: bool = False
    """It came without a call of its own; tokens and cost are those of the call that was made for it."""
    repairs: Counter[str] = field(default_factory=Counter)
    """Where the text had to be looked for, by kind."""
