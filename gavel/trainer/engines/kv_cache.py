"""A key-value cache with a fixed number of slots and prefix reuse.

A slot holds the keys and values of one token sequence, computed with one adapter. It stays filled when its turn ends,
so the conversation's next turn, or another one with the same prefix, computes only its new tokens. Memory is bounded
by `slots` x `max_context` tokens and allocated as contexts grow.
"""

from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad
from transformers import DynamicCache

from gavel.trainer.cached_pass import cached
from gavel.trainer.device_memory import DeviceMemory
from gavel.trainer.policy.loading import ANOTHER_ENGINE, BaseModelError, text_decoder

_BLOCK = 512
"""Tokens of the capacity are a multiple of this, so that a pass can read whole blocks of keys."""
COMMON_CONTEXT = 4096
_AT_ONCE = {"cpu": 16, "cuda": 32}
"""Conversations for which a context that nobody asked for leaves room."""
SHARE_OF_MEMORY = {"cpu": 0.25, "cuda": 0.5}
"""The largest share of the memory free at engine start that the cache may grow to. A GPU decodes many rows in the time
of one."""


class Slots:
    """Keys and values `[slots, kv_heads, capacity, head_dim]` per layer, and the token ids that they belong to."""

    def __init__(self, slots: int, max_context: int) -> None:
        self.count = slots
        self.max_context = max_context
        # int32 halves the memory traffic of a prefix search.
        self.ids = np.zeros((slots, _BLOCK), dtype=np.int32)
        self.lengths = np.zeros(slots, dtype=np.int64)
        """Tokens of each slot whose keys and values are stored."""
        self.adapters = np.zeros(slots, dtype=np.int64)
        """The engine's number of the adapter that computed them."""
        self.busy = np.zeros(slots, dtype=bool)
        self._used = np.zeros(slots, dtype=np.int64)
        self._clock = 0
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = []

    @property
    def capacity(self) -> int:
        return self.ids.shape[1]

    @property
    def growth(self) -> int:
        """Bytes that keys and values may take beside those that they hold, once there are any."""
        held = sum(tensor.nbytes for pair in self.layers for tensor in pair)
        return held * max(self.max_context - self.capacity, 0) // self.capacity

    def reserve(self, tokens: int) -> None:
        """Grows every slot to at least `tokens`, at least doubling the capacity."""
        if tokens <= self.capacity:
            return
        capacity = min(max(tokens, 2 * self.capacity), self.max_context)
        capacity += -capacity % _BLOCK
        self.ids = np.pad(self.ids, ((0, 0), (0, capacity - self.capacity)))
        for layer, pair in enumerate(self.layers):
            keys, values = (pad(tensor, (0, 0, 0, capacity - tensor.shape[2])) for tensor in pair)
            self.layers[layer] = keys, values

    def forget(self, adapter: int) -> None:
        """Empties the slots of an adapter that was evicted."""
        self.lengths[self.adapters == adapter] = 0

    def shared_prefixes(self, ids: np.ndarray, adapter: int) -> np.ndarray:
        """The number of leading tokens of `ids` that each slot holds as `adapter` computes them. `[slots]`"""
        width = min(len(ids), self.capacity)
        if not width:
            return np.zeros(self.count, dtype=np.int64)
        differs = self.ids[:, :width] != ids[:width]
        first = differs.argmax(axis=1)
        alike = np.where(differs[np.arange(self.count), first], first, width)
        return np.minimum(alike, np.where(self.adapters == adapter, self.lengths, 0))

    def take(self, ids: np.ndarray, shared: np.ndarray, adapter: int) -> int | None:
        """Reserves a slot for `ids`; its `lengths` says how many of them `adapter` has computed already (never all).

        `shared` are their `shared_prefixes`. A free slot whose content is a prefix of `ids` is continued in place;
        otherwise the least recently used free slot is taken, and the longest shared prefix copied into it. None when
        all slots are busy.
        """
        free = np.flatnonzero(~self.busy)
        if not len(free):
            return None
        shared = np.minimum(shared, len(ids) - 1)
        continued = free[(shared[free] == self.lengths[free]) & (shared[free] > 0)]
        source = int(shared.argmax())
        start = int(shared[source])
        if len(continued) and shared[continued].max() == shared[source]:
            slot = int(continued[shared[continued].argmax()])
        else:
            slot = int(free[self._used[free].argmin()])
            if slot != source and start:
                for keys, values in self.layers:
                    keys[slot, :, :start] = keys[source, :, :start]
                    values[slot, :, :start] = values[source, :, :start]
        self.ids[slot, : len(ids)] = ids
        self.lengths[slot] = start
        self.adapters[slot] = adapter
        self.busy[slot] = True
        return slot

    def release(self, slot: int) -> None:
        self._clock += 1
        self._used[slot] = self._clock
        self.busy[slot] = False


