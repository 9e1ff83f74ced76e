"""Each way in which a turn may not go on from the one before it has its name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.scenarios.trajectory import History, Trajectory
from gavel.trainer.data.training_batch import mismatches
from tests.trainer.conftest import Letters, attempt, sampled_turn, spelled

decode = Letters().decode
words = st.text("abcxyz", min_size=1, max_size=6)


def turns(first: str, said: str, second: str, finish_reason: str = "stop", **extra: object) -> Trajectory:
    return attempt(
        sampled_turn(spelled(first), spelled(said), finish_reason=finish_reason),
        sampled_turn(spelled(second), spelled("done"), **extra),
    )


@pytest.mark.parametrize(
    ("trajectory", "kind"),
    [
        (turns("systemuser", "thoughtreply", "systemuserreplynext", continues_sampled=True), "template"),
        (attempt(sampled_turn([0, 1], [2]), sampled_turn([26, 2, 3], [4])), "retokenisation"),
        (attempt(sampled_turn([2], [0, 1]), sampled_turn([2, 26, 3], [4], continues_sampled=True)), "retokenisation"),
        (turns("systemuser", "reply", "userreplynext"), "truncation"),  # the beginning is gone
        (turns("systemoneuser", "reply", "systemuserreplynext"), "truncation"),  # a stretch in the middle is
        (turns("systemuser", "reply", "system"), "truncation"),  # the turn itself is
        (turns("systemuser", "repl", "systemuserrefused", finish_reason="length"), "truncation"),
        (turns("systemuser", "reply", "systemuserrefusednext"), "client_edit"),
        (turns("systemuser", "reply", "systemquestionreplynext"), "client_edit"),  # the user's message is another
        (turns("systemuser", "reply", "systemusernext"), "client_edit"),
    ],
)
def test_a_turn_that_does_not_go_on_is_told_by_its_cause(trajectory, kind):
    assert mismatches(trajectory, decode) == {kind: 1}
    assert mismatches(Trajectory.from_json(trajectory.to_json()), decode) == {kind: 1}


@given(st.lists(st.tuples(words, words), min_size=1, max_size=4))
def test_a_conversation_that_only_grows_has_none(parts):
    context, said = "", []
    for added, reply in parts:
        said.append(sampled_turn(spelled(context + added), spelled(reply)))
        context += added + reply
    assert not mismatches(attempt(*said), decode)


def test_a_turn_may_be_sampled_again_and_any_of_the_samples_gone_on_from():
    again = [sampled_turn([1], [2]), sampled_turn([1], [3]), sampled_turn([1], [4])]
    for chosen in (2, 3, 4):
        assert not mismatches(attempt(*again, sampled_turn([1, chosen, 5], [6])), decode)


def test_going_on_from_before_the_last_turn_is_a_mismatch_though_the_tokens_are_there():
    skipped = attempt(sampled_turn([1], [2]), sampled_turn([1, 2, 3], [4]), sampled_turn([1, 2, 5], [6]))
    assert mismatches(skipped, decode).total() == 1


def test_a_further_history_may_begin_with_anything_and_what_it_took_over_is_not_counted_again():
    trajectory = turns("systemuser", "reply", "systemuserrefusednext")
    rewritten = History(messages_and_choices=[sampled_turn(spelled("summary"), spelled("reply"))])
    trajectory.additional_histories = [rewritten, *trajectory.histories()]
    assert mismatches(trajectory, decode) == {"client_edit": 1}
