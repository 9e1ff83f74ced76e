"""The list's filter: read from addresses, written to addresses, and asked of the store."""

from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.service.engine.admission import ANYONE, Caller
from gavel.judge.service.http.pages.views import PAGE_SIZE, STATUSES, ListFilter
from gavel.judge.service.http.problems import Problem
from gavel.judge.service.schemas.records import Query

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20).map(str.strip)
TIMES = st.just("") | st.datetimes().map(lambda moment: moment.isoformat(timespec="minutes"))


@given(
    st.builds(
        ListFilter,
        project=TEXT,
        status=st.sampled_from(["", *STATUSES]),
        judge=TEXT,
        since=TIMES,
        until=TIMES,
        before=st.just("") | st.uuids().map(str),
    )
)
def test_an_address_is_read_back_as_the_same_filter(filter: ListFilter):
    address = filter.address(before=filter.before)
    assert address.startswith("/")
    assert ListFilter.read(dict(parse_qsl(address.partition("?")[2]))) == filter
    assert filter.query(ANYONE).limit == PAGE_SIZE + 1


def test_a_form_that_is_left_empty_shows_all():
    empty = ListFilter.read(dict.fromkeys(("project", "status", "judge", "since", "until", "other"), ""))
    assert (empty, empty.is_filtered, empty.address()) == (ListFilter(), False, "/")
    assert empty.query(ANYONE) == Query(limit=PAGE_SIZE + 1)


@pytest.mark.parametrize(
    ("name", "statuses"),
    [
        ("unfinished", {"queued", "running"}),
        ("finished", {"scored", "partial", "unscored", "degenerate", "failed"}),
        ("partial", {"partial"}),
    ],
)
def test_a_status_may_be_a_kind_of_statuses(name: str, statuses: set[str]):
    assert ListFilter(status=name).query(ANYONE).statuses == statuses


@pytest.mark.parametrize(
    ("text", "seconds"), [("1970-01-01T01:00", 3600.0), ("1970-01-01T01:00+01:00", 0.0), ("1970-01-02", 86400.0)]
)
def test_times_without_a_zone_are_utc(text: str, seconds: float):
    assert ListFilter(since=text, until=text).query(ANYONE).since == seconds
    assert ListFilter(since=text, until=text).query(ANYONE).until == seconds


@pytest.mark.parametrize(
    "values",
    [
        {"status": "<b>"},
        {"since": "yesterday"},
        {"until": "2026-99-99"},
        {"project": "a\0b"},
        {"judge": "x" * 2000},
        {"before": "<b>"},
    ],
)
def test_what_is_no_filter_is_refused(values: dict[str, str]):
    with pytest.raises(Problem) as refused:
        ListFilter.read(values)
    assert (refused.value.status, bool(refused.value.remedy)) == (422, True)


def test_a_key_sees_its_projects_and_no_others():
    caller = Caller("id", ("desk", "shop"))
    assert ListFilter().query(caller).projects == {"desk", "shop"}
    assert ListFilter(project="shop").query(caller).projects == {"shop"}
    with pytest.raises(Problem) as refused:
        ListFilter(project="other").query(caller)
    assert refused.value.status == 403
