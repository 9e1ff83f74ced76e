"""Decoding attention for grouped-query models: one new token per row.

The query heads that share a key-value head are treated as queries of that head, so shared keys and values are read once
and never copied.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from gavel.trainer.kernels.attention_kernels import dense_attention
from gavel.trainer.kernels.attention_span import Span

NAME = "gavel_grouped"
"""Name of the attention function in transformers' registry."""


@dataclass(frozen=True, slots=True)
class SlotMasks:
    """The masks of a pass, one for each span of the layers; added to the scores. `[rows, 1, new, keys]`"""

    spans: Sequence[Span]
    """One for each layer."""
    masks: Mapping[Span, torch.Tensor]


def attend_grouped(decoder: Any) -> None:
    """Makes a transformers decoder accept `slot_masks`; one with another attention is unchanged."""
    if decoder.config._attn_implementation in ("sdpa", "eager"):
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
    slot_masks: SlotMasks | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    if slot_masks is not None:
        attention_mask = slot_masks.masks[slot_masks.spans[module.layer_idx]]  # type: ignore[index]
    rows, heads, new, size = query.shape
    odd = any(each is not None for each in (softcap, s_aux, others.get("position_bias")))
    if odd or new > 1 or heads == key.shape[1] or attention_mask is None:
        return dense_attention(
            module, query, key, value, attention_mask, scaling=scaling, softcap=softcap, s_aux=s_aux, **others
        )
    # The heads take the query axis: all of them see the same keys.
    grouped = query.reshape(rows, key.shape[1], -1, size)
    read = torch.nn.functional.scaled_dot_product_attention(grouped, key, value, attention_mask, scale=scaling)
    return read.reshape(rows, 1, heads, value.shape[-1]), None
