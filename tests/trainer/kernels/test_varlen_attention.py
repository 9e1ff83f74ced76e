"""Attention by levels against plain attention under the trie's mask; on a CPU with a plain kernel in flash's place."""

from itertools import pairwise

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from gavel.trainer.data.packing import pack
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.kernels import packed_attention, varlen_attention
from gavel.trainer.kernels.attention_kernels import FULL, CudaFlash, Plain, ScoreForm
from gavel.trainer.kernels.packed_attention import PackedRow
from gavel.trainer.kernels.varlen_attention import Level, levels
from tests.trainer.kernels.test_packed_attention import FORM, attended, compare, factors, obvious, row, trie_mask


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


def plain_flash_backward(gradient, query, key, value, output, normaliser, level, scale):
    found = []
    for rows, keys in runs(level):
        given = [by_head(each) for each in (gradient[rows], query[rows], key[keys], value[keys], output[rows])]
        own = Plain.backward(*given, normaliser[None, :, rows], ScoreForm(scale), level.causal, None)
        found.append([each[0].transpose(0, 1) for each in own])
    return tuple(torch.cat(each) for each in zip(*found, strict=True))


@pytest.fixture(autouse=True)
def flash_on_a_cpu(monkeypatch):
    monkeypatch.setattr(packed_attention, "kernel_for", lambda query, value, form: CudaFlash)
    monkeypatch.setattr(varlen_attention, "flash", plain_flash)
    monkeypatch.setattr(varlen_attention, "flash_backward", plain_flash_backward)


@pytest.mark.parametrize("shape", [(1, 20, 2), (20, 12, 2), (9, 30, 1000)])
@pytest.mark.parametrize("sinks", [None, torch.tensor([-3.0, 0.0, 0.5, 1.0, 2.0, 40.0], dtype=torch.float64)])
def test_levels_attend_as_the_mask_of_the_trie_says(shape, sinks):
    packed = row(*shape)
    query, key, value = factors(len(packed.token_ids), torch.float64)
    expected = (
        scaled_dot_product_attention(query, key, value, trie_mask(packed), scale=0.3, enable_gqa=True)
        if sinks is None
        else obvious(query, key, value, trie_mask(packed), FORM, sinks)
    )
    compare(attended(packed, query, key, value, sinks=sinks), expected, query, key, value, 1e-12)


def test_groups_of_replies_are_two_calls_of_the_kernel_however_many_they_are():
    ids = [[group, 5, 5, 10 + reply, 7] for group in range(3) for reply in range(4)]
    packed = pack([TokenSequence(each, [False] * 5, [0.0] * 5, [1.0] * 5) for each in ids])
    own, prompts = levels(packed.segments, torch.device("cpu"))
    assert (len(packed.segments), len([*runs(own)]), len([*runs(prompts)])) == (15, 15, 3)
    assert (prompts.most_queries, prompts.most_keys) == (8, 3)


def test_what_attention_gave_is_taken_when_a_layer_is_computed_again():
    packed = row(6, 40, 3)
    query, key, value = factors(len(packed.token_ids), torch.float64)
    once = PackedRow(packed, [FULL], torch.from_numpy(packed.positions), {})
    first = packed_attention.packed_attention(query, key, value, once, 0, FORM)
    (kept, _) = once.kept[0]
    assert kept.data_ptr() == first.data_ptr()
    again = packed_attention.packed_attention(query, key, value, once, 0, FORM)
    assert not once.kept
    expected, found = (torch.autograd.grad(each.square().sum(), [query, key, value]) for each in (first, again))
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_long_runs_by_cudnn_are_those_by_flash(monkeypatch):
    monkeypatch.undo()
    shared = [list(range(2000)), [*range(1000), *range(5000, 5700)]]
    ids = [[*start, *range(10_000 * n, 10_000 * n + 500 + n)] for n, start in enumerate(shared * 2, 1)]
    packed = pack([TokenSequence(each, *([x] * len(each) for x in (False, 0.0, 1.0))) for each in ids])
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
        given = gradient, query, key, value, output, normaliser, levels_of_row, 0.1
        results.append((output, normaliser, *varlen_attention.backward(*given)))
    for one, other in zip(*results, strict=True):
        assert (one.float() - other.float()).norm() < 0.02 * other.float().norm()
