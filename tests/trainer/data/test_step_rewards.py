"""Step rewards and the trajectory's reward, assigned to trained tokens."""

from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.base.fields import FieldError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import History, Trajectory
from gavel.trainer.config import Ppo, TrainConfig
from gavel.trainer.data.left_out import LeftOut
from gavel.trainer.data.step_rewards import step_advantages, token_advantages, token_rewards
from gavel.trainer.data.token_sequences import TokenError, sequences
from gavel.trainer.data.training_batch import has_signal, make_batch
from tests.trainer.conftest import Letters, attempt, sampled_turn


def test_a_turns_reward_comes_with_its_last_token_and_the_trajectorys_with_the_end_of_every_sequence():
    first, second = sampled_turn([1, 2], [3, 4]), sampled_turn([1, 2, 3, 4, 9, 9], [5, 6, 7])
    aside = sampled_turn([8], [2, 2])
    trajectory = attempt(first, second, reward=10.0, step_rewards=[0.1, 0.2, 7.0, 0.4])
    trajectory.additional_histories = [History(messages_and_choices=[first, aside])]
    main, other = sequences(trajectory)
    assert token_rewards(trajectory, main) == pytest.approx([0, 0.1, 0, 0, 10.2])
    assert token_rewards(trajectory, other) == pytest.approx([0, 10.4])
    assert token_rewards(attempt(first, reward=1.0), main) == [0, 0, 0, 0, 1]


steps = st.lists(st.floats(-2, 2), min_size=1, max_size=4)


@given(st.lists(steps, min_size=2, max_size=4), st.booleans())
def test_a_token_gets_the_advantages_of_its_own_turn_and_of_later_ones(rewards, divide):
    """DeepSeekMath's process supervision written out."""
    everything = [reward for member in rewards for reward in member]
    mean = fmean(everything)
    spread = (stdev(everything) if len(everything) > 1 else 0.0) + 1e-4 if divide else 1.0
    members = []
    for number, own in enumerate(rewards):
        ids, turns = [number], []
        for _ in own:
            turns.append(sampled_turn(list(ids), [7, 8]))
            ids += [7, 8, 9]
        members.append(attempt(*turns, reward=float(number), step_rewards=own))
    found = step_advantages(members, divide=divide)
    for number, member in enumerate(members):
        (tokens,) = sequences(member)
        expected = []
        for turn in range(len(rewards[number])):
            later = sum((reward - mean) / spread for reward in rewards[number][turn:])
            expected += [0.25 + later] * 2
        assert token_advantages(0.25, found[number], tokens) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_equal_trajectories_with_other_turns_are_trained_and_members_with_too_few_rewards_are_counted():
    def member(*rewards: float):
        return attempt(sampled_turn([1], [2]), sampled_turn([1, 2, 3], [4]), reward=0.5, step_rewards=[*rewards])

    group = TrajectoryGroup([member(1.0, 0.0), member(0.0, 0.0), member(1.0)])
    batch = make_batch([group], TrainConfig(step_advantages=True), Letters())
    assert [each.advantages for each in batch.sequences] == [[0.5, -0.25], [-0.5, -0.25]]
    assert batch.left_out_members == {LeftOut.STEP_REWARDS_MISMATCH: 1}
    assert has_signal(group, TrainConfig(step_advantages=True))
    unlike = TrajectoryGroup([member(1.0, 0.0), attempt(sampled_turn([1], [2]), reward=0.0)])
    with pytest.warns(UserWarning, match="step_advantages=True or loss=Ppo"):
        plain = make_batch([unlike], TrainConfig(), Letters())
    assert all(not each.advantages for each in plain.sequences)
    assert not has_signal(group, TrainConfig())


@pytest.mark.parametrize(
    "settings", [{"kl_in_reward": 0.1}, {"normalize_over_batch": True}, {"advantage": "rank"}, {"loss": Ppo()}]
)
def test_what_does_not_go_with_compared_turns_is_refused(settings):
    with pytest.raises(FieldError, match="step_advantages"):
        TrainConfig(step_advantages=True, **settings)


def test_step_rewards_survive_json():
    trajectory = attempt(reward=0.0, step_rewards=[0.5, -1.0])
    assert Trajectory.from_json(trajectory.to_json()).step_rewards == [0.5, -1.0]


def test_advantages_that_turns_carry_are_those_of_their_tokens():
    first = sampled_turn([1, 2], [3, 4], token_advantages=[0.5, -0.25])
    second = sampled_turn([1, 2, 3, 4, 9], [5], token_advantages=[2.0])
    members = [attempt(first, second, reward=1.0), attempt(sampled_turn([1, 2], [6]), reward=0.0)]
    batch = make_batch([TrajectoryGroup(members)], TrainConfig(), Letters())
    given, other = batch.sequences
    assert given.advantages == [0.5, -0.25, 2.0]
    assert (list(other.advantages), other.advantage) == ([], -0.5)  # the other member's reward counts in its mean


def test_given_advantages_are_a_signal_where_the_rewards_are_none_and_zeros_are_not():
    def group(*values: float) -> TrajectoryGroup:
        turns = [sampled_turn([1, 2], [3], token_advantages=[value]) for value in values]
        return TrajectoryGroup([attempt(turn, reward=0.5) for turn in turns])

    assert has_signal(group(1.0, 0.0), TrainConfig())
    assert not has_signal(group(0.0, 0.0), TrainConfig())
    (alone,) = make_batch([group(3.0)], TrainConfig(), Letters()).sequences
    assert alone.advantages == [3.0]


@pytest.mark.parametrize("values", [[1.0], [1.0, float("nan")]])
def test_given_advantages_that_do_not_fit_their_tokens_are_refused(values):
    group = TrajectoryGroup([attempt(sampled_turn([1], [2, 3], token_advantages=values), reward=1.0)])
    with pytest.raises(TokenError, match="token_advantages"):
        make_batch([group], TrainConfig(), Letters())
