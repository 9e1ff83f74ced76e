"""Attention over a packed row against plain attention under the trie's mask, for every kernel that runs here; spans of
layers, the parts of a row, and decoding over shared heads."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    AutoModelForCausalLM,
    Lfm2Config,
    Qwen3Config,
)

from gavel.trainer.data.packing import Packed, pack
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.kernels import attention_kernels
from gavel.trainer.kernels import packed_attention as attention
from gavel.trainer.kernels.attention_kernels import (
    FULL,
    CpuFlash,
    CudaFlash,
    Plain,
    ScoreForm,
    Span,
    kernel_for,
)
from gavel.trainer.kernels.packed_attention import AttentionError, PackedRow, attend_packed, packed_attention


def row(count: int, longest: int, words: int) -> Packed:
    draw = random.Random(0)
    ids = [[draw.randrange(words) for _ in range(draw.randint(1, longest))] for _ in range(count)]
    return packed_row(ids)


def packed_row(members: list[list[int]]) -> Packed:
    return pack([TokenSequence(ids, [False] * len(ids), [0.0] * len(ids), [1.0] * len(ids)) for ids in members])


def trie_mask(packed: Packed, span: Span = FULL) -> torch.Tensor:
    mask = torch.zeros(len(packed.token_ids), len(packed.token_ids), dtype=torch.bool)
    for path in packed.paths:
        for depth, place in enumerate(path):
            mask[place, path[span.first_visible(depth) : depth + 1]] = True
    return mask


FORM = ScoreForm(0.3)


def attended(packed: Packed, query, key, value, form=FORM, span: Span = FULL, sinks=None) -> torch.Tensor:
    positions = torch.from_numpy(packed.positions).to(query.device)
    return packed_attention(query, key, value, PackedRow(packed, [span], positions), 0, form, sinks)


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


def obvious(query, key, value, mask, form: ScoreForm, sinks) -> torch.Tensor:
    key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value))
    scores = query @ key.transpose(2, 3) * form.scale
    if form.cap is not None:
        scores = form.cap * torch.tanh(scores / form.cap)
    scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[None, :, None, None].expand(*scores.shape[:3], 1)], -1)
    return scores.softmax(-1)[..., : key.shape[2]] @ value


tries = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=6)
spans = st.builds(Span, st.integers(1, 9), st.booleans())


@pytest.mark.parametrize("kernel", [CpuFlash, Plain])
@pytest.mark.parametrize("block", [1, 3, 512])
@given(members=tries, span=st.just(FULL) | spans)
def test_a_span_hides_what_it_does_not_reach(kernel, block, members, span):
    packed = packed_row(members)
    query, key, value = factors(len(packed.token_ids), torch.float64)
    expected = scaled_dot_product_attention(query, key, value, trie_mask(packed, span), scale=0.3, enable_gqa=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(attention, "kernel_for", lambda query, value, form: kernel)
        patched.setattr(attention_kernels, "BLOCK", block)
        compare(attended(packed, query, key, value, span=span), expected, query, key, value, 1e-12)


@pytest.mark.parametrize("span", [FULL, Span(5)])
@pytest.mark.parametrize("cap", [None, 0.5, 30.0])
@pytest.mark.parametrize("sinks", [None, torch.tensor([-3.0, 0.0, 0.5, 1.0, 2.0, 40.0], dtype=torch.float64)])
def test_soft_caps_and_sinks_are_those_of_one_softmax(span, cap, sinks):
    packed, form = row(6, 40, 3), ScoreForm(0.3, cap)
    query, key, value = factors(len(packed.token_ids), torch.float64)
    expected = obvious(query, key, value, trie_mask(packed, span), form, sinks)
    compare(attended(packed, query, key, value, form, span, sinks), expected, query, key, value, 1e-12)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("shape", [(1, 200, 2), (8, 300, 2), (9, 30, 1000)])
def test_the_flash_kernel_of_a_gpu_agrees_with_the_plain_one(monkeypatch, shape):
    packed = row(*shape)
    query, key, value = factors(len(packed.token_ids), torch.bfloat16, "cuda", 64, 64)
    assert kernel_for(query, value, ScoreForm(0.1)) is CudaFlash
    for span in (FULL, Span(70)):
        found = attended(packed, query, key, value, ScoreForm(0.1), span)
        with monkeypatch.context() as patched:
            patched.setattr(attention, "kernel_for", lambda query, value, form: Plain)
            compare(found, attended(packed, query, key, value, ScoreForm(0.1), span), query, key, value, 0.03)


TINY: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}


def test_a_model_with_other_layers_than_attention_is_refused():
    model = AutoModelForCausalLM.from_config(Lfm2Config(**TINY, layer_types=["conv", "full_attention"]))
    with pytest.raises(AttentionError, match="not all layers"):
        attend_packed(model.get_decoder())


def test_without_a_row_a_prepared_model_is_what_it_was():
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


@pytest.mark.parametrize(
    ("span", "first"),
    [
        (FULL, [0, 0, 0, 0, 0, 0]),
        (Span(1), [0, 1, 2, 3, 4, 5]),
        (Span(3), [0, 0, 0, 1, 2, 3]),
        (Span(3, chunked=True), [0, 0, 0, 3, 3, 3]),
        (Span(10), [0, 0, 0, 0, 0, 0]),
    ],
)
def test_the_first_visible_position_is_where_the_span_begins(span, first):
    assert span.first_visible(np.arange(6)).tolist() == first
    assert span.limits(6) == (max(first) > 0)
