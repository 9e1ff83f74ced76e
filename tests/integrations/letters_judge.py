"""Judge models for a policy that writes letters: its score is the share of the letter a, or drawn from the letters."""

import hashlib
import re

from gavel.llm.types import Message
from tests.endpoint import Answer, Request, verdict


def share_of_a(request: Request) -> Answer:
    return verdict(request, lambda attempt, _: share(attempt))


def by_letters_and_position(request: Request) -> Answer:
    """Scores that tell in which position an attempt was shown."""
    return verdict(request, lambda attempt, position: _drawn(f"{attempt} {position}"))


def by_text(request: Request) -> Answer:
    """Scores that differ wherever texts do, whatever their position."""
    return verdict(request, lambda attempt, _: int(hashlib.sha256(attempt.encode()).hexdigest()[:4], 16) / 0xFFFF)


async def by_letters_and_position_here(messages: list[Message], schema: Message) -> str:
    """The same judge in this process, without LiteLLM, which takes seconds to import."""
    return by_letters_and_position({"messages": messages}).body["choices"][0]["message"]["content"]


def _drawn(text: str) -> float:
    letters = " ".join(re.findall(r"\b[a-h0-9]+\b", text))
    return int(hashlib.sha256(letters.encode()).hexdigest()[:4], 16) / 0xFFFF


def share(text: str) -> float:
    letters = re.findall(r"\b[a-h]\b", text)
    return letters.count("a") / len(letters) if letters else 0.0
