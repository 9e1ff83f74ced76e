"""The members of a group as rows of a table, from its verdict, or from what has come in while it is judged."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gavel.judge.service.http.pages.score_bar import ScoreBar
from gavel.scenarios.judgement import Judgement, Vote

MOST_COLUMNS = 8
"""Orders whose votes are shown in columns; of more, each member shows its own votes only."""


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One member."""

    place: int
    """In the request, from 0."""
    id: str
    judgement: Judgement
    votes: tuple[Vote | None, ...]
    """One for each order that is a column, None where the member has none; else the member's own. Empty without any."""
    bar: ScoreBar | None

    @property
    def is_scored(self) -> bool:
        return self.judgement.score is not None


def member_rows(ids: Sequence[str], members: Sequence[Judgement], *, by_score: bool) -> list[MemberRow]:
    """The rows in the order of the request, or the best score first and those without one last."""
    orders = {vote.order for member in members for vote in member.votes}
    columns = range(max(orders) + 1) if orders and max(orders) < MOST_COLUMNS else None
    rows = [
        MemberRow(place, name, member, _votes(member.votes, columns), _bar(member))
        for place, (name, member) in enumerate(zip(ids, members, strict=True))
    ]
    return sorted(rows, key=_rank) if by_score else rows


def _rank(row: MemberRow) -> tuple[bool, float]:
    score = row.judgement.score
    return (True, 0.0) if score is None else (False, -score)


def _votes(votes: Sequence[Vote], columns: Iterable[int] | None) -> tuple[Vote | None, ...]:
    by_order = {vote.order: vote for vote in votes}
    if columns is None or not votes:
        return tuple(by_order[order] for order in sorted(by_order))
    return tuple(by_order.get(order) for order in columns)


def _bar(member: Judgement) -> ScoreBar | None:
    votes = [vote.score for vote in member.votes]
    if member.score is None:
        return None
    return ScoreBar.of(member.score, member.standard_error, votes)
