"""One group for its page: its members side by side, round by round, with what the judge said of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from gavel.judge.service.http.pages.score_bar import ScoreBar
from gavel.reports.viewer.transcript import Transcript, Turn, transcribe
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class MemberView:
    """One member."""

    number: int
    """In the group, from 0."""
    trajectory: Trajectory
    transcripts: list[Transcript]
    bar: ScoreBar | None
    tokens: int
    """Sampled."""

    @property
    def score(self) -> float | None:
        """The judge's."""
        return self.trajectory.judgement.score if self.trajectory.judgement else None


@dataclass(frozen=True, slots=True)
class GroupView:
    members: list[MemberView]
    opening: tuple[Turn, ...]
    """What all members begin with; empty where they begin differently."""
    rounds: list[tuple[tuple[Turn, ...], ...]]
    """The rounds of the main conversations: for each round, the turns of every member, or nothing."""


def group_view(
    group: TrajectoryGroup, sort: str, chosen: Sequence[int], order: Sequence[int] | None = None
) -> GroupView:
    """`sort`: `score` for the best first. `chosen`: numbers of the members that are shown; empty = all. `order`: of the
    members, by their numbers, in place of the file's."""
    views = [_member(number, trajectory) for number, trajectory in enumerate(group.trajectories)]
    shown = [view for view in views if view.number in chosen] or views
    if order is not None:
        shown.sort(key=lambda view: order.index(view.number))
    if sort == "score":
        shown.sort(key=_rank)
    openings = {view.transcripts[0].opening for view in shown}
    rounds = zip_longest(*(view.transcripts[0].rounds for view in shown), fillvalue=())
    return GroupView(shown, openings.pop() if len(openings) == 1 else (), list(rounds))


def _member(number: int, trajectory: Trajectory) -> MemberView:
    transcripts = transcribe(trajectory)
    judged = trajectory.judgement
    bar = None
    if judged is not None and judged.score is not None:
        bar = ScoreBar.of(judged.score, judged.standard_error, [vote.score for vote in judged.votes])
    turns = (turn for each in transcripts for part in each.rounds for turn in part)
    return MemberView(number, trajectory, transcripts, bar, sum(turn.strip.tokens for turn in turns if turn.strip))


def _rank(view: MemberView) -> tuple[bool, float]:
    value = view.trajectory.reward if view.score is None else view.score
    return value is None, -(value or 0.0)
