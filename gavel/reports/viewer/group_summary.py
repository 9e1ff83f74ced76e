"""What lists and filters need of a stored group, from its decoded row.

    summary = summarize(row)
    summary.status, summary.mean, summary.discordant

Rows are read leniently: a file may hold anything, and a field of another type counts as missing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, cast

from gavel.reports.transcript import shortened
from gavel.scenarios.formats.row import as_list, is_object

Row = Mapping[str, Any]

_TRUTHS = ("success", "reward/hand", "hand_reward", "independent_reward")
"""Metrics that a judge's score may be compared with, the first that all members have."""
_WORDS = 200_000
"""Characters of a group's text that are searched."""


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One group."""

    task: str
    """Its id, which may be a hash."""
    title: str
    """What the user asked, in one line, shortened; without a user, the first instructions."""
    warning: str
    """The judge's first, shortened."""
    status: str
    """Of the judgement, or `unjudged`."""
    members: int
    unscored: int
    failed: int
    """Members whose rollout failed, and exceptions."""
    truncated: int
    mean: float | None
    """Of the rewards, or of the judge's scores where there are none."""
    spread: float | None
    """Highest less lowest."""
    success: float | None
    """Share of the members that succeeded; None where that is not known."""
    discordant: int
    """Pairs of members that the judge ranks otherwise than success, or a hand-written reward, does."""
    flags: tuple[str, ...]
    cost_usd: float | None
    edited: int
    """Members with a turn that continues no sampled one after a sampled one."""
    words: str
    """Text of the messages, for the search."""


def summarize(row: Row) -> GroupSummary:
    members = [_mapping(each) for each in as_list(row.get("trajectories"))]
    judgement = _mapping(row.get("judgement"))
    scores = [_score(member) for member in members]
    known = [score for score in scores if score is not None]
    successes = [_number(_mapping(member.get("metrics")).get("success")) for member in members]
    told = [value for value in successes if value is not None]
    flags = {str(flag) for member in members for flag in as_list(_mapping(member.get("judgement")).get("flags"))}
    first = members[0] if members else {}
    task = _mapping(_mapping(first.get("metadata")).get("task"))
    status = judgement.get("status")
    return GroupSummary(
        task=str(task.get("id") or _mapping(row.get("metadata")).get("task_id") or ""),
        title=shortened(_asked(first)),
        warning=shortened(next(_strings(judgement.get("warnings")), "")),
        status=status if isinstance(status, str) else "unjudged",
        members=len(members),
        unscored=len(scores) - len(known),
        failed=sum(member.get("status") == "failed" for member in members) + len(as_list(row.get("exceptions"))),
        truncated=sum(member.get("status") == "truncated" for member in members),
        mean=sum(known) / len(known) if known else None,
        spread=max(known) - min(known) if known else None,
        success=sum(told) / len(told) if told else None,
        discordant=_discordant(members),
        flags=tuple(sorted(flags)),
        cost_usd=_number(judgement.get("cost_usd")),
        edited=sum(map(_is_edited, members)),
        words="\n".join(_texts(members))[:_WORDS],
    )


def _score(member: Row) -> float | None:
    reward = _number(member.get("reward"))
    return _number(_mapping(member.get("judgement")).get("score")) if reward is None else reward


def _discordant(members: Sequence[Row]) -> int:
    judged = [_number(_mapping(member.get("judgement")).get("score")) for member in members]
    metrics = [_mapping(member.get("metrics")) for member in members]
    name = next((name for name in _TRUTHS if any(_number(each.get(name)) is not None for each in metrics)), "")
    truths = [_number(each.get(name)) for each in metrics]
    pairs = [(s, truth) for s, truth in zip(judged, truths, strict=True) if s is not None and truth is not None]
    return sum((a[0] - b[0]) * (a[1] - b[1]) < 0 for a, b in combinations(pairs, 2))


def _is_edited(member: Row) -> bool:
    turns = [item for item in map(_mapping, as_list(member.get("messages_and_choices"))) if "message" in item]
    return any(turn.get("continues_sampled") is False for turn in turns[1:])


def _asked(member: Row) -> str:
    messages = [item for item in map(_mapping, as_list(member.get("messages_and_choices"))) if item.get("role")]
    asked = [item for item in messages if item["role"] == "user"] + messages
    texts = ("\n".join(_strings(item.get("content"))) for item in asked)
    return next(filter(str.strip, texts), "")


def _texts(members: Sequence[Row]) -> Iterator[str]:
    """Each text once: members share their opening."""
    seen: set[str] = set()
    for member in members:
        histories = [member, *map(_mapping, as_list(member.get("additional_histories")))]
        for item in (each for history in histories for each in as_list(history.get("messages_and_choices"))):
            message = _mapping(_mapping(item).get("message")) or _mapping(item)
            parts = [message.get("content"), message.get("reasoning_content"), message.get("tool_calls")]
            for text in _strings(parts):
                if text not in seen:
                    seen.add(text)
                    yield text
        judged = _mapping(member.get("judgement"))
        yield from _strings([judged.get("explanation"), judged.get("reason")])


def _strings(value: Any) -> Iterator[str]:
    """All texts within a JSON value, but for ids and types."""
    match value:
        case str():
            yield value
        case list():
            for each in cast("list[Any]", value):
                yield from _strings(each)
        case dict():
            for name, each in cast("dict[str, Any]", value).items():
                if name not in ("id", "type", "role"):
                    yield from _strings(each)
        case _:
            return


def _mapping(value: Any) -> dict[str, Any]:
    return value if is_object(value) else {}


def _number(value: Any) -> float | None:
    """None also for nan: it compares with nothing."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
