"""Tokens on which sampler and learner differ are counted, and told when they are many."""

import logging

import pytest

from gavel.trainer.backends.training_run import OutlyingTokens
from gavel.trainer.config import SamplerCorrection, TrainConfig

CONFIG = TrainConfig()
MASKED = TrainConfig(sampler_correction=SamplerCorrection(mode="token_mask", floor=0.5, cap=5.0))


@pytest.fixture(autouse=True)
def _warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "gavel")


def test_they_are_counted_and_a_few_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    watched = OutlyingTokens(experts=True)
    assert watched.of_step(0.0, 1000, CONFIG) == {"tokens_outlying": 0}
    assert watched.of_step(0.009, 1000, CONFIG) == {"tokens_outlying": 9}
    assert not caplog.records


def test_many_are_told_with_the_remedy_and_again_when_their_share_has_doubled(caplog: pytest.LogCaptureFixture) -> None:
    watched = OutlyingTokens(experts=True)
    for share in (0.02, 0.03, 0.035, 0.05, 0.06):
        watched.of_step(share, 1000, CONFIG)
    told = [record.getMessage() for record in caplog.records]
    assert ["20 of 1000" in told[0], "50 of 1000" in told[1], len(told)] == [True, True, 2]
    assert "other experts" in told[0]
    assert "token_mask" in told[0]


def test_a_dense_model_is_not_said_to_choose_experts(caplog: pytest.LogCaptureFixture) -> None:
    OutlyingTokens(experts=False).of_step(0.5, 10, CONFIG)
    assert "experts" not in caplog.text
    assert "the policy went on" in caplog.text


def test_who_has_them_corrected_is_not_warned(caplog: pytest.LogCaptureFixture) -> None:
    assert OutlyingTokens(experts=True).of_step(0.5, 10, MASKED) == {"tokens_outlying": 5}
    assert not caplog.records
