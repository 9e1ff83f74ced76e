import pytest
import torch
from transformers import Gemma3TextConfig, Qwen3Config, Qwen3ForCausalLM
from transformers.models.gemma3.modeling_gemma3 import Gemma3ForCausalLM

from gavel.trainer.kernels.fused_layers import fuse_norms

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


def test_fused_norms_compute_and_learn_the_same():
    plain, fused, ids = qwen(), qwen(), torch.arange(20)[None]
    assert fuse_norms(fused) == 2 * 4 + 1
    losses = [model(ids, labels=ids).loss for model in (plain, fused)]
    assert losses[0].item() == pytest.approx(losses[1].item(), abs=1e-6)
    for loss in losses:
        loss.backward()
    for (name, one), other in zip(plain.named_parameters(), fused.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-5 * max(1, one.grad.abs().max().item())), name


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


def test_norms_in_few_passes_are_as_exact_as_rounding():
    plain, fused = qwen().model.norm, qwen().model.norm
    fuse_norms(torch.nn.ModuleList([fused]), exact=False)
    sizes = torch.tensor([1e-4, 1.0, 1e3])  # where epsilon matters, and where not
    hidden = torch.randn(3, 5, 16) * sizes[:, None, None]
    hidden[0, 0] = 0
    with torch.no_grad():
        assert torch.allclose(plain(hidden), fused(hidden), rtol=1e-5, atol=1e-6)
    assert torch.equal(plain(hidden), fused(hidden))  # with gradients


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gradient_over_a_frozen_weight_is_that_of_pytorchs_norm(dtype):
    fused = qwen(dtype).model.norm.requires_grad_(False)
    fuse_norms(torch.nn.ModuleList([fused]))
    sizes = torch.tensor([1e-4, 1.0, 1e3], dtype=dtype)  # where epsilon matters, and where not
    hidden = torch.randn(3, 5, 16, dtype=dtype) * sizes[:, None, None]
    hidden[0, 0] = 0
    hidden.requires_grad_(True)
    found, expected = fused(hidden), torch.nn.functional.rms_norm(hidden, (16,), fused.weight, 1e-6)
    assert torch.equal(found, expected)
    incoming = torch.randn_like(expected)
    gradients = [torch.autograd.grad(y, hidden, incoming)[0] for y in (found, expected)]
    for size, one, other in zip(sizes, *gradients, strict=True):
        assert torch.allclose(one * size, other * size, atol=1e-5 if dtype == torch.float32 else 1e-12)


def test_weights_stay_and_follow_when_they_are_exchanged():
    plain, fused, ids = qwen(), qwen(), torch.arange(20)[None]
    fuse_norms(fused)
    with torch.no_grad():
        for model in (plain, fused):
            model.model.norm.weight = torch.nn.Parameter(torch.full((16,), 3.0))
        assert torch.allclose(plain(ids).logits, fused(ids).logits, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_family_with_norms_of_its_own_keeps_them(dtype):
    torch.manual_seed(0)
    model = Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, **HEADS)).to(dtype).eval()
    ids = torch.arange(20)[None]
    with torch.no_grad():
        before = model(ids).logits
        fuse_norms(model)
        assert torch.equal(before, model(ids).logits)
