"""The fused MLP against the modules of transformers with the same LoRA layers."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.checkpoint import checkpoint
from transformers import Gemma3TextConfig, Qwen3Config, Qwen3ForCausalLM
from transformers.models.gemma3.modeling_gemma3 import Gemma3ForCausalLM

from gavel.trainer.kernels.fused_layers import LoraLinear, fuse_mlps

SHAPE = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "head_dim": 8}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}
IDS = torch.arange(20)[None]


def adapted(*, fused: bool, targets: str | list[str] = "all-linear", dtype: torch.dtype = torch.float32):
    torch.manual_seed(0)
    base = Qwen3ForCausalLM(Qwen3Config(**SHAPE, **HEADS)).to(dtype).eval()
    if fused:
        assert fuse_mlps(base) == 2
    settings = LoraConfig(r=4, lora_alpha=8, target_modules=targets, task_type="CAUSAL_LM", init_lora_weights=False)
    settings._register_custom_module({torch.nn.Linear: LoraLinear})
    return get_peft_model(base, settings)


def gradients(model) -> list[torch.Tensor]:
    loss = model(IDS, labels=IDS).loss
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "gate_proj"], ["down_proj"]])
def test_values_and_gradients_are_the_same_bit_for_bit(dtype, targets):
    plain, fused = (gradients(adapted(fused=each, targets=targets, dtype=dtype)) for each in (False, True))
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
    plain, fused = (kept_bytes(adapted(fused=each)) for each in (False, True))
    layers, floats = SHAPE["num_hidden_layers"], 2 * IDS.numel() * SHAPE["intermediate_size"]
    assert plain - fused == layers * floats * 4


def test_a_checkpointed_layer_gives_the_same_gradient():
    mlp, x = adapted(fused=True).get_base_model().model.layers[0].mlp, torch.randn(1, 5, 16, requires_grad=True)
    expected, found = mlp(x), checkpoint(mlp, x, use_reentrant=False)
    assert torch.equal(*(torch.autograd.grad(y.square().sum(), x)[0] for y in (expected, found)))


def test_an_adapter_that_is_off_leaves_the_base():
    model = adapted(fused=True)
    plain = Qwen3ForCausalLM(Qwen3Config(**SHAPE, **HEADS)).eval()
    plain.load_state_dict(
        {k.replace("base_model.model.", "").replace(".base_layer", ""): v for k, v in model.state_dict().items()},
        strict=False,
    )
    with model.disable_adapter(), torch.no_grad():
        assert torch.equal(model(IDS).logits, plain(IDS).logits)


def test_a_family_with_another_activation_keeps_its_own():
    torch.manual_seed(0)
    assert fuse_mlps(Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, **HEADS))) == 0
