"""What a group's pages show, and which groups a list shows."""

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.reports.viewer.group_filter import SHOWN, SORTS, FilterError, GroupFilter, search_words
from gavel.reports.viewer.group_view import CASSETTE, cassette_of, differing, group_view
from gavel.scenarios.trajectory import Trajectory
from tests.gavel.reports.viewer.stored import group, member


def test_members_stand_side_by_side_round_by_round():
    short = Trajectory(messages_and_choices=member("x", 0.1).messages_and_choices[:4])
    found = group_view(group(member("a", 0.2), short, member("b", 0.9)), "", [])
    assert [view.number for view in found.members] == [0, 1, 2]
    assert [turn.role for turn in found.opening] == ["system", "user"]
    assert [[len(turns) for turns in part] for part in found.rounds] == [[2, 2, 2], [1, 0, 1]]
    assert found.members[0].tokens == 4


def test_the_best_come_first_and_those_without_a_score_last():
    members = [member("a", 0.2), member("b", None), member("c", 0.9), Trajectory(reward=0.5)]
    assert [view.number for view in group_view(group(*members), "score", []).members] == [2, 3, 0, 1]


@pytest.mark.parametrize(
    "values", [{"show": "no such"}, {"sort": "up"}, {"page": "0"}, {"page": "x"}, {"step": "-1"}, {"q": "x" * 501}]
)
def test_what_there_is_not_is_refused_with_what_there_is(values):
    with pytest.raises(FilterError) as caught:
        GroupFilter.read(values)
    assert caught.value.remedy


@given(st.text(max_size=40))
def test_no_text_is_an_error_of_the_search(text):
    with sqlite3.connect(":memory:") as database:
        database.execute("CREATE VIRTUAL TABLE words USING fts5 (body)")
        query = search_words(text)
        if query:
            database.execute("SELECT rowid FROM words WHERE words MATCH ?", (query,)).fetchall()


def test_each_filter_and_order_is_a_condition_with_as_many_values_as_marks():
    for show in ("", *SHOWN):
        for sort in SORTS:
            condition, values = GroupFilter(
                run="r", split="s", step="3", task="t", q="x", show=show, sort=sort
            ).condition()
            assert condition.count("?") == len(values) == 5


texts = st.text(alphabet="ab \n.ü", max_size=60)


@given(texts, texts)
def test_the_pieces_are_the_texts_and_what_is_not_marked_is_common(left, right):
    one, other = differing(left, right)
    assert "".join(text for text, _ in one) == left
    assert "".join(text for text, _ in other) == right
    assert [text for text, own in one if not own] == [text for text, own in other if not own]


def test_the_nearest_cassette_is_taken_and_none_outside_of_the_root(tmp_path):
    root = tmp_path / "runs"
    path = "desk/clerk/trajectories/train/000001.jsonl.zst"
    (root / path).parent.mkdir(parents=True)
    (tmp_path / CASSETTE).touch()
    assert cassette_of(root, path) is None
    (root / CASSETTE).touch()
    assert cassette_of(root, path) == root / CASSETTE
    (root / "desk" / "clerk" / CASSETTE).touch()
    assert cassette_of(root, path) == root / "desk" / "clerk" / CASSETTE
