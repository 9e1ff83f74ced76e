"""Numbers for members without a reward."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.integrations._rewards import log_missing, rewards_of, with_mean
from gavel.scenarios.group import TrajectoryGroup
from tests.integrations.test_unscored import judged

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


@pytest.mark.parametrize(
    ("group", "level"),
    [
        (judged("partial", 0.9, None), logging.WARNING),
        (judged("degenerate", None, None), logging.INFO),
        (judged("scored", 0.9, 0.1), None),
    ],
    ids=["a score is missing", "all alike", "scored"],
)
def test_what_is_left_out_is_logged(caplog: pytest.LogCaptureFixture, group: TrajectoryGroup, level: int | None):
    with caplog.at_level(logging.INFO, "gavel.rewards"):
        log_missing(group, rewards_of(group, "member"))
    assert [record.levelno for record in caplog.records] == ([] if level is None else [level])
