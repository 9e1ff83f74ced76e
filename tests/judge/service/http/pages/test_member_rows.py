"""Members as rows of a table."""

import pytest

from gavel.judge.service.http.pages.views import MOST_COLUMNS, member_rows
from gavel.scenarios.judgement import Judgement, Vote


def vote(score: float, order: int) -> Vote:
    return Vote(score=score, order=order, position=0, model="m")


def member(score: float | None, *votes: Vote) -> Judgement:
    return Judgement(score=score, votes=list(votes))


def test_each_order_is_a_column_and_a_missing_vote_a_gap():
    members = [member(0.5, vote(0.4, 0), vote(0.6, 2)), member(0.1, vote(0.1, 1)), member(None)]
    rows = member_rows(["a", "b", "c"], members, by_score=False)
    assert [[cast and cast.score for cast in row.votes] for row in rows] == [[0.4, None, 0.6], [None, 0.1, None], []]


def test_of_many_orders_each_member_has_its_own_votes():
    members = [member(0.5, vote(0.6, MOST_COLUMNS), vote(0.4, 0)), member(None)]
    rows = member_rows(["a", "b"], members, by_score=False)
    assert [[cast and cast.score for cast in row.votes] for row in rows] == [[0.4, 0.6], []]


def test_the_best_come_first_and_those_without_a_score_last():
    members = [member(None), member(0.0), member(0.9), member(None), member(0.9)]
    rows = member_rows(list("abcde"), members, by_score=True)
    assert [(row.id, row.place) for row in rows] == [("c", 2), ("e", 4), ("b", 1), ("a", 0), ("d", 3)]
    assert [row.id for row in member_rows(list("abcde"), members, by_score=False)] == list("abcde")


@pytest.mark.parametrize("score", [None, 0.0])
def test_no_score_is_no_picture_and_nought_is_one(score: float | None):
    (row,) = member_rows(["a"], [member(score, vote(0.3, 0))], by_score=False)
    assert (row.bar is None, row.is_scored) == (score is None, score is not None)
