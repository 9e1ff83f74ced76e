"""The votes of a judged group, read back: call by call, over the members that the judge told apart.

Identical members were shown once and share their votes; only the first of them counts here, or a judge would seem to
agree with itself on what it was asked once.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from gavel.judge.errors import JudgeError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import Judgement
from gavel.scenarios.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class JudgeCall:
    """One call of a judge."""

    model: str
    scores: dict[int, float] = field(default_factory=dict)
    """By member, an index into `distinct_members`."""
    slots: dict[int, int] = field(default_factory=dict)
    """Where each member was shown, from 0."""

    @property
    def scores_by_position(self) -> list[float]:
        """The scores in the order shown; empty when a vote of this call is not known."""
        row = sorted(self.slots, key=self.slots.__getitem__)
        whole = [self.slots[member] for member in row] == list(range(len(row)))
        return [self.scores[member] for member in row] if whole else []


def judged_groups(groups: Iterable[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """All of the groups. Raises `JudgeError` when nobody in them has a judge's score."""
    groups = list(groups)
    if not any(member.judgement and member.judgement.score is not None for group in groups for member in group):
        members = sum(len(group) for group in groups)
        raise JudgeError(
            f"none of the {members} members of {len(groups)} groups has a judge's score.",
            "Judge them first: gavel score FILE --out judged.jsonl, or Judge.score.",
        )
    return groups


def distinct_members(group: TrajectoryGroup) -> list[tuple[Trajectory, Judgement]]:
    """The judged members, each set of identical ones once."""
    kept: dict[object, tuple[Trajectory, Judgement]] = {}
    for member in group:
        if (judgement := member.judgement) is not None and (judgement.votes or judgement.score is not None):
            shown = tuple((vote.order, vote.slot) for vote in judgement.votes)
            kept.setdefault(shown or id(member), (member, judgement))
    return list(kept.values())


def judge_calls(group: TrajectoryGroup) -> list[JudgeCall]:
    """The calls that the group's votes come from, in order of asking."""
    found: dict[int, JudgeCall] = {}
    for number, (_, judgement) in enumerate(distinct_members(group)):
        for vote in judgement.votes:
            call = found.setdefault(vote.order, JudgeCall(vote.model))
            call.scores[number] = vote.score
            call.slots[number] = vote.slot
    return [found[order] for order in sorted(found)]


def voting_models(groups: Iterable[TrajectoryGroup]) -> list[str]:
    """The judge models that voted, in order of first appearance."""
    return list(dict.fromkeys(call.model for group in groups for call in judge_calls(group)))
