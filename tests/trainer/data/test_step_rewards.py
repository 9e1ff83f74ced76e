"""Step rewards and the trajectory's reward, assigned to trained tokens."""

import pytest

from gavel.scenarios.trajectory import History, Trajectory
from gavel.trainer.data.step_rewards import token_rewards
from gavel.trainer.data.token_sequences import sequences
from tests.trainer.conftest import attempt, sampled_turn


def test_a_turns_reward_comes_with_its_last_token_and_the_trajectorys_with_the_end_of_every_sequence():
    first, second = sampled_turn([1, 2], [3, 4]), sampled_turn([1, 2, 3, 4, 9, 9], [5, 6, 7])
    aside = sampled_turn([8], [2, 2])
    trajectory = attempt(first, second, reward=10.0, step_rewards=[0.1, 0.2, 7.0, 0.4])
    trajectory.additional_histories = [History(messages_and_choices=[first, aside])]
    main, other = sequences(trajectory)
    assert token_rewards(trajectory, main) == pytest.approx([0, 0.1, 0, 0, 10.2])
    assert token_rewards(trajectory, other) == pytest.approx([0, 10.4])
    assert token_rewards(attempt(first, reward=1.0), main) == [0, 0, 0, 0, 1]


def test_step_rewards_survive_json():
    trajectory = attempt(reward=0.0, step_rewards=[0.5, -1.0])
    assert Trajectory.from_json(trajectory.to_json()).step_rewards == [0.5, -1.0]
