"""What is trained is what was sampled, in the context in which it was sampled, once."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.chat_completion import Choice

from gavel.scenarios.trajectory import History, Trajectory
from gavel.trainer.data.token_sequences import TokenError, sequences, turn_of
from tests.trainer.conftest import attempt, sampled_turn

ids = st.lists(st.integers(0, 9), min_size=1, max_size=5)


def trained(trajectory: Trajectory) -> list[tuple[list[int], list[int]]]:
    """Per sequence, all its tokens and those of them that are trained."""
    return [
        (found.token_ids, [token for token, own in zip(found.token_ids, found.sampled, strict=True) if own])
        for found in sequences(trajectory)
    ]


def test_the_turns_of_a_conversation_are_one_sequence():
    first = sampled_turn([1, 2], [3, 4], [-0.1, -0.2], temperature=0.7)
    second = sampled_turn([1, 2, 3, 4, 9], [5], [-0.3], temperature=1.3)
    (found,) = sequences(attempt(first, {"role": "tool", "tool_call_id": "x", "content": "9"}, second))
    assert found.token_ids == [1, 2, 3, 4, 9, 5]
    assert found.sampled == [False, False, True, True, False, True]
    assert found.logprobs == [0, 0, -0.1, -0.2, 0, -0.3]
    assert found.temperatures == [1, 1, 0.7, 0.7, 1, 1.3]
    assert found.trained_tokens == 3


def test_a_rewritten_history_begins_a_sequence_whose_old_turns_are_context():
    first = sampled_turn([1, 2], [3])
    rewritten = sampled_turn([1, 8, 3], [4])
    assert trained(attempt(first, rewritten)) == [([1, 2, 3], [3]), ([1, 8, 3, 4], [4])]


def test_a_turn_that_was_sampled_again_is_a_sequence_of_its_own():
    assert trained(attempt(sampled_turn([1], [2]), sampled_turn([1], [3]))) == [([1, 2], [2]), ([1, 3], [3])]


def test_a_conversation_goes_on_from_the_fork_that_it_extends():
    turns = [sampled_turn([1], [2]), sampled_turn([1], [3]), sampled_turn([1, 2, 7], [4]), sampled_turn([1, 3, 7], [5])]
    assert trained(attempt(*turns)) == [([1, 2, 7, 4], [2, 4]), ([1, 3, 7, 5], [3, 5])]


def test_additional_histories_are_trained_too():
    trajectory = attempt(sampled_turn([1], [2]))
    trajectory.additional_histories = [History(messages_and_choices=[sampled_turn([5], [6])])]
    assert trained(trajectory) == [([1, 2], [2]), ([5, 6], [6])]


@pytest.mark.parametrize("stored", [False, True])
def test_a_turn_that_a_further_history_took_over_is_trained_once(stored):
    shared = sampled_turn([1], [2], [-0.4])
    trajectory = attempt(shared, sampled_turn([1, 2, 3], [4]))
    trajectory.additional_histories = [History(messages_and_choices=[shared, sampled_turn([1, 2, 8], [5])])]
    if stored:
        trajectory = Trajectory.from_json(trajectory.to_json())
    assert trained(trajectory) == [([1, 2, 3, 4], [2, 4]), ([1, 2, 8, 5], [5])]


def test_two_equal_samples_of_one_history_both_count():
    turn = sampled_turn([1], [2])
    assert len(sequences(attempt(turn, sampled_turn([1], [2])))) == 2


@pytest.mark.parametrize("stored", [False, True])
def test_two_equal_samples_of_two_histories_both_count(stored):
    trajectory = attempt(sampled_turn([1], [2], sample_id="one"))
    trajectory.additional_histories = [History(messages_and_choices=[sampled_turn([1], [2], sample_id="two")])]
    if stored:
        trajectory = Trajectory.from_json(trajectory.to_json())
    assert trained(trajectory) == [([1, 2], [2]), ([1, 2], [2])]


def test_a_sample_that_histories_repeat_counts_once_beside_its_equal():
    one, two = sampled_turn([1], [2], sample_id="one"), sampled_turn([1], [2], sample_id="two")
    trajectory = attempt(one, sampled_turn([1, 2, 3], [4], sample_id="three"))
    fork = sampled_turn([1, 2, 8], [5], sample_id="four")
    trajectory.additional_histories = [
        History(messages_and_choices=[one, fork]),
        History(messages_and_choices=[two, two, one]),
    ]
    assert trained(trajectory) == [([1, 2, 3, 4], [2, 4]), ([1, 2, 8, 5], [5]), ([1, 2], [2])]


@given(st.lists(st.tuples(ids, ids), min_size=1, max_size=6))
def test_a_conversation_that_only_grows_is_one_sequence_however_long(parts):
    context: list[int] = []
    turns = []
    for added, said in parts:
        turns.append(sampled_turn([*context, *added], said))
        context = [*context, *added, *said]
    (found,) = sequences(attempt(*turns))
    assert found.token_ids == context
    assert found.trained_tokens == sum(len(said) for _, said in parts)


@given(st.lists(st.tuples(ids, ids), max_size=6))
def test_every_sampled_token_is_trained_once_and_stands_behind_its_own_prompt(turns):
    found = sequences(attempt(*(sampled_turn(prompt, said) for prompt, said in turns)))
    assert sum(s.trained_tokens for s in found) == sum(len(said) for _, said in turns)
    for prompt, said in turns:
        whole = [*prompt, *said]
        assert any(s.token_ids[: len(whole)] == whole and all(s.sampled[len(prompt) : len(whole)]) for s in found)
    for s in found:
        assert len(s.token_ids) == len(s.sampled) == len(s.logprobs) == len(s.temperatures)


def test_a_history_that_goes_on_from_another_is_one_sequence_with_it_whichever_comes_first():
    early, late = sampled_turn([1], [2]), sampled_turn([1, 2, 3], [4])
    for one, other in ((early, late), (late, early)):
        trajectory = attempt(one)
        trajectory.additional_histories = [History(messages_and_choices=[other])]
        assert trained(trajectory) == [([1, 2, 3, 4], [2, 4])]


def test_samples_that_differ_in_their_logprobs_alone_are_two():
    trajectory = attempt(sampled_turn([1], [2], [-0.1]))
    trajectory.additional_histories = [History(messages_and_choices=[sampled_turn([1], [2], [-0.2])])]
    assert sorted(found.logprobs for found in sequences(trajectory)) == [[0, -0.2], [0, -0.1]]


def test_a_turn_in_which_nothing_was_sampled_is_no_sequence():
    assert trained(attempt(sampled_turn([1], []), sampled_turn([1, 5], [2]))) == [([1, 5, 2], [2])]


@st.composite
def conversations(draw: st.DrawFn) -> list[Choice]:
    """Turns of conversations that fork and are taken up again: each goes on from any turn before it, or from none."""
    turns: list[Choice] = []
    ends: list[list[int]] = [[]]
    for _ in range(draw(st.integers(1, 7))):
        prompt, said = [*draw(st.sampled_from(ends)), *draw(ids)], draw(ids)
        logprobs = draw(st.lists(st.sampled_from([-0.5, -1.0]), min_size=len(said), max_size=len(said)))
        turns.append(sampled_turn(prompt, said, logprobs, temperature=draw(st.sampled_from([0.5, 2.0]))))
        ends.append([*prompt, *said])
    return turns


@given(conversations(), st.data())
def test_the_graph_is_that_of_the_definition_however_the_turns_are_spread_over_histories(turns, data):
    trajectory = attempt(*turns)
    copied = data.draw(st.lists(st.lists(st.sampled_from(turns), unique_by=id), max_size=3))
    trajectory.additional_histories = [History(messages_and_choices=list(history)) for history in copied]
    sampled = [turn_of(choice) for choice in turns]
    ends = [turn.prompt_ids + turn.token_ids for turn in sampled]
    last = [end for end in ends if not any(turn.prompt_ids[: len(end)] == end for turn in sampled)]
    found = sequences(trajectory)
    # Whatever nobody goes on from ends a sequence; of equal turns one is gone on from and the others end one too.
    spare = list(last)
    for each in found:
        assert each.token_ids in ends
        if each.token_ids in spare:
            spare.remove(each.token_ids)
    assert not spare
    # Token by token: what is marked as sampled is exactly the turns, each once, with its log-probs and temperature.
    marked = Counter(
        (tuple(each.token_ids[: at + 1]), each.logprobs[at], each.temperatures[at])
        for each in found
        for at, own in enumerate(each.sampled)
        if own
    )
    assert marked == Counter(
        (tuple(end[: len(turn.prompt_ids) + at + 1]), turn.logprobs[at], turn.temperature)
        for turn, end in zip(sampled, ends, strict=True)
        for at in range(len(turn.token_ids))
    )
    for each in found:
        assert any(each.sampled)
        rest = zip(each.sampled, each.logprobs, each.temperatures, strict=True)
        assert {(lp, heat) for own, lp, heat in rest if not own} <= {(0.0, 1.0)}


def test_stitching_leaves_the_recorded_turns_alone():
    first, second = sampled_turn([1], [2]), sampled_turn([1, 2, 3], [4])
    sequences(attempt(first, second))
    assert turn_of(first).prompt_ids == [1]
    assert turn_of(second).prompt_ids == [1, 2, 3]


def test_greedy_turns_count_at_temperature_one():
    assert turn_of(sampled_turn([1], [2], temperature=0.0)).temperature == 1.0
    assert turn_of(sampled_turn([1], [2])).temperature == 1.0


@pytest.mark.parametrize("missing", ["token_ids", "prompt_token_ids", "logprobs"])
def test_a_turn_without_its_tokens_says_how_to_sample_it(missing):
    turn = sampled_turn([1], [2])
    if missing == "logprobs":
        turn.logprobs = None
    else:
        assert turn.model_extra is not None
        del turn.model_extra[missing]
    with pytest.raises(TokenError, match="cannot be trained exactly") as error:
        sequences(attempt(turn))
    assert "openai_client" in error.value.remedy


def test_a_turn_with_too_few_logprobs_is_refused():
    with pytest.raises(TokenError, match="3 token ids but 1 log-probs"):
        sequences(attempt(sampled_turn([1], [2, 3, 4], [-0.1])))


def test_a_trajectory_without_sampled_turns_has_no_sequences():
    assert sequences(Trajectory(messages_and_choices=[{"role": "user", "content": "hi"}])) == []
