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
    DynamicCache,
    Gemma3TextConfig,
    Lfm2Config,
    Llama4TextConfig,
    MistralConfig,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3NextConfig,
)

from gavel.trainer.cached_pass import cached
from gavel.trainer.data.packing import Packed, pack
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.engines.passes import attend_grouped
from gavel.trainer.kernels import attention_kernels
from gavel.trainer.kernels import packed_attention as attention
from gavel.trainer.kernels.attention_kernels import (
    FULL,
    CpuFlash,
    CudaFlash,
    Plain,
    ScoreForm,
    Span,
    joined_parts,
    kernel_for,
    layer_spans,
    limited_parts,
    square_parts,
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
SPANS = [Span(1), Span(5), Span(17), Span(1000), Span(6, chunked=True), Span(13, chunked=True)]


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


@pytest.mark.parametrize("kernel", [CpuFlash, Plain])
@pytest.mark.parametrize("shape", [(1, 20, 2), (20, 12, 2), (6, 40, 3), (9, 30, 1000)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_a_packed_row_attends_as_the_mask_of_its_trie_says(monkeypatch, kernel, shape, dtype, tolerance):
    monkeypatch.setattr(attention, "kernel_for", lambda query, value, form: kernel)
    packed = row(*shape)
    query, key, value = factors(len(packed.token_ids), dtype)
    found = attended(packed, query, key, value)
    expected = scaled_dot_product_attention(query, key, value, trie_mask(packed), scale=0.3, enable_gqa=True)
    compare(found, expected, query, key, value, tolerance)


def obvious(query, key, value, mask, form: ScoreForm, sinks) -> torch.Tensor:
    key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value))
    scores = query @ key.transpose(2, 3) * form.scale
    if form.cap is not None:
        scores = form.cap * torch.tanh(scores / form.cap)
    scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[None, :, None, None].expand(*scores.shape[:3], 1)], -1)
    return scores.softmax(-1)[..., : key.shape[2]] @ value


@pytest.mark.parametrize("kernel", [CpuFlash, Plain])
@pytest.mark.parametrize("block", [4, 512])
@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("shape", [(1, 20, 2), (20, 12, 2), (6, 40, 3), (9, 30, 1000)])
def test_a_span_hides_what_it_does_not_reach(monkeypatch, kernel, block, span, shape):
    monkeypatch.setattr(attention, "kernel_for", lambda query, value, form: kernel)
    monkeypatch.setattr(attention_kernels, "BLOCK", block)
    packed = row(*shape)
    query, key, value = factors(len(packed.token_ids), torch.float64)
    expected = scaled_dot_product_attention(query, key, value, trie_mask(packed, span), scale=0.3, enable_gqa=True)
    compare(attended(packed, query, key, value, span=span), expected, query, key, value, 1e-12)


@pytest.mark.parametrize("span", [FULL, Span(5)])
@pytest.mark.parametrize("cap", [None, 0.5, 30.0])
@pytest.mark.parametrize("sinks", [None, torch.tensor([-3.0, 0.0, 0.5, 1.0, 2.0, 40.0], dtype=torch.float64)])
def test_soft_caps_and_sinks_are_those_of_one_softmax(span, cap, sinks):
    packed, form = row(6, 40, 3), ScoreForm(0.3, cap)
    query, key, value = factors(len(packed.token_ids), torch.float64)
    expected = obvious(query, key, value, trie_mask(packed, span), form, sinks)
    compare(attended(packed, query, key, value, form, span, sinks), expected, query, key, value, 1e-12)


def test_half_precision_stays_close_to_single():
    packed = row(9, 30, 2)
    query, key, value = factors(len(packed.token_ids), torch.bfloat16)
    expected = scaled_dot_product_attention(
        query.float(), key.float(), value.float(), trie_mask(packed), enable_gqa=True
    )
    found = attended(packed, query, key, value, ScoreForm(8**-0.5))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, atol=0.03, rtol=0)


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


@pytest.mark.parametrize(
    ("config", "spans"),
    [
        (MistralConfig(num_hidden_layers=2, sliding_window=7), [Span(7)] * 2),
        (MistralConfig(num_hidden_layers=2, sliding_window=None), [FULL] * 2),
        (Gemma3TextConfig(num_hidden_layers=6, sliding_window=7), [Span(7)] * 5 + [FULL]),
        (Qwen2MoeConfig(num_hidden_layers=2), [FULL] * 2),
        (
            Llama4TextConfig(num_hidden_layers=4, attention_chunk_size=9, no_rope_layers=[1, 1, 1, 0]),
            [Span(9, chunked=True)] * 3 + [FULL],
        ),
        (Qwen3NextConfig(num_hidden_layers=4), None),
    ],
    ids=lambda value: getattr(value, "model_type", None),
)
def test_the_spans_of_the_layers_are_read_from_the_config(config, spans):
    assert layer_spans(config) == spans


tries = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=6)
spans = st.builds(Span, st.integers(1, 9), st.booleans())


def pairs(row: Packed, parts, span: Span) -> np.ndarray:
    """How often each query meets each key. `[U, U]`"""
    met = np.zeros((len(row.token_ids),) * 2, dtype=int)
    first = span.first_visible(row.positions)
    for part in parts:
        queries, keys = np.arange(len(met))[part.rows, None], np.arange(len(met))[part.keys]
        seen = np.ones((len(queries), keys.size), dtype=bool)
        if part.causal:
            seen = keys - part.keys.start <= queries - part.rows.start
        if part.masked:
            seen = (row.positions[keys] <= row.positions[queries]) & (row.positions[keys] >= first[queries])
        assert seen.any(1).all()
        met[part.rows, part.keys] += seen
    return met


@given(tries)
def test_without_a_limit_each_query_meets_its_path_once(members):
    given_row = packed_row(members)
    for parts in (joined_parts, square_parts):
        assert (pairs(given_row, parts(given_row.segments), FULL) == trie_mask(given_row).numpy()).all()


@pytest.mark.parametrize("block", [1, 3, 512])
@given(members=tries, span=spans)
def test_with_a_limit_each_query_meets_what_its_span_reaches_once(block, members, span):
    given_row = packed_row(members)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gavel.trainer.kernels.attention_kernels.BLOCK", block)
        found = pairs(given_row, limited_parts(given_row.segments, given_row.positions, span), span)
    assert (found == trie_mask(given_row, span).numpy()).all()


@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_heads_that_share_keys_attend_as_they_do_apart(key_heads):
    torch.manual_seed(0)
    shape = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    model = Qwen3ForCausalLM(Qwen3Config(**shape, num_attention_heads=4, num_key_value_heads=key_heads)).eval()
    ids = torch.randint(40, (3, 9))
    with torch.no_grad():
        plain = model(input_ids=ids).logits
        attend_grouped(model.get_decoder())
        cache = DynamicCache(config=model.config)
        begun = model(input_ids=ids[:, :5], **cached(model, cache))
        assert torch.allclose(begun.logits, plain[:, :5], atol=1e-5)
        for place in range(5, 9):
            seen = torch.ones(3, 1, 1, place + 1, dtype=torch.bool)
            step = model(
                input_ids=ids[:, place : place + 1],
                position_ids=torch.full((3, 1), place),
                attention_mask=seen,
                **cached(model, cache),
            )
            assert torch.allclose(step.logits[:, 0], plain[:, place], atol=1e-5)
