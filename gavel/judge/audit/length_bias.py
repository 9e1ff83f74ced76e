"""Length bias: the correlation of a judge's scores with how much each agent wrote.

Lengths are logarithms of character counts, and both sides are centered within their group, so groups may differ in
task length and in scale. A correlation is no proof of bias: longer work may be better work.
"""

import json
import math
from collections.abc import Iterable
from typing import Any

from gavel.judge.audit.agreement import center
from gavel.judge.audit.bootstrap import IntervalEstimate, correlation
from gavel.judge.audit.votes import distinct_members
from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory


def length_correlation(groups: Iterable[TrajectoryGroup]) -> IntervalEstimate:
    """Pearson's r of score and log(1 + characters written), over all judged members."""
    products: list[float] = []
    length_squares: list[float] = []
    score_squares: list[float] = []
    for group in groups:
        members = distinct_members(group)
        scored = [(member, judgement.score) for member, judgement in members if judgement.score is not None]
        lengths = center([math.log1p(characters_written(member)) for member, _ in scored])
        scores = center([score for _, score in scored])
        products.append(math.fsum(x * y for x, y in zip(lengths, scores, strict=True)))
        length_squares.append(math.fsum(x * x for x in lengths))
        score_squares.append(math.fsum(y * y for y in scores))
    return correlation(products, length_squares, score_squares)


def characters_written(trajectory: Trajectory) -> int:
    """Characters of the agent's text and tool calls, in all its conversations."""
    turns = [message for history in trajectory.histories() for message in history.messages()]
    return sum(_characters(turn) for turn in turns if turn.get("role") == "assistant")


def _characters(turn: Message) -> int:
    content = turn.get("content") or ""
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    characters = len(text)
    calls: list[dict[str, Any]] = turn.get("tool_calls") or []
    for call in calls:
        body: dict[str, Any] = call.get("function") or call.get("custom") or {}
        characters += sum(len(str(value)) for value in body.values())
    return characters
