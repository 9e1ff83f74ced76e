"""Code over meta tensors runs as on a device."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from gavel.trainer.memory.needs import as_on, recomputing


@pytest.mark.parametrize("wide", [16, 24])
@pytest.mark.parametrize("heads", [4, 2])
def test_attention_has_its_shape_and_does_not_keep_all_scores(heads, wide):
    query = torch.zeros(1, 4, 512, 16, device="meta", requires_grad=True)
    key, value = (torch.zeros(1, heads, 512, size, device="meta", requires_grad=True) for size in (16, wide))
    with as_on("cpu") as counted:
        found = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        assert found.shape == (1, 4, 512, wide)
        found.sum().backward()
    assert query.grad is not None
    if wide == 16:
        assert counted.peak < 4 * 512 * 512 * 4


def test_layers_that_are_computed_again_meet_the_same_attention():
    x = torch.zeros(1, 2, 64, 8, device="meta", requires_grad=True)
    with as_on("cpu"):
        found = checkpoint(
            lambda y: scaled_dot_product_attention(y, y, y), x, use_reentrant=False, context_fn=recomputing
        )
        assert isinstance(found, torch.Tensor)
        found.sum().backward()
    assert x.grad is not None


def test_what_has_values_is_computed_as_ever():
    x = torch.randn(1, 2, 5, 8)
    expected = scaled_dot_product_attention(x, x, x)
    with as_on("cuda"):
        assert torch.equal(scaled_dot_product_attention(x, x, x), expected)
