"""What a group's pages and its line in a list show, and which groups a list shows."""

import json
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.reports.viewer.group_summary import summarize
from gavel.reports.viewer.group_view import group_view
from gavel.reports.viewer.index import FilterError, GroupFilter, search_words
from gavel.scenarios.trajectory import Trajectory
from tests.gavel.reports.viewer.stored import group, member, sampled


def test_members_stand_side_by_side_round_by_round():
    short = Trajectory(messages_and_choices=member("x", 0.1).messages_and_choices[:4])
    found = group_view(group(member("a", 0.2), short, member("b", 0.9)), "", [])
    assert [view.number for view in found.members] == [0, 1, 2]
    assert [turn.role for turn in found.opening] == ["system", "user"]
    assert [[len(turns) for turns in part] for part in found.rounds] == [[2, 2, 2], [1, 0, 1]]
    assert found.members[0].tokens == 4
    assert found.rounds[0][0][0].calls[0].name == "look"
    assert found.rounds[1][0][0].text == "a"


def test_the_best_come_first_and_those_without_a_score_last():
    members = [member("a", 0.2), member("b", None), member("c", 0.9), Trajectory(reward=0.5)]
    assert [view.number for view in group_view(group(*members), "score", []).members] == [2, 3, 0, 1]


@pytest.mark.parametrize(
    "values", [{"show": "no such"}, {"sort": "up"}, {"page": "0"}, {"step": "-1"}, {"q": "x" * 501}]
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


def summary(*members, **fields):
    return summarize(json.loads(group(*members, **fields).to_json()))


def test_a_summary_has_what_lists_show():
    cut = member("Mended it.", 0.2, success=True, status="truncated")
    found = summary(member("I am done.", 0.9, success=False), cut, status="partial")
    assert (found.task, found.title, found.status) == ("t1", "Please mend t1.", "partial")
    assert (found.members, found.unscored, found.truncated, found.failed) == (2, 0, 1, 0)
    assert (found.mean, found.spread, found.success, found.cost_usd) == (0.55, 0.7, 0.5, 0.01)
    for text in ("You run the desk.", "Mended it.", "a lamp", "look", "because"):
        assert text in found.words


def test_a_pair_is_discordant_only_where_both_tell_it_apart_the_other_way():
    pairs = [(0.9, True), (0.9, False), (0.2, True), (None, True)]
    assert summary(*[member("x", score, success=success) for score, success in pairs]).discordant == 1
    assert summary(member("x", 0.9), member("y", 0.1)).discordant == 0


def test_turns_that_continue_no_sampled_one_count_as_edited():
    edited = Trajectory(
        messages_and_choices=[sampled("one"), {"role": "user", "content": "?"}, sampled("two", continues_sampled=False)]
    )
    assert summary(edited, member("x", 0.1)).edited == 1


names = st.sampled_from(
    ["trajectories", "judgement", "metadata", "exceptions", "metrics", "messages_and_choices", "role", "score"]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(names, json_values, max_size=4))
def test_a_row_may_hold_anything(anything):
    assert summarize(anything).members >= 0
