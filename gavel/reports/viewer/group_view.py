"""What the pages show of a group: its members side by side, and what a judge saw for a vote.

group_view(group, "score", []).rounds       # for each round, the turns of every member
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from gavel.base.files import is_inside
from gavel.llm.cassette import SqliteStorage
from gavel.reports.transcript import ShownTurn, Transcript, pretty_json, shown_text, transcribe
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import Vote
from gavel.scenarios.trajectory import Trajectory

CASSETTE = "cassettes.sqlite"


@dataclass(frozen=True, slots=True)
class MemberView:
    """One member."""

    number: int
    """In the group, from 0."""
    trajectory: Trajectory
    transcripts: list[Transcript]
    tokens: int
    """Sampled."""

    @property
    def score(self) -> float | None:
        """The judge's."""
        return self.trajectory.judgement.score if self.trajectory.judgement else None


@dataclass(frozen=True, slots=True)
class ShownTool:
    """A tool as the agent was shown it."""

    name: str
    description: str
    schema: str


@dataclass(frozen=True, slots=True)
class GroupView:
    members: list[MemberView]
    opening: tuple[ShownTurn, ...]
    """What all members begin with; empty where they begin differently."""
    rounds: list[tuple[tuple[ShownTurn, ...], ...]]
    """The rounds of the main conversations: for each round, the turns of every member, or nothing."""
    tools: list[ShownTool]
    """That any of the members could call."""


def group_view(
    group: TrajectoryGroup, sort: str, chosen: Sequence[int], order: Sequence[int] | None = None
) -> GroupView:
    """`sort`: `score` for the best first. `chosen`: numbers of the members that are shown; empty = all. `order`: of the
    members, by their numbers, in place of the file's."""
    numbers = order if order is not None else range(len(group.trajectories))
    views = [_member(number, group.trajectories[number]) for number in numbers]
    shown = [view for view in views if view.number in chosen] or views
    if sort == "score":
        shown.sort(key=_rank)
    openings = {view.transcripts[0].opening for view in shown}
    rounds = zip_longest(*(view.transcripts[0].rounds for view in shown), fillvalue=())
    tools = dict.fromkeys(_tool(tool) for view in shown for tool in view.trajectory.tools or [])
    return GroupView(shown, openings.pop() if len(openings) == 1 else (), list(rounds), list(tools))


def _tool(schema: Mapping[str, Any]) -> ShownTool:
    function: Mapping[str, Any] = schema.get("function") or schema
    return ShownTool(
        str(function.get("name") or schema.get("type") or "?"),
        shown_text(function.get("description")),
        pretty_json(function.get("parameters") or {}),
    )


def _member(number: int, trajectory: Trajectory) -> MemberView:
    transcripts = transcribe(trajectory)
    strips = [turn.strip for each in transcripts for part in each.rounds for turn in part]
    return MemberView(number, trajectory, transcripts, sum(strip.tokens for strip in strips if strip))


def _rank(view: MemberView) -> tuple[bool, float]:
    value = view.trajectory.reward if view.score is None else view.score
    return value is None, -(value or 0.0)


def cassette_of(root: Path, path: str) -> Path | None:
    """The cassette nearest to a trajectory file, in its directory or one above it; none outside of `root`."""
    beside = (folder / CASSETTE for folder in (root / path).parents if folder.is_relative_to(root))
    return next((file for file in beside if file.is_file() and is_inside(root, file)), None)


def read_vote(cassette: Path, vote: Vote) -> dict[str, Any] | None:
    """What was asked, as the cassette stores it, and the texts of its `replies`, of which the last was used; None where
    the cassette does not hold it. Raises `CassetteError`."""
    storage = SqliteStorage(cassette, read_only=True)
    try:
        question = storage.question(vote.reply_key)
        replies = [reply.text for reply in storage.replies(vote.reply_key).result()]
    finally:
        storage.close()
    if question is None:
        return None
    return {**question, "messages": json.loads(question["messages"]), "replies": replies}
