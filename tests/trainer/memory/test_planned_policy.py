"""A policy without weights is adapted and computed as the real one is."""

from typing import Any

import pytest
import torch
from transformers import T5Config

from gavel.trainer.config import LoraSettings
from gavel.trainer.memory.planned_policy import PlannedPolicy, storage_bytes
from gavel.trainer.policy.loading import BaseModelError
from gavel.trainer.policy.lora_targets import lora_targets
from tests.trainer.families import FAMILIES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("family", FAMILIES[::6], ids=lambda family: family.name)
def test_bytes_and_adapted_layers_are_those_of_the_real_model(family):
    planned = PlannedPolicy(family.read_config(), LoraSettings(rank=2), torch.float32)
    real = family.model(dtype=torch.float32)
    assert planned.base_bytes == storage_bytes(real)
    assert planned.parameter_count == real.num_parameters()
    config: Any = planned.model.peft_config["default"]
    assert sorted(config.target_modules) == lora_targets(real)
    assert planned.shares_prefixes == (not family.alone)
    assert len(planned.layer_bytes) == real.config.get_text_config().num_hidden_layers


def test_the_config_that_is_given_stays_as_it_is():
    config = FAMILIES[5].read_config()
    before = config.to_json_string()
    PlannedPolicy(config, LoraSettings(), torch.float32)
    assert config.to_json_string() == before
    assert config._attn_implementation != "gavel_packed"


def test_a_model_that_cannot_be_trained_is_refused_with_a_remedy():
    with pytest.raises(BaseModelError, match="Choose another"):
        PlannedPolicy(T5Config(), LoraSettings(), torch.float32)
