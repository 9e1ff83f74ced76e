"""The tiled head against the full logits and autograd."""

import pytest
import torch
from transformers import CohereConfig, Gemma2Config, GraniteConfig, LlamaConfig

from gavel.trainer.kernels import lm_head as head
from gavel.trainer.kernels.lm_head import HeadError, logit_scale, tiled_logprobs


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """So that a small problem has ragged tiles on both sides."""
    monkeypatch.setattr(head, "_CPU_TILE", (7, 13))


def problem(size: float, dtype: torch.dtype = torch.float64):
    generator = torch.Generator().manual_seed(0)
    hidden = (size * torch.randn(40, 6, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()
    weight = torch.randn(50, 6, generator=generator, dtype=torch.float64).to(dtype)
    targets = torch.randint(0, 50, (40,), generator=generator)
    temperatures = 0.3 + torch.rand(40, generator=generator, dtype=torch.float64)
    return hidden, weight, targets, temperatures


def full(hidden, weight, targets, temperatures):
    everything = torch.log_softmax(hidden.double() @ weight.double().T / temperatures[:, None], -1)
    return everything.gather(-1, targets[:, None])[:, 0], -(everything.exp() * everything).sum(-1)


@pytest.mark.parametrize("size", [0.0, 1.0, 30.0, 1000.0])
def test_log_probs_entropies_and_gradients_are_those_of_the_full_logits(size):
    hidden, *others = problem(size)
    logprobs, entropies = tiled_logprobs(hidden, *others)
    expected, expected_entropies = full(hidden, *others)
    torch.testing.assert_close(logprobs, expected)
    torch.testing.assert_close(entropies, expected_entropies, atol=1e-8, rtol=1e-8)
    incoming = torch.randn_like(expected)
    found, wanted = (torch.autograd.grad(values, hidden, incoming)[0] for values in (logprobs, expected))
    torch.testing.assert_close(found, wanted)


def test_logits_far_from_zero_neither_overflow_nor_vanish():
    hidden, weight, targets, temperatures = problem(1.0, torch.float32)
    for shift in (-500.0, 500.0):
        one = torch.cat([hidden.detach(), torch.full((40, 1), shift)], 1)
        logprobs, _ = tiled_logprobs(one, torch.cat([weight, torch.ones(50, 1)], 1), targets, temperatures)
        expected, _ = full(hidden, weight, targets, temperatures)
        torch.testing.assert_close(logprobs.double(), expected, atol=1e-3, rtol=0)


def test_half_precision_factors_are_summed_in_single():
    hidden, *others = problem(1.0, torch.bfloat16)
    logprobs, _ = tiled_logprobs(hidden, *others)
    expected, _ = full(hidden, *others)
    assert logprobs.dtype == torch.float32
    torch.testing.assert_close(logprobs.double(), expected.detach(), atol=1e-5, rtol=0)
    (gradient,) = torch.autograd.grad(logprobs.sum(), hidden)
    assert gradient.dtype == torch.bfloat16


def test_entropies_carry_no_gradient():
    logprobs, entropies = tiled_logprobs(*problem(1.0))
    assert logprobs.requires_grad
    assert not entropies.requires_grad


def frozen(bias: bool = False) -> torch.nn.Linear:
    return torch.nn.Linear(4, 9, bias=bias).requires_grad_(False)


@pytest.mark.parametrize(
    ("matrix", "config", "reason"),
    [
        (frozen(bias=True), GraniteConfig(), "has a bias"),
        (torch.nn.Linear(4, 9, bias=False), GraniteConfig(), "is trained"),
        (frozen(), Gemma2Config(), "caps or multiplies its logits"),
    ],
)
def test_a_head_that_is_more_than_a_frozen_matrix_is_refused(matrix, config, reason):
    with pytest.raises(HeadError, match=reason):
        logit_scale(matrix, config)


def test_the_scale_of_the_logits_is_the_models():
    assert logit_scale(frozen(), GraniteConfig(logits_scaling=8.0)) == 0.125
    assert logit_scale(frozen(), CohereConfig(logit_scale=0.25)) == 0.25
    assert logit_scale(frozen(), LlamaConfig()) == 1.0
