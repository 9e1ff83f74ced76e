"""Anchors: reference trajectories with fixed scores, which put the scores of different groups on one scale.

A judge sees them among a group's members without being told which they are; its votes for them calibrate its scale
(offset and slope). They are not members of the judged group.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from gavel.judge.errors import JudgeError
from gavel.judge.prompt.canonical_group import CanonicalGroup, canonicalize
from gavel.judge.prompt.shown_content import View
from gavel.prompts import content_hash
from gavel.scenarios.trajectory import Trajectory

MAX_ANCHORS = 6
"""They are shown in every call, and a block of a large group must have positions left for others."""
MIN_SLOPE, MAX_SLOPE = 0.25, 4.0
"""Range of plausible slopes of a juror's scale."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """An attempt at the task of the judged groups, or at a similar task, with its true score."""

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
        """`anchor@hash` of the text that a judge sees, and of the score."""
        return f"anchor@{content_hash(f'{canonicalize({0: self.trajectory}).digest} {self.score!r}')}"


def check_anchors(anchors: Iterable[Anchor]) -> tuple[Anchor, ...]:
    """The anchors. Raises `JudgeError` when they are too many, or one trajectory has two scores."""
    anchors = tuple(anchors)
    if len(anchors) > MAX_ANCHORS:
        raise JudgeError(
            f"{len(anchors)} anchors are too many: each is shown in every call.",
            f"Keep at most {MAX_ANCHORS}, spread over the scale: two or three are enough.",
        )
    for member in canonicalize({n: anchor.trajectory for n, anchor in enumerate(anchors)}).members:
        if len(scores := sorted({anchors[n].score for n in member.indices})) > 1:
            raise JudgeError(f"anchors that look the same to a judge have different scores: {scores}.")
    return anchors


def insert_anchors(
    trajectories: Mapping[int, Trajectory], anchors: Sequence[Anchor], view: View | None = None
) -> tuple[CanonicalGroup, dict[int, float]]:
    """The canonical group of the trajectories (by index) and the anchors, and the fixed scores by member.

    A member that is only an anchor has no indices; one that is also a trajectory of the group is shown once, and votes
    for it count for both. Returns no anchors for an empty group. `view`: what the judge sees of their content.
    """
    if not trajectories:
        return canonicalize({}), {}
    first = max(trajectories) + 1
    group = canonicalize({**trajectories, **{n: anchor.trajectory for n, anchor in enumerate(anchors, first)}}, view)
    fixed = {
        number: anchors[index - first].score
        for number, member in enumerate(group.members)
        for index in member.indices
        if index >= first
    }
    members = (replace(m, indices=tuple(index for index in m.indices if index < first)) for m in group.members)
    return replace(group, members=tuple(members)), fixed


@dataclass(frozen=True, slots=True)
class LinearScale:
    """A line that maps a juror's scores to the scale of the anchors; called with a score."""

    given: float = 0.0
    true: float = 0.0
    slope: float = 1.0
    """Change of the juror's score per unit of the true score."""

    def __call__(self, score: float) -> float:
        return self.true + (score - self.given) / self.slope


def fit_scale(votes: Sequence[tuple[float, float]]) -> LinearScale:
    """The scale of a juror from its votes for anchors, each (score given, true score); at least one.

    Least squares of given on true scores, which leaves the scores of a juror with random errors unbiased. One true
    score alone determines no slope, and a slope outside [`MIN_SLOPE`, `MAX_SLOPE`] is noise, or a juror that inverts
    the anchors, and would amplify noise: in both cases the scale only shifts the scores (slope 1).
    """
    given = fmean(vote for vote, _ in votes)
    true = fmean(score for _, score in votes)
    spread = sum((score - true) ** 2 for _, score in votes)
    slope = sum((vote - given) * (score - true) for vote, score in votes) / spread if spread > 1e-9 else 1.0
    return LinearScale(given, true, slope if MIN_SLOPE <= slope <= MAX_SLOPE else 1.0)
