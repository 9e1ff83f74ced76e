"""Modes of judging: how a group's members are shown to the jurors, and how the answers become scores.

A mode is an object with a name, a `schedule` and an `aggregate`. To add one, write a class here and name it in
`choose_mode` and in `ModeName`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, get_args

from gavel.judge.errors import JudgeError
from gavel.judge.panel import aggregate
from gavel.judge.panel.aggregate import Answer, Scores
from gavel.judge.panel.distribution_spread import with_spreads
from gavel.judge.panel.requested_reply import Digits, Questions, ReplyForm, Words
from gavel.judge.panel.schedule import Schedule, group_schedule, pair_schedule
from gavel.judge.panel.standard_errors import NoisePrior

ModeName = Literal["groupwise", "pairwise", "decisions", "readout"]
"""The modes that a user may choose; anchors make "groupwise" "anchored"."""


class Mode(Protocol):
    """One way of comparing the members of a group."""

    name: ClassVar[str]
    """Stored in judgements and in records of experiments."""
    form: ClassVar[ReplyForm]
    """What judge models are asked for."""

    def schedule(
        self, members: int, counts: Sequence[int], seed: str, fixed: Collection[int], max_shown: Callable[[], int]
    ) -> Schedule:
        """For each juror, the members that each of its calls shows, in order.

        `counts`: orders of each juror. `fixed`: the members that are anchors. `max_shown`: gives the number of members
        that fit one prompt; it counts tokens, so it is called only where the number matters.
        """
        ...

    def aggregate(
        self, answers: Sequence[Answer], members: int, fixed: Mapping[int, float], noise_prior: NoisePrior | None = None
    ) -> Scores:
        """The score of each of the group's `members`, or the reason why it has none.

        `fixed`: scores of the anchors. `noise_prior`: the noise of votes in earlier groups; only
        groupwise standard errors use it, since votes of other modes are on other scales.
        """
        ...


@dataclass(frozen=True, slots=True)
class Groupwise:
    """Shows the group in each call, a large one in blocks; a score is a mean of votes."""

    name: ClassVar[str] = "groupwise"
    form: ClassVar[ReplyForm] = Words()

    def schedule(
        self, members: int, counts: Sequence[int], seed: str, fixed: Collection[int], max_shown: Callable[[], int]
    ) -> Schedule:
        return group_schedule(members, counts, seed, fixed, max_shown())

    def aggregate(
        self, answers: Sequence[Answer], members: int, fixed: Mapping[int, float], noise_prior: NoisePrior | None = None
    ) -> Scores:
        return aggregate.groupwise(answers, members, noise_prior)


@dataclass(frozen=True, slots=True)
class Anchored(Groupwise):
    """Shows the group with anchors in each call, and reads the votes on the scale of the anchors."""

    name: ClassVar[str] = "anchored"

    def aggregate(
        self, answers: Sequence[Answer], members: int, fixed: Mapping[int, float], noise_prior: NoisePrior | None = None
    ) -> Scores:
        return aggregate.anchored(answers, members, fixed)


@dataclass(frozen=True, slots=True)
class Pairwise:
    """Shows two members in each call; a score is the mean probability of winning (Bradley-Terry)."""

    name: ClassVar[str] = "pairwise"
    form: ClassVar[ReplyForm] = Words()

    def schedule(
        self, members: int, counts: Sequence[int], seed: str, fixed: Collection[int], max_shown: Callable[[], int]
    ) -> Schedule:
        return pair_schedule(members, counts, seed)

    def aggregate(
        self, answers: Sequence[Answer], members: int, fixed: Mapping[int, float], noise_prior: NoisePrior | None = None
    ) -> Scores:
        return aggregate.pairwise(answers, members)


@dataclass(frozen=True, slots=True)
class Decisions(Groupwise):
    """Shows the group to decision models, which answer a question for each member with a distribution over levels.

    A score is the mean of the distributions, on the scale of the anchors where there are any.
    """

    name: ClassVar[str] = "decisions"
    form: ClassVar[ReplyForm] = Questions()

    def aggregate(
        self, answers: Sequence[Answer], members: int, fixed: Mapping[int, float], noise_prior: NoisePrior | None = None
    ) -> Scores:
        if fixed:
            return with_spreads(aggregate.anchored(answers, members, fixed), answers, fixed)
        return with_spreads(aggregate.groupwise(answers, members, noise_prior), answers, fixed)


@dataclass(frozen=True, slots=True)
class Readout(Decisions):
    """Shows the group, and reads a distribution for each member out of the probabilities of a digit's tokens."""

    name: ClassVar[str] = "readout"
    form: ClassVar[ReplyForm] = Digits()


def choose_mode(name: str, *, has_anchors: bool) -> Mode:
    """The mode of this name. Raises `JudgeError` for an unknown one, and for anchors in the mode "pairwise"."""
    match name:
        case "groupwise":
            return Anchored() if has_anchors else Groupwise()
        case "pairwise" if has_anchors:
            raise JudgeError(
                "pairs say who wins, not on what scale, so anchors cannot be used with them.",
                'Leave out anchors, or take mode="groupwise".',
            )
        case "pairwise":
            return Pairwise()
        case "decisions":
            return Decisions()
        case "readout":
            return Readout()
        case _:
            raise JudgeError(f"there is no mode {name!r} of judging.", f"There are {', '.join(get_args(ModeName))}.")
