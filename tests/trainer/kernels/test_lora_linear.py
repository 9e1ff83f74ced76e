"""The fused LoRA layer against PEFT's own."""

import copy

import pytest
import torch
from peft.tuners import lora
from torch import nn

from gavel.trainer.kernels.fused_layers import LoraLinear


@pytest.fixture(scope="module")
def layer(policy):
    """One of the embedded policy's, with an adapter that does something."""
    found = next(module for module in policy.model.modules() if isinstance(module, LoraLinear))
    return found


@pytest.fixture(params=[False, True])
def pair(request, layer):
    """The layer and PEFT's view of the same weights, with and without a bias below."""
    own = copy.deepcopy(layer).double()
    torch.manual_seed(0)
    nn.init.normal_(own.lora_B["default"].weight)
    if request.param:
        own.get_base_layer().bias = nn.Parameter(torch.randn(own.out_features).double(), requires_grad=False)
    other = copy.deepcopy(own)
    other.__class__ = lora.Linear
    return own, other


@pytest.mark.parametrize("shape", [(5,), (1, 7), (2, 3)])
def test_values_and_gradients_are_pefts(pair, shape):
    own, other = pair
    x = torch.randn(*shape, own.in_features, dtype=torch.float64, requires_grad=True)
    found, expected = own(x), other(x)
    torch.testing.assert_close(found, expected)
    incoming = torch.randn_like(expected)
    gradients = [
        torch.autograd.grad(y, [x, *(p for p in each.parameters() if p.requires_grad)], incoming)
        for each, y in ((own, found), (other, expected))
    ]
    assert len(gradients[0]) == 3
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_an_adapter_that_is_off_or_merged_is_pefts_business(pair):
    own, other = pair
    x = torch.randn(3, own.in_features, dtype=torch.float64)
    own.enable_adapters(False)
    torch.testing.assert_close(own(x), own.get_base_layer()(x))
    own.enable_adapters(True)
    own.merge()
    torch.testing.assert_close(own(x), other(x))


def test_half_precision_keeps_the_adapters_gradient_single(layer):
    own = copy.deepcopy(layer)
    base = own.get_base_layer()
    base.weight = nn.Parameter(base.weight.bfloat16(), requires_grad=False)
    x = torch.randn(4, own.in_features)
    expected = copy.deepcopy(layer)(x)
    found = own(x.bfloat16())
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, atol=0.05, rtol=0.05)
    found.float().sum().backward()
    assert own.lora_B["default"].weight.grad.dtype == torch.float32
