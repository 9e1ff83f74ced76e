"""Spans of layers, the parts of a packed row, decoding over shared heads, and the device that is assumed."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    DynamicCache,
    Gemma3TextConfig,
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
from gavel.trainer.kernels.attention_kernels import FULL, Span, joined_parts, layer_spans, limited_parts, square_parts


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


def packed(members: list[list[int]]) -> Packed:
    return pack([TokenSequence(ids, [False] * len(ids), [0.0] * len(ids), [1.0] * len(ids)) for ids in members])


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


def wanted(row: Packed, span: Span) -> np.ndarray:
    met = np.zeros((len(row.token_ids),) * 2, dtype=int)
    for path in row.paths:
        for depth, place in enumerate(path):
            met[place, path[span.first_visible(depth) : depth + 1]] = 1
    return met


@given(tries)
def test_without_a_limit_each_query_meets_its_path_once(members):
    row = packed(members)
    for parts in (joined_parts, square_parts):
        assert (pairs(row, parts(row.segments), FULL) == wanted(row, FULL)).all()


@pytest.mark.parametrize("block", [1, 3, 512])
@given(members=tries, span=spans)
def test_with_a_limit_each_query_meets_what_its_span_reaches_once(block, members, span):
    row = packed(members)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gavel.trainer.kernels.attention_kernels.BLOCK", block)
        found = pairs(row, limited_parts(row.segments, row.positions, span), span)
    assert (found == wanted(row, span)).all()


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
