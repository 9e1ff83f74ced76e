"""The picture of a score."""

from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.service.http.pages.views import MARGIN, WIDTH, ScoreBar

UNIT = st.floats(0, 1)


@given(UNIT, st.none() | st.floats(0, 10), st.lists(UNIT, max_size=4))
def test_all_of_it_lies_on_the_line(score: float, error: float | None, votes: list[float]):
    bar = ScoreBar.of(score, error, votes)
    assert bar.low <= bar.score <= bar.high
    assert all(MARGIN <= x <= WIDTH - MARGIN for x in (bar.low, bar.high, *bar.votes))


def test_scores_and_errors_have_one_scale():
    bar = ScoreBar.of(0.5, 0.25, [0.0, 1.0])
    assert (bar.low, bar.score, bar.high, bar.votes) == (34.5, 64.0, 93.5, (5.0, 123.0))
