"""Numbers for members without a reward."""

from hypothesis import given
from hypothesis import strategies as st

from gavel.rewards.baseline import with_mean

REWARDS = st.lists(st.none() | st.floats(0, 1), max_size=12)


@given(REWARDS)
def test_a_missing_reward_leaves_the_mean_and_the_others_where_they_are(rewards: list[float | None]):
    filled = with_mean(rewards)
    given_ones = [reward for reward in rewards if reward is not None]
    assert [number for number, reward in zip(filled, rewards, strict=True) if reward is not None] == given_ones
    if given_ones:
        assert abs(sum(filled) / len(filled) - sum(given_ones) / len(given_ones)) < 1e-9


def test_a_group_without_any_reward_is_constant():
    assert with_mean([None, None]) == [0.0, 0.0]
