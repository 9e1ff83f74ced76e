"""A policy without weights is adapted and computed as the real one is."""

from typing import Any

import pytest
import torch
from transformers import T5Config

from gavel.trainer.config import LoraSettings
from gavel.trainer.memory.needs import PlannedPolicy
from gavel.trainer.policy.loading import BaseModelError
from gavel.trainer.policy.policy import lora_targets, storage_bytes
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


ATTENTION = 2 * 32 * 32 + 2 * 32 * 16
"""Weights of queries and output, keys and values; hidden size 32, 4 heads of 8 over 2 of keys."""
MLP = 3 * 32 * 48
NORMS = 2 * 32
EXPERT = 3 * 32 * 16
ROUTER = 4 * 32
ENDS = 2 * 832 * 32 + 32
"""Embedding, head and last norm."""
TO_ATTENTION = 2 * (32 + 32) + 2 * (32 + 16)
"""Of LoRA, for each rank: inputs and outputs of the four layers."""
TO_MLP = 3 * (32 + 48)


@pytest.mark.parametrize(
    ("name", "layer", "ends", "adapted"),
    [
        ("Llama 3", ATTENTION + MLP + NORMS, ENDS, TO_ATTENTION + TO_MLP),
        ("SmolLM2", ATTENTION + MLP + NORMS, ENDS - 832 * 32, TO_ATTENTION + TO_MLP),
        ("SmolLM3", ATTENTION + MLP + NORMS, ENDS, TO_ATTENTION + TO_MLP),
        ("Qwen2.5", ATTENTION + 32 + 2 * 16 + MLP + NORMS, ENDS, TO_ATTENTION + TO_MLP),
        ("Qwen3", ATTENTION + 2 * 8 + MLP + NORMS, ENDS, TO_ATTENTION + TO_MLP),
        ("Mistral", ATTENTION + MLP + NORMS, ENDS, TO_ATTENTION + TO_MLP),
        ("OLMo 2", ATTENTION + 32 + 16 + MLP + NORMS, ENDS, TO_ATTENTION + TO_MLP),
        ("Phi 3, Phi 4", ATTENTION + MLP + NORMS, ENDS, 32 + 64 + 32 + 32 + 32 + 96 + 48 + 32),
        ("Qwen3-MoE", ATTENTION + 2 * 8 + 4 * EXPERT + ROUTER + NORMS, ENDS, TO_ATTENTION),
        ("Mixtral", ATTENTION + 4 * MLP + ROUTER + NORMS, ENDS, TO_ATTENTION),
    ],
)
def test_the_counts_are_those_written_out_for_the_family(name, layer, ends, adapted):
    config = next(family for family in FAMILIES if family.name == name).read_config()
    planned = PlannedPolicy(config, LoraSettings(rank=2), torch.bfloat16)
    assert planned.parameter_count == 2 * layer + ends
    frequencies = 2 * 4 * 4  # of RoPE, and as they were at first: 4 of each, in float32
    assert planned.base_bytes == 2 * planned.parameter_count + frequencies
    assert sum(parameter.numel() for parameter in planned.parameters()) == 2 * 2 * adapted
