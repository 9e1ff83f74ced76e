"""What text is generated from and what an agent of one token an action sees.

    sampler = PrioritySampler(priority_scale=1.0)      probability of a sample = weight ** scale / their sum
    PrioritySampler(priority_scale=0.0)                uniform, whatever the weights

    prompt  [pad pad 11 12]   context  [pad pad pad 21]   ->   input  [pad pad pad pad pad 11 12 21]

Everything is padded on the left: the newest token is the last of `context` and of `input`. Arrays are int64 `[1, N]`.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gavel.base.errors import GavelError

Item = TypeVar("Item")


@dataclass
class Sample:
    """One prompt with its references; fields and order are RL4LMs'. Raises `GavelError` for references in one text."""

    id: str
    prompt_or_input_text: str
    references: list[str]
    meta_data: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.references, str):  # every letter would count as a reference
            raise GavelError(f"the references of the sample {self.id} are a text.", "Give a list: [text].")


class TextGenPool:
    """Samples of a data set; iterating gives (sample, weight 1)."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = list(samples)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Sample, float]:
        return self._samples[index], 1.0

    def __iter__(self) -> Iterator[tuple[Sample, float]]:
        return ((sample, 1.0) for sample in self._samples)

    def sample(self) -> Sample:
        """One of them, uniformly."""
        return random.choice(self._samples)

    def split(self, split_ratios: Sequence[float]) -> "list[TextGenPool]":
        """Consecutive parts of these shares; what rounding leaves over is in none."""
        pools: list[TextGenPool] = []
        first = 0
        for ratio in split_ratios:
            count = int(len(self) * ratio)
            pools.append(type(self)(self._samples[first : first + count]))
            first += count
        return pools


class PrioritySampler(Generic[Item]):
    """Draws items with probability proportional to weight ** priority_scale."""

    def __init__(self, priority_scale: float = 0.0) -> None:
        self.priority_scale = priority_scale
        self._items: list[Item] = []
        self._weights: list[float] = []

    def add(self, item: Item, weight: float) -> None:
        """Raises `GavelError` for a weight that is no number from 0."""
        if not 0 <= weight < float("inf"):
            raise GavelError(f"the weight {weight!r} of a sample is no weight.", "Use a number from 0.")
        self._items.append(item)
        self._weights.append(weight)

    def update(self, item: Item, weight: float) -> None:
        """Gives an item another weight."""
        self._weights[self._items.index(item)] = weight

    def __len__(self) -> int:
        return len(self._items)

    @property
    def probabilities(self) -> list[float]:
        """Of the items, in the order in which they were added. Raises `GavelError` when all weights are 0, or there
        are no items."""
        scaled = [weight**self.priority_scale for weight in self._weights]
        total = sum(scaled)
        if not total > 0:
            raise GavelError(
                "there is no sample to draw: there are none, or all have the weight 0.",
                "Add a sample with a weight above 0, or leave priority_scale at 0.",
            )
        return [each / total for each in scaled]

    def sample(self, size: int, chooser: random.Random | None = None) -> list[Item]:
        """`size` different items, or all that have a probability if these are fewer."""
        chooser = chooser or random.Random()
        left = [(item, p) for item, p in zip(self._items, self.probabilities, strict=True) if p > 0]
        found: list[Item] = []
        while left and len(found) < size:
            (at,) = chooser.choices(range(len(left)), weights=[p for _, p in left])
            found.append(left.pop(at)[0])
        return found


Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Observation:
    """One state; a reward function is given those before and after an action."""

    prompt_or_input_encoded_pt: Ids
    """`[1, max_prompt_length]`"""
    prompt_or_input_attention_mask_pt: Ids
    prompt_or_input_text: str
    context_encoded_pt: Ids
    """What was generated. `[1, max_episode_length]`"""
    context_attention_mask_pt: Ids
    context_text: str
    """Decoded without special tokens."""
    target_or_reference_texts: list[str]
    input_encoded_pt: Ids
    """Prompt and context without the padding between them. `[1, max_prompt_length + max_episode_length]`"""
    input_attention_mask_pt: Ids
    action_history: list[str]
    """The tokens' own texts."""
    meta_info: dict[str, Any] | None

    @classmethod
    def init_from_sample(
        cls,
        sample: Sample,
        tokenizer: Any,
        max_input_length: int,
        max_context_length: int,
        prompt_truncation_side: str = "left",
        context_start_token: int | None = None,
        meta_info: dict[str, Any] | None = None,
    ) -> "Observation":
        """The state before the first action. `tokenizer` pads on the left; a longer prompt is cut on its
        `prompt_truncation_side`."""
        side, tokenizer.truncation_side = tokenizer.truncation_side, prompt_truncation_side
        try:
            prompt, prompt_mask = _padded(tokenizer, sample.prompt_or_input_text, max_input_length)
        finally:
            tokenizer.truncation_side = side
        context, context_mask = _padded(tokenizer, "", max_context_length)
        if context_start_token is not None:
            context = np.full((1, max_context_length), tokenizer.pad_token_id, dtype=np.int64)
            context_mask = np.zeros((1, max_context_length), dtype=np.int64)
            context[0, -1], context_mask[0, -1] = context_start_token, 1
        whole, whole_mask = _joined(prompt, prompt_mask, context, context_mask, tokenizer.pad_token_id)
        return cls(
            prompt,
            prompt_mask,
            sample.prompt_or_input_text,
            context,
            context_mask,
            "",
            sample.references,
            whole,
            whole_mask,
            [],
            meta_info,
        )

    def update(self, action: int, tokenizer: Any) -> "Observation":
        """The state after an action."""
        action = int(action)
        context = np.roll(self.context_encoded_pt, -1, axis=1)
        mask = np.roll(self.context_attention_mask_pt, -1, axis=1)
        context[0, -1], mask[0, -1] = action, 1
        whole, whole_mask = _joined(
            self.prompt_or_input_encoded_pt,
            self.prompt_or_input_attention_mask_pt,
            context,
            mask,
            tokenizer.pad_token_id,
        )
        return Observation(
            self.prompt_or_input_encoded_pt,
            self.prompt_or_input_attention_mask_pt,
            self.prompt_or_input_text,
            context,
            mask,
            tokenizer.decode(context[0].tolist(), skip_special_tokens=True),
            self.target_or_reference_texts,
            whole,
            whole_mask,
            [*self.action_history, tokenizer.convert_ids_to_tokens(action)],
            self.meta_info,
        )

    def to_dict(self) -> dict[str, Ids]:
        """The arrays, flat, under the keys of the observation space."""
        return {
            "prompt_or_input_encoded_pt": self.prompt_or_input_encoded_pt[0],
            "prompt_or_input_attention_mask_pt": self.prompt_or_input_attention_mask_pt[0],
            "context_encoded_pt": self.context_encoded_pt[0],
            "context_attention_mask_pt": self.context_attention_mask_pt[0],
            "input_encoded_pt": self.input_encoded_pt[0],
            "input_attention_mask_pt": self.input_attention_mask_pt[0],
        }


def _padded(tokenizer: Any, text: str, length: int) -> tuple[Ids, Ids]:
    encoded = tokenizer(text, padding="max_length", max_length=length, truncation=True, return_attention_mask=True)
    return (
        np.asarray([encoded["input_ids"]], dtype=np.int64),
        np.asarray([encoded["attention_mask"]], dtype=np.int64),
    )


def _joined(prompt: Ids, prompt_mask: Ids, context: Ids, context_mask: Ids, pad: int) -> tuple[Ids, Ids]:
    """Both without their padding, padded on the left to their common length."""
    kept = np.concatenate([prompt[prompt_mask.astype(bool)], context[context_mask.astype(bool)]])
    size = prompt.shape[1] + context.shape[1]
    whole, mask = np.full((1, size), pad, dtype=np.int64), np.zeros((1, size), dtype=np.int64)
    if len(kept):
        whole[0, -len(kept) :], mask[0, -len(kept) :] = kept, 1
    return whole, mask
