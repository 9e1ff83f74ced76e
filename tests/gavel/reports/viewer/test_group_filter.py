import sqlite3
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.reports.viewer.group_filter import SHOWN, SORTS, FilterError, GroupFilter, search_words


@pytest.mark.parametrize(
    "values", [{"show": "no such"}, {"sort": "up"}, {"page": "0"}, {"page": "x"}, {"step": "-1"}, {"q": "x" * 501}]
)
def test_what_there_is_not_is_refused_with_what_there_is(values):
    with pytest.raises(FilterError) as caught:
        GroupFilter.read(values)
    assert caught.value.remedy


def test_an_address_leads_to_the_same_filter_from_its_first_page():
    wanted = GroupFilter.read({"run": "desk/a b", "show": "flagged", "q": 'a&b="x"', "page": "3", "unknown": "x"})
    again = GroupFilter.read(dict(parse_qsl(urlsplit(wanted.address()).query)))
    assert again == GroupFilter(run="desk/a b", show="flagged", q='a&b="x"')
    assert wanted.address(page=4).endswith("&page=4")
    assert GroupFilter().address() == "/groups"


@given(st.text(max_size=40))
def test_no_text_is_an_error_of_the_search(text):
    with sqlite3.connect(":memory:") as database:
        database.execute("CREATE VIRTUAL TABLE words USING fts5 (body)")
        query = search_words(text)
        if query:
            database.execute("SELECT rowid FROM words WHERE words MATCH ?", (query,)).fetchall()


def test_all_words_count_and_the_last_may_be_a_beginning():
    assert search_words('refund "the LAMP') == '"refund" "the" "LAMP"*'
    assert search_words("?!") == ""


def test_each_filter_and_order_is_a_condition_with_as_many_values_as_marks():
    for show in ("", *SHOWN):
        for sort in SORTS:
            condition, values = GroupFilter(
                run="r", split="s", step="3", task="t", q="x", show=show, sort=sort
            ).condition()
            assert condition.count("?") == len(values) == 5
