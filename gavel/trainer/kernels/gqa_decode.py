"""Decoding attention for grouped-query models: one new token per row.

The query heads that share a key-value head are treated as queries of that head, so shared keys and values are read once
and never copied.
"""

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "gavel_grouped"
"""Name of the attention function in transformers' registry."""


def attend_grouped(decoder: Any) -> None:
    """Installs it in a decoder that uses PyTorch's scaled dot product; any other decoder is unchanged."""
    if decoder.config._attn_implementation == "sdpa":
        AttentionInterface.register(NAME, _forward)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        decoder.set_attn_implementation(NAME)


def _forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    rows, heads, new, size = query.shape
    odd = any(others.get(name) is not None for name in ("softcap", "s_aux", "position_bias"))
    if odd or new > 1 or heads == key.shape[1] or attention_mask is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    # The heads take the query axis: all of them see the same keys.
    grouped = query.reshape(rows, key.shape[1], -1, size)
    read = torch.nn.functional.scaled_dot_product_attention(grouped, key, value, attention_mask, scale=scaling)
    return read.reshape(rows, 1, heads, size), None
