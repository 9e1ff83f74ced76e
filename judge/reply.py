"""What is asked of a judge model, and what comes back."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from scenarios.trajectory import Message

Schema = dict[str, Any]
JudgeModel = Callable[[list[Message], Schema], Awaitable[str]]
"""Anything that answers a prompt with text: the seam for tests, simulation and self-made judges."""


@dataclass(frozen=True, slots=True)
class Reply:
    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = None
    """None = unknown."""
    finish_reason: str = ""
    served_by: str = ""
    """What the server calls the model that answered."""
    cached: bool = False
    """It came without a call of its own; tokens and cost are those of the call that was made for it."""
