"""Supervised training with a schedule, in steps with one rate each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.compat.art.local.sft_parts import sft_parts
from gavel.compat.art.trajectories import Trajectory
from gavel.compat.art.types import TrainSFTConfig


@given(st.integers(1, 70), st.integers(1, 3))
def test_every_trajectory_is_trained_once_in_order_at_its_parts_mean_rate(number: int, size: int) -> None:
    members = [Trajectory(metadata={"n": n}) for n in range(number)]
    batches = -(-number // size)
    rates = [1e-4 * (n + 1) for n in range(batches)]
    parts = list(sft_parts(members, TrainSFTConfig(learning_rate=rates, batch_size=size)))
    assert [member for part, _ in parts for member in part] == members
    assert len(parts) == -(-batches // 16)
    for number, (_, config) in enumerate(parts):
        chosen = rates[16 * number : 16 * (number + 1)]
        assert config.learning_rate == pytest.approx(sum(chosen) / len(chosen))


def test_one_rate_is_one_step_with_two_trajectories_in_an_update() -> None:
    ((_, config),) = sft_parts([Trajectory()] * 5, TrainSFTConfig(learning_rate=1e-4))
    assert (config.learning_rate, config.batch_size) == (1e-4, 2)
    assert list(sft_parts([], TrainSFTConfig())) == []


def test_too_few_rates_are_refused_and_a_rate_of_0_trains_nothing() -> None:
    with pytest.raises(ValueError, match="3 batches of 1 need as many"):
        list(sft_parts([Trajectory()] * 3, TrainSFTConfig(learning_rate=[1e-4], batch_size=1)))
    assert list(sft_parts([Trajectory()], TrainSFTConfig(learning_rate=[0.0], batch_size=1))) == []
