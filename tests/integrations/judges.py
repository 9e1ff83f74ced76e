"""Judge models for a policy that writes letters, by the share of the letter a or drawn from the letters; and a judge
that knows what each attempt is worth, and withholds some scores: it stands behind the adapters' hooks."""

import hashlib
import json
import re
from typing import Any

from gavel.judge.judge import Judge
from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup
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


async def by_worth(messages: list[Message], schema: Message) -> str:
    """Scores each attempt by the last `worth N` in it, as N / 100."""
    text = messages[1]["content"]
    sections = re.split(r"^¦\w+ trajectory (\w+)$", text, flags=re.MULTILINE)[1:]
    found: list[Message] = []
    for label, attempt in zip(sections[::2], sections[1::2], strict=True):
        worth = re.findall(r"worth (\d+)", attempt)[-1]
        found.append({"trajectory_id": label, "explanation": f"worth {worth}", "score": int(worth) / 100})
    return json.dumps({"scores": found})


class WorthJudge(Judge):
    """Judges by worth, and leaves what says "withheld" without a score, as a lost vote does."""

    def __init__(self) -> None:
        super().__init__(by_worth, orders=1)
        self.groups: list[TrajectoryGroup] = []

    async def score(self, group: TrajectoryGroup, **options: Any) -> TrajectoryGroup:
        self.groups.append(group)
        judged = await super().score(group, **options)
        for trajectory in judged:
            if trajectory.judgement and "withheld" in str(trajectory.messages()):
                trajectory.reward = trajectory.judgement.score = None
                trajectory.judgement.reason = "its votes were lost"
                if judged.judgement and judged.judgement.status == "scored":
                    judged.judgement.status = "partial"
        return judged
