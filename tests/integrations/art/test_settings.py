"""ART's settings of training as Gavel's."""

import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.integrations.art.errors import IgnoredSetting, NotInGavelError
from gavel.integrations.art.settings import sft_parts, train_config
from gavel.integrations.art.trajectories import Trajectory
from gavel.integrations.art.types import TrainSFTConfig
from gavel.trainer.config import Cispo, ClippedSurrogate, Gspo, Loss, TrainConfig


def translated(groups: int = 4, trajectories: int = 32, **given: Any) -> TrainConfig:
    return train_config(given, {}, groups=groups, trajectories=trajectories)


@pytest.mark.parametrize(
    ("given", "loss"),
    [
        ({}, Cispo(ratio_cap=5.0)),
        ({"epsilon_high": 2.0}, Cispo(ratio_cap=3.0)),
        ({"loss_fn": "ppo"}, ClippedSurrogate(clip_low=0.2, clip_high=0.2)),
        ({"ppo": True, "epsilon": 0.1, "epsilon_high": 0.3}, ClippedSurrogate(clip_low=0.1, clip_high=0.3)),
        (
            {"ppo": True, "max_negative_advantage_importance_sampling_weight": 3.0},
            ClippedSurrogate(clip_low=0.2, clip_high=0.2, dual_clip=3.0),
        ),
        ({"importance_sampling_level": "sequence"}, Gspo()),
        ({"importance_sampling_level": "sequence", "epsilon": 0.01}, Gspo(clip_low=0.01, clip_high=0.01)),
    ],
)
def test_the_loss_is_the_one_that_art_would_use(given: dict[str, Any], loss: Loss) -> None:
    assert translated(**given).loss == loss


def test_a_loss_that_art_does_not_have_stops_with_a_remedy() -> None:
    with pytest.raises(NotInGavelError, match="Choose cispo or ppo"):
        translated(loss_fn="dro")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"learning_rate": 5e-6, "advantage": "std", "beta": 0.0, "kl_in_reward": 0.0, "reference": "base"}),
        ({"learning_rate": 1e-4, "beta": 0.1}, {"learning_rate": 1e-4, "beta": 0.1}),
        ({"scale_rewards": False}, {"advantage": "mean"}),
        ({"normalize_advantages": False}, {"advantage": "mean"}),
        ({"kl_penalty_coef": 0.02, "kl_penalty_reference_step": 3}, {"kl_in_reward": 0.02, "reference": "3"}),
        ({"kl_penalty_coef": 0.02, "kl_ref_adapter_path": "runs/a"}, {"reference": "runs/a"}),
    ],
)
def test_a_setting_with_a_counterpart_is_translated(given: dict[str, Any], expected: dict[str, Any]) -> None:
    config = translated(**given)
    assert {name: getattr(config, name) for name in expected} == expected


def test_importance_sampling_is_truncated_where_art_truncates_it() -> None:
    correction = translated(truncated_importance_sampling=2.5).sampler_correction
    assert correction is not None
    assert (correction.mode, correction.cap) == ("token_truncate", 2.5)


@given(st.integers(1, 20), st.integers(1, 16), st.none() | st.integers(1, 400))
def test_there_is_an_update_for_each_group_or_fewer_and_never_none(
    groups: int, size: int, sequences: int | None
) -> None:
    updates = translated(groups, groups * size, grad_accumulation_sequences=sequences).mini_batches
    assert 1 <= updates <= groups
    assert updates == groups or (sequences is not None and sequences * updates >= groups * size)


def test_the_optimizer_s_arguments_are_those_of_trainer_args() -> None:
    trainer = {"max_grad_norm": 0.3, "weight_decay": 0.1, "adam_beta2": 0.99}
    config = train_config({}, trainer, groups=1, trajectories=2)
    assert (config.max_gradient_norm, config.weight_decay, config.adam_betas) == (0.3, 0.1, (0.9, 0.99))


def test_what_has_no_effect_is_named_once() -> None:
    with pytest.warns(IgnoredSetting, match=r"train\(kimi_k2_tau=…\) has no effect in Gavel"):
        translated(kimi_k2_tau=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        translated(kimi_k2_tau=0.1)
        translated(kimi_k2_tau=None, plot_tensors=False, logprob_calculation_chunk_size=1024, verbose=True)


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
