"""What is trained is what was sampled, in the context in which it was sampled, once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.trajectory import History, Trajectory
from tests.trainer.conftest import attempt, sampled_turn
from trainer.tokens import TokenError, sequences, turn_of

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
