"""A judge that knows what each attempt is worth, and withholds some scores: it stands behind the adapters' hooks."""

import json
import re
from typing import Any

from gavel.judge.judge import Judge
from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup


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
