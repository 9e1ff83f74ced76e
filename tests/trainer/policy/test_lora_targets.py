"""Which layers an adapter gets. tests/trainer/test_families.py has the families."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, Mamba2Config, Qwen3Config, Qwen3MoeConfig

from gavel.trainer.policy.loading import BaseModelError
from gavel.trainer.policy.policy import expert_targets, lora_targets

TINY: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "head_dim": 8,
}
ATTENTION = ["k_proj", "o_proj", "q_proj", "v_proj"]


def targets_of(config) -> list[str]:
    with torch.device("meta"):
        return lora_targets(AutoModelForCausalLM.from_config(config))


def test_layers_are_named_by_their_last_component_where_that_is_enough():
    assert targets_of(Qwen3Config(**TINY)) == sorted(["gate_proj", "up_proj", "down_proj", *ATTENTION])
    assert targets_of(GPT2Config(n_embd=16, n_layer=2, n_head=2)) == ["c_attn", "c_fc", "c_proj"]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (["q_proj", "v_proj"], ["q_proj", "v_proj"]),
        (["self_attn.q_proj"], ["q_proj"]),
        (["layers.1.self_attn.q_proj"], ["model.layers.1.self_attn.q_proj"]),
    ],
)
def test_layers_that_are_asked_for_are_the_only_ones(wanted, found):
    with torch.device("meta"):
        assert lora_targets(AutoModelForCausalLM.from_config(Qwen3Config(**TINY)), wanted) == found


@pytest.mark.parametrize("wanted", ["nowhere", "lm_head", "proj", "embed_tokens"])
def test_a_layer_that_cannot_be_adapted_is_refused_with_those_that_can(wanted):
    with torch.device("meta"), pytest.raises(BaseModelError, match=f"no layer '{wanted}'") as error:
        lora_targets(AutoModelForCausalLM.from_config(Qwen3Config(**TINY)), ["q_proj", wanted])
    assert "down_proj, gate_proj, k_proj" in error.value.remedy


MIXTURE = Qwen3MoeConfig(**TINY, num_experts=4, moe_intermediate_size=8)


def test_neither_experts_nor_routers_are_adapted():
    assert targets_of(MIXTURE) == ATTENTION


@pytest.mark.parametrize(
    ("config", "wanted", "reason"),
    [
        (MIXTURE, "experts", "one tensor for all of them"),
        (MIXTURE, "gate_up_proj", "one tensor for all of them"),
        (MIXTURE, "experts.down_proj", "one tensor for all of them"),
        (MIXTURE, "mlp.gate", "must choose the same experts"),
        (MIXTURE, "lm_head", "the vocabulary head is frozen"),
        (MIXTURE, "input_layernorm", "no linear layer of the text decoder"),
        (AutoConfig.for_model("mixtral", **TINY, num_local_experts=4), "gate", "must choose the same experts"),
    ],
)
def test_a_part_that_is_left_out_is_refused_with_the_reason(config, wanted, reason):
    with torch.device("meta"), pytest.raises(BaseModelError, match=reason) as error:
        lora_targets(AutoModelForCausalLM.from_config(config), [wanted])
    assert "k_proj, o_proj, q_proj, v_proj" in error.value.remedy


def test_experts_are_adapted_by_their_stacked_weights():
    with torch.device("meta"):
        assert expert_targets(AutoModelForCausalLM.from_config(MIXTURE)) == [
            "experts.down_proj",
            "experts.gate_up_proj",
        ]


@pytest.mark.parametrize(
    "config",
    [
        Qwen3Config(**TINY),
        AutoConfig.for_model("llama4_text", **TINY, num_key_value_heads=1, num_local_experts=4, intermediate_size=16),
    ],
    ids=["dense", "experts of its own"],
)
def test_a_model_without_such_experts_is_refused(config):
    with torch.device("meta"), pytest.raises(BaseModelError, match="no experts as transformers stacks them"):
        expert_targets(AutoModelForCausalLM.from_config(config))


def test_a_layer_whose_adapter_would_be_read_as_that_of_another_is_not_adapted():
    config = AutoConfig.for_model("laguna", **TINY, num_key_value_heads=1, intermediate_size=16)
    assert not [name for name in targets_of(config) if "shared_experts" in name]
    with torch.device("meta"), pytest.raises(BaseModelError, match="that of another layer"):
        lora_targets(AutoModelForCausalLM.from_config(config), ["shared_experts.up_proj"])


def test_what_reads_images_is_not_adapted():
    config = AutoConfig.for_model(
        "gemma3",
        text_config={"model_type": "gemma3_text", **TINY, "num_key_value_heads": 1, "intermediate_size": 16},
        vision_config={"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
    )
    found = targets_of(config)
    assert {name.rpartition(".")[2] for name in found} == {*ATTENTION, "gate_proj", "up_proj", "down_proj"}
    assert all(name.startswith("model.language_model.layers.") for name in found)


def test_a_model_without_such_layers_is_refused():
    config = Mamba2Config(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_heads=4, head_dim=8, expand=2)
    with pytest.raises(BaseModelError, match="no linear layers"):
        targets_of(config)
