"""What lists and filters need of a stored group, from its decoded row.

    summary = summarize(row)
    summary["status"], summary["mean"], summary["discordant"]

Rows are read leniently: a file may hold anything, and a field of another type counts as missing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any, cast

from gavel.reports.transcript import shortened
from gavel.scenarios.formats.row import as_list, is_object

Row = Mapping[str, Any]

_TRUTHS = ("success", "reward/hand", "hand_reward", "independent_reward")
"""Metrics that a judge's score may be compared with, the first that any member has."""
_WORDS = 200_000
"""Characters of a group's text that are searched."""


SUMMARY = (
    "task", "title", "warning", "status", "members", "unscored", "failed", "truncated", "mean", "spread", "success",
    "discordant", "flags", "edited",
)  # fmt: skip
"""The keys of a summary."""


def summarize(row: Row) -> dict[str, str | int | float | None]:
    """What lists show of a group.

    `title` is what the user asked, in one line. `status` is the judgement's, or `unjudged`. `mean` and `spread` are of
    the rewards, or of the scores where there are none. `failed` counts exceptions, too. `discordant`: pairs that the
    judge ranks otherwise than success, or a hand-written reward, does. `edited`: members with a sampled turn that does
    not continue the one before it.
    """
    members = [_mapping(each) for each in as_list(row.get("trajectories"))]
    judged, metrics = ([_mapping(member.get(name)) for member in members] for name in ("judgement", "metrics"))
    judgement, statuses = _mapping(row.get("judgement")), [member.get("status") for member in members]
    scores = [_number(each.get("score")) for each in judged]
    rewards = [_number(member.get("reward")) for member in members]
    either = [score if reward is None else reward for score, reward in zip(scores, rewards, strict=True)]
    known = [value for value in either if value is not None]
    successes = [value for each in metrics if (value := _number(each.get("success"))) is not None]
    truth = next((name for name in _TRUTHS if any(_number(each.get(name)) is not None for each in metrics)), "")
    pairs = [(score, _number(each.get(truth))) for score, each in zip(scores, metrics, strict=True)]
    told = [(score, value) for score, value in pairs if score is not None and value is not None]
    first = members[0] if members else {}
    task = _mapping(_mapping(first.get("metadata")).get("task"))
    status = judgement.get("status")
    return {
        "task": str(task.get("id") or _mapping(row.get("metadata")).get("task_id") or ""),
        "title": shortened(_asked(first)),
        "warning": shortened(next(_strings(judgement.get("warnings")), "")),
        "status": status if isinstance(status, str) else "unjudged",
        "members": len(members),
        "unscored": len(members) - len(known),
        "failed": statuses.count("failed") + len(as_list(row.get("exceptions"))),
        "truncated": statuses.count("truncated"),
        "mean": fmean(known) if known else None,
        "spread": max(known) - min(known) if known else None,
        "success": fmean(successes) if successes else None,
        "discordant": sum((a - b) * (true_a - true_b) < 0 for (a, true_a), (b, true_b) in combinations(told, 2)),
        "flags": ", ".join(sorted({str(flag) for each in judged for flag in as_list(each.get("flags"))})),
        "edited": sum(map(_is_edited, members)),
    }


def words_of(row: Row) -> str:
    """The text of a group's messages and explanations, for the search; what members share stands once."""
    texts = dict.fromkeys(_texts([_mapping(each) for each in as_list(row.get("trajectories"))]))
    return "\n".join(texts)[:_WORDS]


def _is_edited(member: Row) -> bool:
    turns = [item for item in map(_mapping, as_list(member.get("messages_and_choices"))) if "message" in item]
    return any(turn.get("continues_sampled") is False for turn in turns[1:])


def _asked(member: Row) -> str:
    messages = [item for item in map(_mapping, as_list(member.get("messages_and_choices"))) if item.get("role")]
    asked = [item for item in messages if item["role"] == "user"] + messages
    texts = ("\n".join(_strings(item.get("content"))) for item in asked)
    return next(filter(str.strip, texts), "")


def _texts(members: Sequence[Row]) -> Iterator[str]:
    for member in members:
        histories = [member, *map(_mapping, as_list(member.get("additional_histories")))]
        for item in (each for history in histories for each in as_list(history.get("messages_and_choices"))):
            message = _mapping(_mapping(item).get("message")) or _mapping(item)
            yield from _strings([message.get(name) for name in ("content", "reasoning_content", "tool_calls")])
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
            named = cast("dict[str, Any]", value)
            yield from _strings([each for name, each in named.items() if name not in ("id", "type", "role")])
        case _:
            return


def _mapping(value: Any) -> dict[str, Any]:
    return value if is_object(value) else {}


def _number(value: Any) -> float | None:
    """None also for nan: it compares with nothing."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
