"""Spans by hand, and against the mask that says for each query and key whether it is seen."""

import numpy as np
import pytest
from transformers import Gemma3TextConfig, Llama4TextConfig, MistralConfig, Qwen2MoeConfig, Qwen3NextConfig

from gavel.trainer.kernels.packed_parts import FULL, Span, layer_spans


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
