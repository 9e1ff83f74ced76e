"""What pages show of judgements: rows, pictures of scores, numbers and times as text; and the files that they load."""

import pytest

from gavel.judge.service.http.pages.views import MOST_COLUMNS, ScoreBar, duration, member_rows, usd
from gavel.scenarios.judgement import Judgement, Vote
from tests.judge.service.http.pages.seeded import Site


def member(score: float | None, **votes: float) -> Judgement:
    """With its votes by order, such as o1=0.5."""
    cast = [Vote(score=vote, order=int(order[1:]), position=0, model="m") for order, vote in votes.items()]
    return Judgement(score=score, votes=cast)


@pytest.mark.parametrize(
    ("members", "shown"),
    [
        ([member(0.5, o0=0.4, o2=0.6), member(0.1, o1=0.1), member(None)], [[0.4, None, 0.6], [None, 0.1, None], []]),
        ([member(0.5, **{f"o{MOST_COLUMNS}": 0.6}, o0=0.4), member(None)], [[0.4, 0.6], []]),
    ],
    ids=["each order is a column", "of many orders each member has its own"],
)
def test_votes_are_columns_and_a_missing_one_a_gap(members: list[Judgement], shown: list[list[float | None]]):
    rows = member_rows(["a", "b", "c"][: len(members)], members, by_score=False)
    assert [[cast and cast.score for cast in row.votes] for row in rows] == shown


def test_the_best_come_first_and_those_without_a_score_last():
    members = [member(None), member(0.0), member(0.9), member(None), member(0.9)]
    rows = member_rows(list("abcde"), members, by_score=True)
    assert [(row.id, row.place) for row in rows] == [("c", 2), ("e", 4), ("b", 1), ("a", 0), ("d", 3)]
    assert [row.bar is None for row in rows] == [False, False, False, True, True]


def test_scores_and_errors_have_one_scale_and_lie_on_the_line():
    bar = ScoreBar.of(0.5, 0.25, [0.0, 1.0])
    assert (bar.low, bar.score, bar.high, bar.votes) == (34.5, 64.0, 93.5, (5.0, 123.0))
    assert ScoreBar.of(0.5, 9.0, []).low == 5.0


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0.0, "0.00 USD"), (0.00321, "0.0032 USD"), (0.0000012, "0.0000012 USD"), (1234.5, "1,234.50 USD")],
)
def test_what_costs_something_is_not_shown_as_nothing(value: float | None, shown: str):
    assert usd(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "–"), (0.0037, "4 ms"), (0.9996, "1.0 s"), (9.96, "10 s"), (59.6, "1 min 0 s"), (90_000.0, "25 h 0 min")],
)
def test_durations_are_rounded_to_what_they_are_shown_in(seconds: float | None, shown: str):
    assert duration(seconds) == shown


@pytest.mark.parametrize("name", ["style.css", "live.js", "icon.svg"])
async def test_a_file_of_the_pages_loads_nothing_from_elsewhere(name: str, service: Site):
    found = await service.client.get(f"/assets/{name}")
    assert found.status_code == 200
    assert b"http" not in found.content.replace(b"http://www.w3.org/2000/svg", b"")
