"""Norms, gated MLPs and LoRA layers in one operation: values and gradients of the layers that they replace."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM

from gavel.trainer.kernels.fused_layers import LoraLinear, fuse_mlps, fuse_norms

SHAPE = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "head_dim": 8}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}


def qwen(dtype: torch.dtype = torch.float32) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**SHAPE, **HEADS)).to(dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 2)
    return model


@pytest.mark.parametrize("exact", [True, False])
def test_norms_in_bfloat16_are_fused_and_no_further_from_the_float32_value(exact):
    plain, fused = qwen(torch.bfloat16), qwen(torch.bfloat16)
    assert fuse_norms(fused, exact=exact) == 2 * 4 + 1
    for own, other in zip(plain.modules(), fused.modules(), strict=True):
        if type(own).__name__.endswith("RMSNorm"):
            hidden = 3 * torch.randn(64, len(own.weight), generator=torch.Generator().manual_seed(0)).bfloat16()
            truth = torch.nn.functional.rms_norm(hidden.float(), own.weight.shape, own.weight.float(), 1e-6)
            with torch.no_grad():
                errors = [(module(hidden).float() - truth).abs() for module in (own, other)]
                assert other(hidden).dtype == torch.bfloat16
            assert errors[1].mean() <= errors[0].mean()
            assert errors[1].max() <= errors[0].max()


IDS = torch.arange(20)[None]


def mlp_adapted(*, fused: bool, targets: str | list[str] = "all-linear", dtype: torch.dtype = torch.float32):
    torch.manual_seed(0)
    base = Qwen3ForCausalLM(Qwen3Config(**SHAPE, **HEADS)).to(dtype).eval()
    if fused:
        assert fuse_mlps(base) == 2
    settings = LoraConfig(r=4, lora_alpha=8, target_modules=targets, task_type="CAUSAL_LM", init_lora_weights=False)
    settings._register_custom_module({torch.nn.Linear: LoraLinear})
    return get_peft_model(base, settings)


def mlp_gradients(model) -> list[torch.Tensor]:
    loss = model(IDS, labels=IDS).loss
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "gate_proj"], ["down_proj"]])
def test_values_and_gradients_are_the_same_bit_for_bit(dtype, targets):
    plain, fused = (mlp_gradients(mlp_adapted(fused=each, targets=targets, dtype=dtype)) for each in (False, True))
    assert len(plain) > 4
    for one, other in zip(plain, fused, strict=True):
        assert torch.equal(one, other)


def kept_bytes(model) -> int:
    kept = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor  # a tensor that lives keeps its address to itself
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(IDS)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def test_two_wide_activations_of_four_are_kept():
    plain, fused = (kept_bytes(mlp_adapted(fused=each)) for each in (False, True))
    layers, floats = SHAPE["num_hidden_layers"], 2 * IDS.numel() * SHAPE["intermediate_size"]
    assert plain - fused == layers * floats * 4