class StateSlots(Slots):
    """Slots of states that can be continued, but neither cut nor copied."""

    def shared_prefixes(self, ids: np.ndarray, adapter: int) -> np.ndarray:
        shared = super().shared_prefixes(ids, adapter)
        return np.where(~self.busy & (shared == self.lengths) & (shared < len(ids)), shared, 0)


class SlotView:
    """The cache object that a transformers model gets for one forward pass over some of the slots.

    New keys and values are stored at `positions` of `rows`; `update` returns the first `width` tokens of those rows,
    as a view without a copy when the rows are contiguous.
    """

    def __init__(self, slots: Slots, rows: np.ndarray, positions: torch.Tensor, width: int) -> None:
        self.slots = slots
        self.rows = torch.from_numpy(rows).to(positions.device)
        self.positions = positions
        self.width = width
        first, last = int(rows[0]), int(rows[-1])
        ascending = bool((rows[1:] > rows[:-1]).all())
        self._contiguous = slice(first, last + 1) if ascending and last - first + 1 == len(rows) else None

    def update(self, keys: Any, values: Any, layer: int, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Stores `[rows, kv_heads, new, head_dim]`, returns `[rows, kv_heads, width, head_dim]`; drops further rows.

        What else a version of transformers hands its own caches is not needed.
        """
        stored = self.slots.layers
        if layer == len(stored):
            shape = (self.slots.count, keys.shape[1], self.slots.capacity)
            stored.append((keys.new_zeros(*shape, keys.shape[3]), values.new_zeros(*shape, values.shape[3])))
        for cache, new in zip(stored[layer], (keys, values), strict=True):
            cache[self.rows[:, None], :, self.positions] = new[: len(self.rows)].transpose(1, 2)
        seen = [cache[:, :, : self.width] for cache in stored[layer]]
        if self._contiguous is not None:
            return seen[0][self._contiguous], seen[1][self._contiguous]
        # Three times as fast as indexing.
        return seen[0].index_select(0, self.rows), seen[1].index_select(0, self.rows)


def context_that_fits(model: Any, most: int, slots: int) -> int:
    """The context that a model gets of which no other is asked for; `most` is the longest that it can have."""
    device: str = model.device.type
    share = int(DeviceMemory(model.device).free() * SHARE_OF_MEMORY[device])
    return shared_context(share, most, slots, slot_bytes(model, most), device)


def shared_context(share: int, most: int, slots: int, longest: int, device: str) -> int:
    """The longest context of which some conversations fit into `share` bytes at once, and no less than a common one.

    `longest` is the bytes of one conversation of `most` tokens.
    """
    fitting = most * share // (min(slots, _AT_ONCE[device]) * longest)
    return min(most, max(fitting // _BLOCK * _BLOCK, COMMON_CONTEXT))


def slots_that_fit(model: Any, max_context: int) -> int:
    """The number of slots of `max_context` tokens that fit into the engine's share of free memory; at least one."""
    free = DeviceMemory(model.device).free()
    return max(1, int(free * SHARE_OF_MEMORY[model.device.type]) // slot_bytes(model, max_context))


@torch.inference_mode()
def slot_bytes(model: Any, max_context: int) -> int:
    """Bytes of a slot of `max_context` tokens, by the caches of a pass over one token and over two.

    Raises `BaseModelError` for a model that takes no such cache.
    """
    decoder, problem = text_decoder(model), "it takes no cache of transformers' own"
    held: list[int] = []
    try:
        for tokens in (1, 2):
            cache = DynamicCache(config=decoder.config)
            ids = torch.zeros((1, tokens), dtype=torch.int64, device=model.device)
            decoder(input_ids=ids, use_cache=True, **cached(decoder, cache))
            held.append(sum(_bytes(vars(layer)) for layer in cache.layers))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a model with a cache of its own fails in its own way
        problem = f"{problem} ({type(error).__name__}: {error})"
    if len(held) < 2 or not held[1]:
        raise BaseModelError(f"the embedded engine cannot sample {model.config.model_type}: {problem}", ANOTHER_ENGINE)
    return held[0] + (held[1] - held[0]) * (max_context - 1)


def _bytes(held: Any) -> int:
    """Bytes of all tensors in nested dictionaries."""
    if isinstance(held, dict):
        return sum(map(_bytes, held.values()))
    return held.nbytes if isinstance(held, torch.Tensor) else 0
