"""The tiled head against the full logits and autograd."""

import pytest
import torch
from transformers import AutoModelForCausalLM, GraniteConfig

from gavel.trainer.kernels import lm_head as head
from gavel.trainer.kernels.lm_head import (
    HeadError,
    LogitForm,
    frozen_head,
    keep_logits_precise,
    logit_form,
    tiled_logprobs,
)


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
