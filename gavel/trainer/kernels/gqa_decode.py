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
    queries: int = 1
    """Queries that share keys are padded to a multiple of this."""


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
    least = 1 if slot_masks is None else slot_masks.queries
    if slot_masks is not None:
        attention_mask = slot_masks.masks[slot_masks.spans[module.layer_idx]]  # type: ignore[index]
    rows, heads, new, size = query.shape
    query = query[: len(key)]  # rows of padding have no keys
    odd = any(each is not None for each in (softcap, s_aux, others.get("position_bias")))
    if odd or new > 1 or attention_mask is None or (heads == key.shape[1] and least == 1):
        if new == 1 and least > 1:  # the same query several times
            query = query.expand(-1, -1, least, -1)
        read, _ = dense_attention(
            module, query, key, value, attention_mask, scaling=scaling, softcap=softcap, s_aux=s_aux, **others
        )
        read = read[:, :new]
    else:
        # The heads take the query axis: all of them see the same keys.
        grouped = query.reshape(len(key), key.shape[1], -1, size)
        group = grouped.shape[2]
        grouped = torch.nn.functional.pad(grouped, (0, 0, 0, -group % least))
        read = torch.nn.functional.scaled_dot_product_attention(grouped, key, value, attention_mask, scale=scaling)
        read = read[:, :, :group].reshape(len(key), 1, heads, value.shape[-1])
    return torch.nn.functional.pad(read, (0, 0, 0, 0, 0, 0, 0, rows - len(key))), None
