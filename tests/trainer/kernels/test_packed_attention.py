"""Attention over a packed row against plain attention under the trie's mask, for every kernel that runs here; spans of
layers, the parts of a row, and decoding over shared heads."""

import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from gavel.trainer.data.packing import Packed, pack
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.kernels import attention_kernels, varlen_attention
from gavel.trainer.kernels import packed_attention as attention
from gavel.trainer.kernels.attention_kernels import FULL, CpuFlash, CudaFlash, Plain, ScoreForm, Span, kernel_for
from gavel.trainer.kernels.packed_attention import PackedRow, attend_packed, packed_attention
from gavel.trainer.kernels.varlen_attention import Level, levels
from tests.trainer.conftest import tiny_model


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


def factors(length: int, dtype: torch.dtype, device: str = "cpu", size: int = 8):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, length, heads, size, generator=generator, dtype=torch.float64)
        .to(device, dtype)
        .transpose(1, 2)
        .requires_grad_()
        for heads in (6, 2, 2)
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
    query, key, value = factors(len(packed.token_ids), torch.bfloat16, "cuda", 64)
    assert kernel_for(query, value, ScoreForm(0.1)) is CudaFlash
    for span in (FULL, Span(70)):
        found = attended(packed, query, key, value, ScoreForm(0.1), span)
        with monkeypatch.context() as patched:
            patched.setattr(attention, "kernel_for", lambda query, value, form: Plain)
            compare(found, attended(packed, query, key, value, ScoreForm(0.1), span), query, key, value, 0.03)


def test_without_a_row_a_prepared_model_is_what_it_was():
    model = tiny_model()
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


def runs(level: Level):
    for queries, keys in zip(pairwise(level.query_ends.tolist()), pairwise(level.key_ends.tolist()), strict=True):
        yield slice(*queries), slice(*keys)


def by_head(tokens: torch.Tensor) -> torch.Tensor:
    return tokens.transpose(0, 1)[None]


def plain_flash(query, key, value, level, scale):
    outputs, normalisers = [], []
    for rows, keys in runs(level):
        given = by_head(query[rows]), by_head(key[keys]), by_head(value[keys])
        output, normaliser = Plain.forward(*given, ScoreForm(scale), level.causal, None)
        outputs.append(output[0].transpose(0, 1))
        normalisers.append(normaliser[0])
    return torch.cat(outputs), torch.cat(normalisers, -1)


def plain_flash_backward(gradient, attended, level, scale):
    query, key, value, output, normaliser = attended
    found = []
    for rows, keys in runs(level):
        given = [*map(by_head, (query[rows], key[keys], value[keys], output[rows])), normaliser[None, :, rows]]
        own = Plain.backward(by_head(gradient[rows]), given, ScoreForm(scale), level.causal, None)
        found.append([each[0].transpose(0, 1) for each in own])
    return tuple(torch.cat(each) for each in zip(*found, strict=True))


@pytest.fixture
def flash_on_a_cpu(monkeypatch):
    monkeypatch.setattr(attention, "kernel_for", lambda query, value, form: CudaFlash)
    monkeypatch.setattr(varlen_attention, "flash", plain_flash)
    monkeypatch.setattr(varlen_attention, "flash_backward", plain_flash_backward)


@pytest.mark.parametrize("shape", [(1, 20, 2), (20, 12, 2), (9, 30, 1000)])
@pytest.mark.parametrize("sinks", [None, torch.tensor([-3.0, 0.0, 0.5, 1.0, 2.0, 40.0], dtype=torch.float64)])
def test_levels_attend_as_the_mask_of_the_trie_says(shape, sinks, flash_on_a_cpu):
    packed = row(*shape)
    query, key, value = factors(len(packed.token_ids), torch.float64)
    expected = obvious(query, key, value, trie_mask(packed), FORM, sinks)
    compare(attended(packed, query, key, value, sinks=sinks), expected, query, key, value, 1e-12)


def test_groups_of_replies_are_two_calls_of_the_kernel_however_many_they_are():
    ids = [[group, 5, 5, 10 + reply, 7] for group in range(3) for reply in range(4)]
    packed = packed_row(ids)
    own, prompts = levels(packed.segments, torch.device("cpu"))
    assert (len(packed.segments), len([*runs(own)]), len([*runs(prompts)])) == (15, 15, 3)
    assert (prompts.most_queries, prompts.most_keys) == (8, 3)


def test_what_attention_gave_is_taken_when_a_layer_is_computed_again(flash_on_a_cpu):
    packed = row(6, 40, 3)
    query, key, value = factors(len(packed.token_ids), torch.float64)
    once = PackedRow(packed, [FULL], torch.from_numpy(packed.positions), {})
    first = packed_attention(query, key, value, once, 0, FORM)
    (kept, _) = once.kept[0]
    assert kept.data_ptr() == first.data_ptr()
    again = packed_attention(query, key, value, once, 0, FORM)
    assert not once.kept
    expected, found = (torch.autograd.grad(each.square().sum(), [query, key, value]) for each in (first, again))
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_long_runs_by_cudnn_are_those_by_flash(monkeypatch):
    shared = [list(range(2000)), [*range(1000), *range(5000, 5700)]]
    ids = [[*start, *range(10_000 * n, 10_000 * n + 500 + n)] for n, start in enumerate(shared * 2, 1)]
    packed = packed_row(ids)
    made = [torch.randn(len(packed.token_ids), heads, 128, device="cuda").bfloat16() for heads in (16, 8, 8, 16)]
    query, key, value, gradient = made
    monkeypatch.setattr(varlen_attention, "_LONG", 256)
    plain = levels(packed.segments, query.device)
    monkeypatch.setattr(varlen_attention, "_LONG", 2**20)
    short = levels(packed.segments, query.device)
    assert all(level.long_runs for level in plain)
    assert not any(level.long_runs for level in short)
    results = []
    for levels_of_row in (plain, short):
        output, normaliser = varlen_attention.forward(query, key, value, levels_of_row, 0.1)
        given = query, key, value, output, normaliser
        results.append((output, normaliser, *varlen_attention.backward(gradient, given, levels_of_row, 0.1)))
    for one, other in zip(*results, strict=True):
        assert (one.float() - other.float()).norm() < 0.02 * other.float().norm()
