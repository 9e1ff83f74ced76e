"""Forward passes of the embedded engine over the tokens that its slots do not hold yet.

`BatchedPasses` computes all slots in one pass, over keys and values in one tensor a layer. `SinglePasses` computes one
slot after the other, each with a cache of transformers' own: for models with layers that keep another state (linear
attention, state space, convolution), which no batch of unequal lengths can share.
"""

from typing import Any, Protocol

import numpy as np
import torch
from transformers import DynamicCache

from gavel.trainer.cached_pass import cached
from gavel.trainer.engines.kv_cache import Slots, SlotView
from gavel.trainer.kernels.attention_span import Span, layer_spans
from gavel.trainer.kernels.gqa_decode import SlotMasks, attend_grouped
from gavel.trainer.kernels.lm_head import logit_form
from gavel.trainer.policy.loading import text_decoder

_WIDTHS = 256


class Passes(Protocol):
    """Computes new tokens of slots."""

    def logits(self, rows: np.ndarray, tokens: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> torch.Tensor:
        """Logits `[rows, vocabulary]` after the last new token of each slot in `rows`.

        `tokens` `[rows, most]` are new from `starts` on; `counts` says how many of them are real, and a row without any
        gets no meaningful logits.
        """
        ...


class BatchedPasses:
    """One pass for all rows."""

    def __init__(self, model: Any, slots: Slots) -> None:
        self._decoder = text_decoder(model)
        self._head = model.get_output_embeddings()
        self._form = logit_form(self._decoder.config)
        self._spans = layer_spans(self._decoder.config) or []
        self._slots = slots
        self._dtype, self._device = model.dtype, model.device
        attend_grouped(self._decoder)

    def logits(self, rows: np.ndarray, tokens: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> torch.Tensor:
        """Stores keys and values of padding behind a slot's real tokens, where the next real ones overwrite them."""
        new = torch.from_numpy(tokens).to(self._device)
        first = torch.from_numpy(starts).to(self._device)
        positions = first[:, None] + torch.arange(new.shape[1], device=self._device)
        positions = positions.clamp_(max=self._slots.capacity - 1)
        width = int((starts + tokens.shape[1]).max())
        if self._device.type == "cuda":  # whose kernels are built anew for each width
            width += -width % _WIDTHS
        width = min(width, self._slots.capacity)
        masks = self._masks(positions, width)
        hidden = self._decoder(
            input_ids=new,
            position_ids=positions,
            attention_mask=next(iter(masks.values())),
            slot_masks=SlotMasks(self._spans, masks),
            use_cache=False,
            **cached(self._decoder, SlotView(self._slots, rows, positions, width)),
        ).last_hidden_state
        last = torch.from_numpy(counts - 1).to(self._device)
        return self._form.logits(self._head(hidden[torch.arange(len(rows), device=self._device), last]).float())

    def _masks(self, positions: torch.Tensor, width: int) -> dict[Span, torch.Tensor]:
        """Made once, not in every layer."""
        queries, keys = positions[:, None, :, None], torch.arange(width, device=positions.device)
        earlier, masks = keys <= queries, {}
        for span in dict.fromkeys(self._spans):
            seen = earlier & (keys >= span.first_visible(queries)) if span.limits(width) else earlier
            masks[span] = torch.where(seen, 0.0, -torch.inf).to(self._dtype)
        return masks


class SinglePasses:
    """A pass for each row. The states of a slot can be continued, but neither cut nor copied."""

    def __init__(self, model: Any, slots: int) -> None:
        self._decoder = text_decoder(model)
        self._head = model.get_output_embeddings()
        self._form = logit_form(self._decoder.config)
        self._device = model.device
        self._caches: list[DynamicCache | None] = [None] * slots

    def logits(self, rows: np.ndarray, tokens: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> torch.Tensor:
        found = [
            self._next(int(slot), tokens[row, : counts[row]], int(starts[row])) if counts[row] else None
            for row, slot in enumerate(rows)
        ]
        one = next(each for each in found if each is not None)
        return torch.stack([one if each is None else each for each in found])

    def _next(self, slot: int, tokens: np.ndarray, start: int) -> torch.Tensor:
        cache = self._caches[slot] if start else None
        if cache is None:
            cache = self._caches[slot] = DynamicCache(config=self._decoder.config)
        hidden = self._decoder(
            input_ids=torch.from_numpy(tokens[None].astype(np.int64)).to(self._device),
            position_ids=torch.arange(start, start + len(tokens), device=self._device)[None],
            use_cache=True,
            **cached(self._decoder, cache),
        ).last_hidden_state
        return self._form.logits(self._head(hidden[0, -1]).float())
