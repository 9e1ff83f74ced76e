"""Settings are numbers that the optimiser and the sampler can compute with."""

import math

import pytest

from gavel.base.fields import FieldError
from gavel.trainer.config import LoopConfig, SftConfig, TrainConfig


@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (TrainConfig, "beta"),
        (TrainConfig, "weight_decay"),
        (TrainConfig, "max_gradient_norm"),
        (LoopConfig, "temperature"),
    ],
)
def test_a_number_that_is_not_finite_is_refused_by_name(kind, name, value):
    with pytest.raises(FieldError, match=name):
        kind(**{name: value})


@pytest.mark.parametrize("kind", [TrainConfig, SftConfig])
def test_a_learning_rate_that_float32_does_not_hold_is_refused(kind):
    assert kind(learning_rate=1e20).learning_rate == 1e20
    with pytest.raises(FieldError, match="learning_rate"):
        kind(learning_rate=1e300)
