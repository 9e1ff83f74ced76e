"""The token sequences of a trajectory, and the packed rows that are made of them."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.chat_completion import Choice

from gavel.scenarios.trajectory import History, Trajectory
from gavel.trainer.data.packing import assign_to_ranks, micro_batches, pack, unique_tokens
from gavel.trainer.data.token_sequences import TokenError, TokenSequence, sequences, turn_of
from tests.trainer.conftest import attempt, sampled_turn

ids = st.lists(st.integers(0, 9), min_size=1, max_size=5)


def trained(trajectory: Trajectory) -> list[tuple[list[int], list[int]]]:
    """Per sequence, all its tokens and those of them that are trained."""
    return [
        (found.token_ids, [token for token, own in zip(found.token_ids, found.sampled, strict=True) if own])
        for found in sequences(trajectory)
    ]


@pytest.mark.parametrize("stored", [False, True])
def test_two_equal_samples_of_two_histories_both_count(stored):
    trajectory = attempt(sampled_turn([1], [2], sample_id="one"))
    trajectory.additional_histories = [History(messages_and_choices=[sampled_turn([1], [2], sample_id="two")])]
    if stored:
        trajectory = Trajectory.from_json(trajectory.to_json())
    assert trained(trajectory) == [([1, 2], [2]), ([1, 2], [2])]


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


@pytest.mark.parametrize("missing", ["token_ids", "logprobs"])
def test_a_turn_without_its_tokens_says_how_to_sample_it(missing):
    turn = sampled_turn([1], [2])
    if missing == "logprobs":
        turn.logprobs = None
    else:
        del turn.model_extra[missing]
    with pytest.raises(TokenError, match="cannot be trained exactly") as error:
        sequences(attempt(turn))
    assert "openai_client" in error.value.remedy
    with pytest.raises(TokenError, match="3 token ids but 1 log-probs"):
        sequences(attempt(sampled_turn([1], [2, 3, 4], [-0.1])))


@st.composite
def packed_sequences(draw: st.DrawFn) -> TokenSequence:
    """Few different tokens, so that prefixes are shared; the first is never sampled."""
    ids = draw(st.lists(st.integers(0, 2), min_size=1, max_size=9))
    sampled = [False, *draw(st.lists(st.booleans(), min_size=len(ids) - 1, max_size=len(ids) - 1))]
    temperatures = [draw(st.sampled_from([0.5, 1.0])) if own else 1.0 for own in sampled]
    return TokenSequence(ids, sampled, [0.0] * len(ids), temperatures)


batches = st.lists(packed_sequences(), min_size=1, max_size=8)


@given(batches)
def test_a_sequence_is_its_path_which_its_tokens_see_alone_and_each_keeps_its_predictor_target_and_heat(batch):
    packed = pack(batch)
    for tokens, path in zip(batch, packed.paths, strict=True):
        assert packed.token_ids[path].tolist() == tokens.token_ids
        assert packed.positions[path].tolist() == list(range(len(tokens.token_ids)))
    prefixes = {tuple(tokens.token_ids[: end + 1]) for tokens in batch for end in range(len(tokens.token_ids))}
    assert len(packed.token_ids) == len(prefixes) == unique_tokens(batch), "each prefix stands in the row once"
    seen = {}  # through the segments
    for segment in packed.segments:
        assert segment.start < segment.stop <= segment.end
        for place in range(segment.start, segment.end):
            seen.setdefault(place, []).extend(range(segment.start, min(place + 1, segment.stop)))
    for path in packed.paths:
        for depth, place in enumerate(path):
            assert seen[place] == path[: depth + 1].tolist()
    found = [(packed.predictors[s], packed.targets[s], packed.temperatures[s]) for s in packed.scored]
    expected = [
        (path[place - 1], tokens.token_ids[place], tokens.temperatures[place])
        for tokens, path in zip(batch, packed.paths, strict=True)
        for place, own in enumerate(tokens.sampled)
        if own
    ]
    assert found == expected
    assert len(packed.predictors) == len(set(expected))


@given(batches, st.data(), st.integers(1, 40), st.integers(1, 5))
def test_a_plan_keeps_to_its_limit_and_no_part_is_heavier_than_another_by_more_than_a_group(batch, data, most, count):
    groups = data.draw(st.lists(st.integers(0, 4), min_size=len(batch), max_size=len(batch)))
    planned = micro_batches(batch, groups, most)
    assert sorted(index for indices in planned for index in indices) == list(range(len(batch)))
    for indices in planned:
        assert len(indices) == 1 or unique_tokens([batch[index] for index in indices]) <= most
    parts = assign_to_ranks(batch, groups, count)
    assert len(parts) == count
    assert sorted(index for part in parts for index in part) == list(range(len(batch)))
    sizes = {
        group: unique_tokens([batch[at] for at, own in enumerate(groups) if own == group]) for group in set(groups)
    }
    held = [{groups[index] for index in part} for part in parts]
    assert sum(len(each) for each in held) == len(sizes)
    loads = [sum(sizes[group] for group in each) for each in held]
    assert max(loads) - min(loads) <= max(sizes.values())
