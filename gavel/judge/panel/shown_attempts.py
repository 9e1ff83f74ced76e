"""The attempts of a group as the judge sees them: which it judges, and which not because of what it does not see."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gavel.judge.errors import JudgeError
from gavel.judge.panel.anchors import Anchor, insert_anchors
from gavel.judge.prompt.canonical_group import CanonicalGroup, canonicalize
from gavel.judge.prompt.content_policies import UnseenPolicy
from gavel.judge.prompt.flags import UNSEEN, unseen_reasons, with_flags
from gavel.judge.prompt.shown_content import View
from gavel.scenarios.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Attempts:
    """The attempts of a group as the judge sees them."""

    seen: CanonicalGroup
    """Those that are judged, and the anchors among them, with their flags."""
    fixed: dict[int, float]
    """The scores of the anchors by member."""
    hidden: CanonicalGroup
    """Those that are not, because of content that is not shown."""
    unseen: dict[int, str]
    """What that is, by index of the trajectory."""


def read_attempts(
    attempts: Mapping[int, Trajectory], anchors: Sequence[Anchor], view: View, policy: UnseenPolicy
) -> Attempts:
    """The attempts, by index, with the anchors among them, as the view shows them.

    With the policy "unscored", those with content that is not shown are hidden, and an anchor with such content is a
    `JudgeError`: its score would set the scale for what the judge has not seen.
    """
    group, fixed = insert_anchors(attempts, anchors, view)
    unseen = unseen_reasons(group) if policy == "unscored" else {}
    hidden = CanonicalGroup(members=())
    if unseen:
        hidden = with_flags(canonicalize({i: attempts[i] for i in unseen}, view))
        group, fixed = insert_anchors({i: t for i, t in attempts.items() if i not in unseen}, anchors, view)
    group = with_flags(group)
    if policy == "unscored" and any(UNSEEN in group.members[number].flags for number in fixed):
        raise JudgeError(
            "an anchor has unseen content: the judge cannot score by what it is not shown.",
            'Give an anchor of text, a judge that sees images, or unseen="flag".',
        )
    _ = group.characters, group.digest  # worked out here, where it does not hold up other calls
    return Attempts(group, fixed, hidden, unseen)
