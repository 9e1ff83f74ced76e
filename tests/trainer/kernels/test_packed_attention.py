"""Attention over a packed row against plain attention under the trie's mask, for every kernel that runs here."""

import random
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM, Gemma2Config, MistralConfig, Qwen3Config

from gavel.trainer.data.packing import Packed, pack
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.kernels import packed_attention as attention
from gavel.trainer.kernels.packed_attention import (
    AttentionError,
    CpuFlash,
    CudaFlash,
    Plain,
    attend_packed,
    packed_attention,
)


def row(count: int, longest: int, words: int) -> Packed:
    draw = random.Random(0)
    ids = [[draw.randrange(words) for _ in range(draw.randint(1, longest))] for _ in range(count)]
    return pack([TokenSequence(each, [False] * len(each), [0.0] * len(each), [1.0] * len(each)) for each in ids])


def trie_mask(packed: Packed) -> torch.Tensor:
    mask = torch.zeros(len(packed.token_ids), len(packed.token_ids), dtype=torch.bool)
    for path in packed.paths:
        for depth, place in enumerate(path):
            mask[place, path[: depth + 1]] = True
    return mask


def factors(length: int, dtype: torch.dtype, device: str = "cpu", size: int = 8, value_size: int = 8):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, length, heads, width, generator=generator, dtype=torch.float64)
        .to(device, dtype)
        .transpose(1, 2)
        .requires_grad_()
        for heads, width in ((6, size), (2, size), (2, value_size))
    ]


def compare(found, expected, query, key, value, tolerance):
    gradient = torch.randn_like(expected)
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=0)
    for own, other in zip(
        torch.autograd.grad(found, (query, key, value), gradient),
        torch.autograd.grad(expected, (query, key, value), gradient),
        strict=True,
    ):
        torch.testing.assert_close(own, other, atol=10 * tolerance, rtol=0)


@pytest.mark.parametrize("kernel", [CpuFlash, Plain])
@pytest.mark.parametrize("shape", [(1, 20, 2), (20, 12, 2), (6, 40, 3), (9, 30, 1000)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_a_packed_row_attends_as_the_mask_of_its_trie_says(monkeypatch, kernel, shape, dtype, tolerance):
    monkeypatch.setattr(attention, "_kernel", lambda query, value: kernel)
    packed = row(*shape)
    query, key, value = factors(len(packed.token_ids), dtype)
    found = packed_attention(query, key, value, packed.segments, 0.3)
    expected = scaled_dot_product_attention(query, key, value, trie_mask(packed), scale=0.3, enable_gqa=True)
    compare(found, expected, query, key, value, tolerance)


def test_the_plain_kernel_takes_its_queries_in_pieces_and_values_of_another_size(monkeypatch):
    monkeypatch.setattr(attention, "_PLAIN_QUERIES", 7)
    packed = row(6, 40, 3)
    query, key, value = factors(len(packed.token_ids), torch.float64, value_size=5)
    expected = scaled_dot_product_attention(query, key, value, trie_mask(packed), enable_gqa=True)
    compare(packed_attention(query, key, value, packed.segments), expected, query, key, value, 1e-12)


def test_half_precision_stays_close_to_single():
    packed = row(9, 30, 2)
    query, key, value = factors(len(packed.token_ids), torch.bfloat16)
    expected = scaled_dot_product_attention(
        query.float(), key.float(), value.float(), trie_mask(packed), enable_gqa=True
    )
    found = packed_attention(query, key, value, packed.segments)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, atol=0.03, rtol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("shape", [(1, 200, 2), (8, 300, 2), (9, 30, 1000)])
def test_the_flash_kernel_of_a_gpu_agrees_with_the_plain_one(monkeypatch, shape):
    packed = row(*shape)
    query, key, value = factors(len(packed.token_ids), torch.bfloat16, "cuda", 64, 64)
    assert attention._kernel(query, value) is CudaFlash
    found = packed_attention(query, key, value, packed.segments)
    monkeypatch.setattr(attention, "_kernel", lambda query, value: Plain)
    compare(found, packed_attention(query, key, value, packed.segments), query, key, value, 0.03)


TINY: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(**TINY, sliding_window=8),
        Gemma2Config(**TINY),
        Qwen3Config(**TINY, use_sliding_window=True, sliding_window=8, max_window_layers=0),
    ],
)
def test_a_model_whose_layers_see_only_a_window_is_refused(config):
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(AttentionError, match="whole context"):
        attend_packed(model.get_decoder())


def test_without_segments_a_prepared_model_is_what_it_was():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(Qwen3Config(**TINY)).eval()
    ids = torch.randint(0, 32, (2, 9))
    padding = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1], [1] * 9])
    with torch.no_grad():
        before = model(input_ids=ids, attention_mask=padding).logits
        attend_packed(model.get_decoder())
        after = model(input_ids=ids, attention_mask=padding).logits
    torch.testing.assert_close(after[1], before[1])
    torch.testing.assert_close(after[0, 2:], before[0, 2:])
