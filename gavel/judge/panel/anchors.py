"""Anchors: reference trajectories with fixed scores, by which scores of different groups are on one scale.

A judge sees them among a group's members and is not told which they are; what it gives them tells how harsh it is and
how far it spreads its scores. They are no members of the judged group.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from gavel.judge.errors import JudgeError
from gavel.judge.prompt.canonical import CanonicalGroup, canonicalize
from gavel.prompts import content_hash
from gavel.scenarios.trajectory import Trajectory

MOST = 6
"""Anchors of a judge: they are in every call, and a block of a large group must have places for others."""
FLATTEST, STEEPEST = 0.25, 4.0
"""Slopes of a juror's scale that are believed."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """An attempt at the task of the groups that are judged, or at one of its kind, and what it is worth."""

    trajectory: Trajectory
    score: float
    """In [0, 1]."""

    def __post_init__(self) -> None:
        if not 0 <= self.score <= 1:
            raise JudgeError(f"an anchor's score is a number from 0 to 1, not {self.score}.")
        if not self.trajectory.messages_and_choices:
            raise JudgeError("an anchor has no messages.", "Give it a trajectory in which an agent did something.")

    @property
    def id(self) -> str:
        """`anchor@hash` of what a judge sees of it, and its score."""
        return f"anchor@{content_hash(f'{canonicalize({0: self.trajectory}).digest} {self.score!r}')}"


def checked(anchors: Iterable[Anchor]) -> tuple[Anchor, ...]:
    """The anchors. Raises `JudgeError` when they are too many, or one trajectory has two scores."""
    anchors = tuple(anchors)
    if len(anchors) > MOST:
        raise JudgeError(
            f"{len(anchors)} anchors are too many: each is shown in every call.",
            f"Keep at most {MOST}, spread over the scale: two or three are enough.",
        )
    for member in canonicalize({n: anchor.trajectory for n, anchor in enumerate(anchors)}).members:
        if len(scores := sorted({anchors[n].score for n in member.indices})) > 1:
            raise JudgeError(f"anchors that look the same to a judge have different scores: {scores}.")
    return anchors


def seat(trajectories: Mapping[int, Trajectory], anchors: Sequence[Anchor]) -> tuple[CanonicalGroup, dict[int, float]]:
    """The canonical group of trajectories by index with the anchors among its members, and the fixed scores by member.

    A member that only is an anchor has no indices; one that is a trajectory of the group as well is shown once and
    votes for it count as both. Nobody is seated with an empty group.
    """
    if not trajectories:
        return canonicalize({}), {}
    first = max(trajectories) + 1
    seated = canonicalize({**trajectories, **{n: anchor.trajectory for n, anchor in enumerate(anchors, first)}})
    fixed = {
        number: anchors[index - first].score
        for number, member in enumerate(seated.members)
        for index in member.indices
        if index >= first
    }
    members = (replace(m, indices=tuple(index for index in m.indices if index < first)) for m in seated.members)
    return replace(seated, members=tuple(members)), fixed


@dataclass(frozen=True, slots=True)
class Level:
    """A straight line from the scores that a juror gives to the scores that are meant."""

    given: float = 0.0
    meant: float = 0.0
    slope: float = 1.0
    """Points given for a point meant."""

    def __call__(self, score: float) -> float:
        return self.meant + (score - self.given) / self.slope


def level(votes: Sequence[tuple[float, float]]) -> Level:
    """The line through a juror's votes for anchors, each (what it gave, what is meant); at least one.

    Least squares of given on meant, which leaves the scores of a juror that errs at random unbiased. With one fixed
    score there is no slope to be had, and one outside of `FLATTEST` to `STEEPEST` is noise, or a juror that turns the
    anchors upside down, and would blow noise up: then the line only moves the scores.
    """
    given, meant = (fmean(values) for values in zip(*votes, strict=True))
    spread = sum((m - meant) ** 2 for _, m in votes)
    slope = sum((g - given) * (m - meant) for g, m in votes) / spread if spread > 1e-9 else 1.0
    return Level(given, meant, slope if FLATTEST <= slope <= STEEPEST else 1.0)
