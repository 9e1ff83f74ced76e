"""Anchors: reference trajectories with fixed scores, which put the scores of different groups on one scale.

A judge sees them among a group's members without being told which they are; its votes for them calibrate its scale
(offset and slope). They are not members of the judged group.

    judge = gavel.Judge("openai/gpt-5-mini", anchors=gavel.read_anchors("runs/annotations.jsonl"))
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from gavel.judge.errors import JudgeError
from gavel.judge.prompt.canonical_group import CanonicalGroup, canonicalize
from gavel.judge.prompt.flags import UNSEEN, UnseenPolicy, unseen_reasons, with_flags
from gavel.judge.prompt.provider_formats import View
from gavel.llm.types import text_of
from gavel.prompts import content_hash
from gavel.scenarios.trajectory import Trajectory

_HUMAN = "human"
"""The metric in which `gavel view` stores the scores of a person."""
MAX_ANCHORS = 6
"""They are shown in every call, and a block of a large group must have positions left for others."""


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
            messages = anchors[member.indices[0]].trajectory.messages()
            task = next((text_of(each) for each in messages if each.get("role") == "user"), "")
            raise JudgeError(
                f"anchors that look the same to a judge have different scores, {', '.join(map(str, scores))}: the "
                f'attempts at "{task[:80]}" that end with "{text_of(messages[-1])[:80]}".',
                "Give these attempts one score (gavel view stores a person's), or keep one of them.",
            )
    return anchors


@dataclass(frozen=True, slots=True)
class Attempts:
    """The attempts of a group as the judge sees them."""

    seen: CanonicalGroup
    """The attempts that are judged, and the anchors among them, with their flags. A member that is only an anchor has
    no indices; one that is also an attempt is shown once, and votes for it count for both."""
    fixed: dict[int, float]
    """The scores of the anchors by member."""
    others: list[CanonicalGroup]
    """The attempts that are not judged, since they failed or some content is not shown, with their flags."""
    unseen: dict[int, str]
    """Index of the trajectory -> the content that is not shown."""


def read_attempts(
    trajectories: Mapping[int, Trajectory], anchors: Sequence[Anchor], view: View, policy: UnseenPolicy
) -> Attempts:
    """The attempts, by index, with the anchors among them, as the view shows them.

    With the policy "unscored", those with content that is not shown are left out, and an anchor with such content is a
    `JudgeError`: its score would set the scale for what the judge has not seen.
    """
    failed = {index: each for index, each in trajectories.items() if each.status == "failed"}
    others = [with_flags(canonicalize(failed))] if failed else []
    attempts = {index: each for index, each in trajectories.items() if index not in failed}
    group, fixed = _insert_anchors(attempts, anchors, view)
    unseen = unseen_reasons(group) if policy == "unscored" else {}
    if unseen:
        others.append(with_flags(canonicalize({index: attempts.pop(index) for index in unseen}, view)))
        group, fixed = _insert_anchors(attempts, anchors, view)
    group = with_flags(group)
    if policy == "unscored" and any(UNSEEN in group.members[number].flags for number in fixed):
        raise JudgeError(
            "an anchor has unseen content: the judge cannot score by what it is not shown.",
            'Give an anchor of text, a judge that sees images, or unseen="flag".',
        )
    _ = group.characters, group.digest  # worked out here, where it does not hold up other calls
    return Attempts(group, fixed, others, unseen)


def _insert_anchors(
    attempts: Mapping[int, Trajectory], anchors: Sequence[Anchor], view: View
) -> tuple[CanonicalGroup, dict[int, float]]:
    """The canonical group of the attempts and the anchors, and the fixed scores by member; no anchors without
    attempts."""
    if not (attempts and anchors):
        return canonicalize(attempts, view), {}
    first = max(attempts) + 1
    group = canonicalize({**attempts, **{n: anchor.trajectory for n, anchor in enumerate(anchors, first)}}, view)
    fixed = {
        number: anchors[index - first].score
        for number, member in enumerate(group.members)
        for index in member.indices
        if index >= first
    }
    members = (replace(m, indices=tuple(index for index in m.indices if index < first)) for m in group.members)
    return replace(group, members=tuple(members)), fixed


def read_anchors(file: str | PathLike[str], *, metric: str = _HUMAN, most: int = 3) -> list[Anchor]:
    """At most `most` attempts of the file (1 to 6), spread over what `metric` gives them, from the best to the worst.

    `metric`: from 0 to 1; attempts without it are passed over, and so are further ones of the same score. Anchors are
    attempts at the task that is judged, or at a similar one: take a file of one kind of task.

    Raises `JudgeError` where fewer than two scores are there, for one that is not from 0 to 1, and where one attempt
    has two scores; `GavelError` for a file that cannot be read.
    """
    from gavel.scenarios.formats.reading import read_groups

    if not 1 < most <= MAX_ANCHORS:
        raise JudgeError(f"most={most} is no number of anchors.", f"Take 2 to {MAX_ANCHORS}: two or three are enough.")
    members = [member for group in read_groups(Path(file)) for member in group]
    known: dict[float, Trajectory] = {}
    for member in members:
        if isinstance(score := member.metrics.get(metric), int | float):
            known.setdefault(float(score), member)
    if len(known) < 2:
        others = sorted({name for member in members for name in member.metrics} - {metric})
        raise JudgeError(
            f"{file} has {'no attempt' if not known else 'attempts of one score only'} for {metric}: anchors need two.",
            f"Score some (gavel view), or name another metric: {', '.join(others)}." if others else "Score some first.",
        )
    scores = sorted(known, reverse=True)
    count = min(most, len(scores))
    chosen = [scores[round(at * (len(scores) - 1) / (count - 1))] for at in range(count)]
    bare = {score: known[score].model_copy(update={"judgement": None, "reward": None}) for score in chosen}
    return list(check_anchors(Anchor(bare[score], score) for score in chosen))
