"""Norms, gated MLPs, LoRA layers and the tiled head in one operation: values and gradients of what they replace."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, GraniteConfig

from gavel.trainer.kernels import lm_head as head
from gavel.trainer.kernels.fused_layers import LoraLinear, fuse_mlps, fuse_norms
from gavel.trainer.kernels.lm_head import (
    HeadError,
    LogitForm,
    frozen_head,
    keep_logits_precise,
    logit_form,
    tiled_logprobs,
)
from tests.trainer.conftest import tiny_model


@pytest.mark.parametrize("exact", [True, False])
def test_norms_in_bfloat16_are_fused_and_no_further_from_the_float32_value(exact):
    plain = tiny_model().bfloat16()
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 2)
    fused = copy.deepcopy(plain)
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
    base = tiny_model().to(dtype)
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
    assert plain - fused == 2 * 2 * IDS.numel() * 64 * 4, "of two layers, in float32"


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """So that a small problem has ragged tiles on both sides."""
    monkeypatch.setattr(head, "_CPU_TILE", (7, 13))


@pytest.mark.parametrize("matrix", [torch.nn.Linear(4, 9, bias=False), torch.nn.Identity()])
def test_a_head_that_is_not_a_frozen_matrix_is_refused(matrix):
    with pytest.raises(HeadError, match="trained or quantized"):
        frozen_head(matrix)


FORMS = [LogitForm(), LogitForm(0.5), LogitForm(2.0, 1.5), LogitForm(1.0, 30.0)]
CASES = [(1.0, form, bias) for form in FORMS for bias in (None, torch.linspace(-1, 2, 700))]


@pytest.mark.parametrize(("size", "form", "bias"), [(0.0, FORMS[0], None), (1000.0, FORMS[0], None), *CASES])
def test_log_probs_entropies_and_gradients_are_those_of_the_full_logits(size, form, bias):
    hidden, weight = size * torch.randn(300, 16, dtype=torch.float64), torch.randn(700, 16, dtype=torch.float64)
    hidden.requires_grad_()
    targets, temperatures = torch.randint(0, 700, (300,)), 0.5 + torch.rand(300, dtype=torch.float64)
    logits = hidden @ weight.T * form.scale if bias is None else (hidden @ weight.T + bias) * form.scale
    if form.cap is not None:
        logits = form.cap * torch.tanh(logits / form.cap)
    expected = torch.log_softmax(logits / temperatures[:, None], -1)
    chosen = expected.gather(-1, targets[:, None])[:, 0]
    all_entropies = -(expected.exp() * expected).sum(-1)
    found, entropies = tiled_logprobs(hidden, weight, targets, temperatures, bias, form)
    torch.testing.assert_close(found, chosen)
    torch.testing.assert_close(entropies, all_entropies, atol=1e-8, rtol=1e-7)
    assert not entropies.requires_grad
    again, entropies = tiled_logprobs(hidden, weight, targets, temperatures, bias, form, entropy_gradient=True)
    assert torch.equal(again, found)
    incoming = torch.randn(300, dtype=torch.float64)
    for own, other in ((found, chosen), (entropies, all_entropies) if size == 1 else (again, chosen)):
        torch.testing.assert_close(
            *(torch.autograd.grad(each, hidden, incoming, retain_graph=True)[0] for each in (own, other))
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_logits_of_a_model_in_half_precision_are_not_rounded(dtype):
    torch.manual_seed(0)
    config = GraniteConfig(
        vocab_size=700, hidden_size=32, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, logits_scaling=0.1, initializer_range=1.0,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    keep_logits_precise(model)
    ids = torch.arange(9)[None]
    with torch.no_grad():
        logits = model(ids).logits[0]
        hidden = model.get_decoder()(ids).last_hidden_state[0]
        expected = torch.log_softmax(10 * hidden.double() @ model.lm_head.weight.double().T, -1)
        logprobs, _ = tiled_logprobs(hidden, model.lm_head.weight, ids[0], torch.ones(9), form=logit_form(config))
    assert logits.dtype == torch.float32
    assert torch.allclose(torch.log_softmax(logits, -1).double(), expected, atol=1e-3)
    assert torch.allclose(logprobs.double(), expected.gather(-1, ids.T)[:, 0], atol=1e-3)
