import json

from hypothesis import given
from hypothesis import strategies as st

from gavel.reports.viewer.group_summary import summarize
from gavel.scenarios.trajectory import Trajectory
from tests.gavel.reports.viewer.stored import group, member, sampled


def row(made):
    return json.loads(made.to_json())


def test_a_summary_has_what_lists_show():
    made = group(
        member("I am done.", 0.9, success=False),
        member("Mended it.", 0.2, success=True, status="truncated"),
        status="partial",
    )
    found = summarize(row(made))
    assert (found.task, found.title, found.status) == ("t1", "Please mend t1.", "partial")
    assert (found.members, found.unscored, found.truncated, found.failed) == (2, 0, 1, 0)
    assert (found.mean, found.spread, found.success, found.cost_usd) == (0.55, 0.7, 0.5, 0.01)
    assert found.discordant == 1
    for text in ("You run the desk.", "Mended it.", "a lamp", "look", "because"):
        assert text in found.words


def test_a_pair_is_discordant_only_where_both_tell_it_apart_the_other_way():
    pairs = [(0.9, True), (0.9, False), (0.2, True), (None, True)]
    members = [member("x", score, success=success) for score, success in pairs]
    assert summarize(row(group(*members))).discordant == 1
    assert summarize(row(group(member("x", 0.9), member("y", 0.1)))).discordant == 0


def test_turns_that_continue_no_sampled_one_count_as_edited():
    edited = Trajectory(
        messages_and_choices=[sampled("one"), {"role": "user", "content": "?"}, sampled("two", continues_sampled=False)]
    )
    assert summarize(row(group(edited, member("x", 0.1)))).edited == 1


def test_a_group_that_was_not_judged_says_so():
    found = summarize(row(group(member("x", None))) | {"judgement": None})
    assert (found.status, found.mean, found.spread, found.unscored) == ("unjudged", None, None, 1)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "trajectories",
                    "judgement",
                    "metrics",
                    "messages_and_choices",
                    "role",
                    "content",
                    "flags",
                    "score",
                    "success",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(st.sampled_from(["trajectories", "judgement", "metadata", "exceptions"]), json_values, max_size=4)
)
def test_a_row_may_hold_anything(anything):
    assert summarize(anything).members >= 0
