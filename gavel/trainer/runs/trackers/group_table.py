"""Groups as rows of a table, and as conversations: what every tracker shows of them.

A row is a member, with its group's place, scores, and what it said. A step may have many groups of long trajectories:
the first are shown, each text up to a limit, and what is left out is told in the row after them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gavel.llm.types import Message
from gavel.scenarios.formats.exported import Losses, Part, Text, Turn, turns
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

GROUPS = 16
"""Groups of a step that are shown."""
CHARACTERS = 8_000
"""Of a member's text that are shown."""
COLUMNS = (
    *("step", "group", "member", "status", "reward", "score", "standard_error", "judge_cost_usd"),
    *("explanation", "flags", "text"),
)
Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class ShownMember:
    """A member, and where it stands."""

    group: int
    member: int
    trajectory: Trajectory
    judge_cost: float | None
    """Of its whole group, in USD."""


def shown_members(groups: Sequence[TrajectoryGroup]) -> list[ShownMember]:
    """The members of the groups that are shown."""
    return [
        ShownMember(index, number, member, None if group.judgement is None else group.judgement.cost_usd)
        for index, group in enumerate(groups[:GROUPS])
        for number, member in enumerate(group)
    ]


def rows(step: int, groups: Sequence[TrajectoryGroup]) -> list[list[Cell]]:
    """A row of `COLUMNS` for each member that is shown, and one that tells how many groups are not."""
    found = [_row(step, each) for each in shown_members(groups)]
    if (more := len(groups) - GROUPS) > 0:
        told = f"{more:,} more groups of this step are in the run directory"
        found.append([step, GROUPS, *[None] * (len(COLUMNS) - 3), told])
    return found


def scores(member: ShownMember) -> dict[str, Cell]:
    """What the member was scored with, without what is not known."""
    judgement = member.trajectory.judgement
    found: dict[str, Cell] = {
        "status": member.trajectory.status,
        "reward": _finite(member.trajectory.reward),
        "score": _finite(judgement.score) if judgement else None,
        "standard_error": _finite(judgement.standard_error) if judgement else None,
        "explanation": Losses().text(judgement.explanation) if judgement else None,
        "flags": ", ".join(judgement.flags) if judgement else None,
    }
    return {name: value for name, value in found.items() if value not in (None, "")}


def messages(trajectory: Trajectory) -> list[Message]:
    """The conversation as plain OpenAI messages of text, cut where it is too long."""
    left = CHARACTERS
    found: list[Message] = []
    for turn in turns(trajectory.histories()[0], Losses()):
        text = _text(turn)
        message: Message = {"role": turn.role, "content": _cut(text, left)}
        left = max(left - len(text), 0)
        if turn.calls:
            message["tool_calls"] = [
                {
                    "id": call.id or f"call-{number}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": _cut(call.arguments, left)},
                }
                for number, call in enumerate(turn.calls)
            ]
        if turn.call_id is not None:
            message["tool_call_id"] = turn.call_id
        found.append(message)
    return found


def _row(step: int, member: ShownMember) -> list[Cell]:
    known: dict[str, Cell] = {
        "step": step,
        "group": member.group,
        "member": member.member,
        "judge_cost_usd": member.judge_cost,
        "text": _cut("\n\n".join(_said(member.trajectory)), CHARACTERS),
        **scores(member),
    }
    return [known.get(name) for name in COLUMNS]


def _said(trajectory: Trajectory) -> Iterator[str]:
    for turn in turns(trajectory.histories()[0], Losses()):
        calls = "".join(f"\n→ {call.name}({call.arguments})" for call in turn.calls)
        yield f"[{turn.role}] {_text(turn)}{calls}"


def _text(turn: Turn) -> str:
    return "\n".join(map(_shown, turn.parts))


def _shown(part: Part) -> str:
    match part:
        case Text():
            return part.text
        case _:
            return f"[{part.kind}]"


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[:characters]}… ({len(text) - characters:,} characters more)"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
