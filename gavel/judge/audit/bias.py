"""What a judge does that has nothing to do with the work: habits that its votes give away without any reference."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from gavel.judge.audit.agreement import centre
from gavel.judge.audit.bootstrap import Estimate, correlation, ratio
from gavel.judge.audit.votes import Call, calls, distinct_members, judged_groups
from gavel.judge.panel.position_bias import PositionBias
from gavel.judge.stats import centred_positions
from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

_SAME = 1e-9
"""Scores closer than this are tied."""


@dataclass(frozen=True, slots=True)
class Habits:
    """Figures of a judge without a reference."""

    position_slope: Estimate
    """Score that a single call adds from the middle place to the last, by least squares over the places; below 0 it
    favours the first. Balanced orders cancel it out of the mean."""
    length_correlation: Estimate
    """Pearson's r of the score and the log of the characters that the agent wrote, each less its group's mean. It may
    be right: longer work may be better."""
    flip_rate: Estimate
    """Of two members that two calls of a judge both rank, how often they rank them the other way round."""
    tie_rate: Estimate
    """Of two different members of a group, how often they have the same score."""
    slot_means: dict[int, PositionBias]
    """What each place gains over its call's mean, by the number of members shown."""


def habits(groups: Iterable[TrajectoryGroup]) -> Habits:
    """Raises `JudgeError` when no member is judged."""
    groups = judged_groups(groups)
    called = [calls(group) for group in groups]
    slots: dict[int, PositionBias] = {}
    for row in (call.in_order for of_group in called for call in of_group):
        if row:
            slots.setdefault(len(row), PositionBias()).add(row)
    return Habits(
        position_slope=ratio(*zip(*map(_slope_sums, called), strict=True)),
        length_correlation=correlation(*zip(*map(_length_sums, groups), strict=True)),
        flip_rate=ratio(*zip(*map(_flips, called), strict=True)),
        tie_rate=ratio(*zip(*map(_ties, groups), strict=True)),
        slot_means=slots,
    )


def _slope_sums(of_group: list[Call]) -> tuple[float, float]:
    """Σ place·score and Σ place² over the calls; places are centred, so the calls' means fall out."""
    rows = [(centred_positions(len(row)), row) for call in of_group if (row := call.in_order)]
    pairs = [pair for places, row in rows for pair in zip(places, row, strict=True)]
    return math.fsum(place * score for place, score in pairs), math.fsum(place**2 for place, _ in pairs)


def _length_sums(group: TrajectoryGroup) -> tuple[float, float, float]:
    pairs = [
        (math.log1p(written(member)), judgement.score)
        for member, judgement in distinct_members(group)
        if judgement.score is not None
    ]
    if not pairs:
        return 0.0, 0.0, 0.0
    lengths, scores = (centre(side) for side in zip(*pairs, strict=True))
    products = math.fsum(x * y for x, y in zip(lengths, scores, strict=True))
    return products, math.fsum(x * x for x in lengths), math.fsum(y * y for y in scores)


def written(trajectory: Trajectory) -> int:
    """Characters that the agent wrote, in text and tool calls, in all its conversations."""
    turns = [message for history in trajectory.histories() for message in history.messages()]
    return sum(_characters(turn) for turn in turns if turn.get("role") == "assistant")


def _characters(turn: Message) -> int:
    said = turn.get("content") or ""
    text = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
    made = [call.get("function") or call.get("custom") or {} for call in turn.get("tool_calls") or []]
    return len(text) + sum(len(str(value)) for call in made for value in call.values())


def _flips(of_group: list[Call]) -> tuple[float, float]:
    """Pairs of members that two calls of the same judge rank oppositely, and all that both rank."""
    flipped = ranked = 0
    for one, other in combinations(of_group, 2):
        if one.model != other.model:
            continue
        for a, b in combinations(sorted(one.scores.keys() & other.scores.keys()), 2):
            gap, other_gap = one.scores[a] - one.scores[b], other.scores[a] - other.scores[b]
            if abs(gap) > _SAME and abs(other_gap) > _SAME:
                ranked += 1
                flipped += (gap > 0) != (other_gap > 0)
    return flipped, ranked


def _ties(group: TrajectoryGroup) -> tuple[float, float]:
    scores = [judgement.score for _, judgement in distinct_members(group) if judgement.score is not None]
    pairs = list(combinations(scores, 2))
    return sum(abs(a - b) <= _SAME for a, b in pairs), len(pairs)
