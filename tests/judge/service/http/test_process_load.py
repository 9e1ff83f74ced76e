"""What the processes of one port show each other."""

from multiprocessing import get_context

from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.service.http.process_load import ProcessLoad


def test_a_process_takes_nothing_until_it_shows_its_load_and_after_it_is_closed() -> None:
    load = ProcessLoad(2, get_context())
    assert load.of(0) is None
    load.set(0, 3)
    assert (load.of(0), load.of(1)) == (3, None)
    load.close(0)
    assert load.of(0) is None


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2))))
def test_what_was_taken_is_counted_for_each_pair_of_processes(taken: list[tuple[int, int]]) -> None:
    load = ProcessLoad(3, get_context())
    for place, sender in taken:
        load.take(place, sender)
    pairs = [(place, sender) for place in range(3) for sender in range(3)]
    assert {pair: load.taken(*pair) for pair in pairs} == {pair: taken.count(pair) for pair in pairs}
