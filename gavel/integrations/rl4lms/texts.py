"""Samples, observations and rewards of text generation with one token per action.

    PrioritySampler(priority_scale=1.0)                probability of a sample = weight ** scale / their sum

    prompt  [pad pad 11 12]   context  [pad pad pad 21]   ->   input  [pad pad pad pad pad 11 12 21]

    class Brevity(RewardFunction):
        def __call__(self, prev_observation, action, current_observation, done, meta_info=None):
            return -0.01 if not done else float("." in current_observation.context_text)

Everything is padded on the left: the newest token is the last of `context` and of `input`. Arrays are int64 `[1, N]`.
Most rewards are 0 until the text is complete, then a metric, which gives {name: (a value for each text, that of all)}.
The corpus value of ROUGE is the mean over texts: RL4LMs' is the middle of a random bootstrap around it.
"""

import functools
import importlib
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, zip_longest
from statistics import fmean
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gavel.base.errors import GavelError
from gavel.base.extras import MissingExtraError

Item = TypeVar("Item")


def imported(module: str) -> Any:
    """The module. Raises `MissingExtraError`."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError("gavel.integrations.rl4lms", error.name or module, "rl4lms") from error


@dataclass
class Sample:
    """One prompt with its references; fields and order are RL4LMs'. Raises `GavelError` for references in one text."""

    id: str
    prompt_or_input_text: str
    references: list[str]
    meta_data: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.references, str):  # else every letter would count as a reference
            raise GavelError(f"the references of the sample {self.id} are a text.", "Give a list: [text].")


class TextGenPool(Sequence[tuple[Sample, float]]):
    """Samples of a data set; indexing and iterating give (sample, weight 1)."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = list(samples)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        return self._samples[index], 1.0

    def sample(self) -> Sample:
        """A uniformly drawn sample."""
        return random.choice(self._samples)

    def split(self, split_ratios: Sequence[float]) -> "list[TextGenPool]":
        """Consecutive parts with these shares; remainders of rounding are in none."""
        ends = [*accumulate((int(len(self) * ratio) for ratio in split_ratios), initial=0)]
        return [type(self)(self._samples[first:end]) for first, end in pairwise(ends)]


class PrioritySampler(Generic[Item]):
    """Draws items with probability proportional to weight ** priority_scale."""

    def __init__(self, priority_scale: float = 0.0) -> None:
        self.priority_scale = priority_scale
        self._items: list[Item] = []
        self._weights: list[float] = []

    def add(self, item: Item, weight: float) -> None:
        """Adds an item. Raises `GavelError` for a weight that is no number from 0."""
        if not 0 <= weight < float("inf"):
            raise GavelError(f"the weight {weight!r} of a sample is no weight.", "Use a number from 0.")
        self._items.append(item)
        self._weights.append(weight)

    @property
    def probabilities(self) -> list[float]:
        """The items' probabilities, in the order of addition. Raises `GavelError` if all weights are 0, or there are no
        items."""
        scaled = [weight**self.priority_scale for weight in self._weights]
        total = sum(scaled)
        if not total > 0:
            raise GavelError(
                "there is no sample to draw: there are none, or all have the weight 0.",
                "Add a sample with a weight above 0, or leave priority_scale at 0.",
            )
        return [each / total for each in scaled]

    def sample(self, size: int, chooser: random.Random | None = None) -> list[Item]:
        """`size` different items, or all with a positive probability if these are fewer."""
        chosen, weights = chooser or random.Random(), self.probabilities
        # Efraimidis and Spirakis 2006: the largest u ** (1 / weight) are a weighted sample without replacement.
        keys = [(math.log(1 - chosen.random()) / w, at) for at, w in enumerate(weights) if w > 0]
        return [self._items[at] for _, at in sorted(keys, reverse=True)[:size]]


Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Observation:
    """One state; a reward function is given those before and after an action."""

    prompt_or_input_encoded_pt: Ids
    """`[1, max_prompt_length]`"""
    prompt_or_input_attention_mask_pt: Ids
    prompt_or_input_text: str
    context_encoded_pt: Ids
    """Ids of the generated text. `[1, max_episode_length]`"""
    context_attention_mask_pt: Ids
    context_text: str
    """The generated text without special tokens."""
    target_or_reference_texts: list[str]
    input_encoded_pt: Ids
    """Ids of prompt and context without the padding between them. `[1, max_prompt_length + max_episode_length]`"""
    input_attention_mask_pt: Ids
    action_history: list[str]
    """Texts of the single tokens."""
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
        """The state before the first action. A longer prompt is cut on its `prompt_truncation_side`."""
        side, tokenizer.truncation_side = tokenizer.truncation_side, prompt_truncation_side
        try:
            prompt = tokenizer(sample.prompt_or_input_text, max_length=max_input_length, truncation=True)["input_ids"]
        finally:
            tokenizer.truncation_side = side
        context = tokenizer("")["input_ids"] if context_start_token is None else [context_start_token]
        return cls(
            **_arrays(prompt, context, (max_input_length, max_context_length), tokenizer.pad_token_id),
            prompt_or_input_text=sample.prompt_or_input_text,
            context_text="",
            target_or_reference_texts=sample.references,
            action_history=[],
            meta_info=meta_info,
        )

    def update(self, action: int, tokenizer: Any) -> "Observation":
        """The state after an action."""
        prompt = self.prompt_or_input_encoded_pt[self.prompt_or_input_attention_mask_pt == 1].tolist()
        context = [*self.context_encoded_pt[self.context_attention_mask_pt == 1].tolist(), int(action)]
        lengths = self.prompt_or_input_encoded_pt.size, self.context_encoded_pt.size
        return replace(
            self,
            **_arrays(prompt, context, lengths, tokenizer.pad_token_id),
            context_text=tokenizer.decode(context, skip_special_tokens=True),
            action_history=[*self.action_history, tokenizer.convert_ids_to_tokens(int(action))],
        )

    def to_dict(self) -> dict[str, Ids]:
        """The arrays, flattened, under the keys of the observation space."""
        return {name: value[0] for name, value in vars(self).items() if name.endswith("_pt")}


def _arrays(prompt: list[int], context: list[int], lengths: tuple[int, int], pad: int) -> dict[str, Any]:
    """The arrays of an observation, padded on the left."""
    context = context[-lengths[1] :]
    parts = zip(
        ("prompt_or_input", "context", "input"),
        (prompt, context, prompt + context),
        (*lengths, sum(lengths)),
        strict=True,
    )
    arrays: dict[str, Ids] = {}
    for name, ids, length in parts:
        missing = length - len(ids)
        arrays[f"{name}_encoded_pt"] = np.asarray([[pad] * missing + ids], dtype=np.int64)
        arrays[f"{name}_attention_mask_pt"] = np.asarray([[0] * missing + [1] * len(ids)], dtype=np.int64)
    return arrays


Values = dict[str, tuple[list[float] | None, float]]
"""By name, one value per text (None if there is none) and the overall value."""
_ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")


class TextMetric(ABC):
    """Measures texts against their references."""

    @abstractmethod
    def compute(
        self,
        prompt_texts: Sequence[str],
        generated_texts: Sequence[str],
        reference_texts: Sequence[Sequence[str]],
        meta_infos: Sequence[dict[str, Any] | None] | None = None,
    ) -> Values: ...


class RougeMetric(TextMetric):
    """ROUGE-1, -2, -L and -Lsum, F-measures with a stemmer; the best reference counts."""

    def __init__(self) -> None:
        _scorer()

    def compute(self, prompt_texts: Any, generated_texts: Any, reference_texts: Any, meta_infos: Any = None) -> Values:
        scores = [_rouge(text, refs) for text, refs in zip(generated_texts, reference_texts, strict=True)]
        by_type = {name: [each[name] for each in scores] for name in _ROUGE}
        return {f"lexical/{name}": (values, fmean(values) if values else 0.0) for name, values in by_type.items()}


class SacreBleuMetric(TextMetric):
    """SacreBLEU from 0 to 1: sentence BLEU of each text, corpus BLEU of all."""

    def __init__(self, **arguments: Any) -> None:
        """`arguments`: options of sacrebleu's `BLEU`."""
        bleu = imported("sacrebleu").BLEU
        self._bleu, self._sentence = bleu(**arguments), bleu(**{"effective_order": True, **arguments})

    def compute(self, prompt_texts: Any, generated_texts: Any, reference_texts: Any, meta_infos: Any = None) -> Values:
        pairs = zip(generated_texts, reference_texts, strict=True)
        each = [self._sentence.sentence_score(text, list(refs)).score / 100 for text, refs in pairs]
        streams: list[list[str | None]] = [list(each) for each in zip_longest(*reference_texts)]
        corpus = self._bleu.corpus_score(list(generated_texts), streams).score / 100 if streams else 0.0
        return {"lexical/sacrebleu": (each, corpus)}


def _rouge(text: str, references: Sequence[str]) -> dict[str, float]:
    found = _scorer().score_multi(list(references), text)
    return {name: float(score.fmeasure) for name, score in found.items()}


@functools.cache
def _scorer() -> Any:
    return imported("rouge_score.rouge_scorer").RougeScorer(list(_ROUGE), use_stemmer=True)


class RewardFunction(ABC):
    """Gives the reward of one action."""

    @abstractmethod
    def __call__(
        self,
        prev_observation: Observation,
        action: int,
        current_observation: Observation,
        done: bool,
        meta_info: dict[str, Any] | None = None,
    ) -> float:
        """`prev_observation` is the state in which `action` was taken, `current_observation` the one after it, and
        `done` whether it ended the episode."""


class BatchedRewardFunction(ABC):
    """Gives the rewards of several texts at once; unfinished ones are usually 0."""

    @abstractmethod
    def __call__(
        self,
        prompt_texts: list[str],
        gen_texts: list[str],
        ref_texts: list[list[str]],
        dones: list[bool],
        meta_infos: list[dict[str, Any] | None] | None = None,
    ) -> Sequence[float]: ...


AnyReward = RewardFunction | BatchedRewardFunction


class _OfTheText(RewardFunction):
    """A reward of 0 until the text is complete, then its score, plus the reward of `shaping_fn`."""

    shaping_fn: RewardFunction | None = None

    @abstractmethod
    def score(self, text: str, references: list[str]) -> float: ...

    def __call__(
        self,
        prev_observation: Observation,
        action: int,
        current_observation: Observation,
        done: bool,
        meta_info: dict[str, Any] | None = None,
    ) -> float:
        if not done:
            return 0.0
        score = self.score(current_observation.context_text, current_observation.target_or_reference_texts)
        shaping = self.shaping_fn
        return score + (shaping(prev_observation, action, current_observation, done, meta_info) if shaping else 0.0)


class RougeReward(_OfTheText):
    """The F-measure of a ROUGE type, with a stemmer."""

    def __init__(
        self, rouge_type: str = "rougeL", shaping_fn: RewardFunction | None = None, use_single_ref: bool = True
    ) -> None:
        """`use_single_ref`: compares with the first reference alone, else with the best one."""
        _scorer()  # a missing library is reported here, not during a run
        self._types: tuple[str, ...] = (rouge_type,)
        self.shaping_fn, self._single = shaping_fn, use_single_ref

    def score(self, text: str, references: list[str]) -> float:
        found = _rouge(text, references[:1] if self._single else references)
        return fmean(found[each] for each in self._types)


class RougeCombinedReward(RougeReward):
    """The mean of the F-measures of ROUGE-1, ROUGE-2 and ROUGE-L with the first reference."""

    def __init__(self, shaping_fn: RewardFunction | None = None) -> None:
        super().__init__(shaping_fn=shaping_fn)
        self._types = "rouge1", "rouge2", "rougeL"


class SacreBleuReward(_OfTheText):
    """SacreBLEU with all references, from 0 to 1."""

    def __init__(self, **arguments: Any) -> None:
        """`arguments`: options of sacrebleu's `BLEU`, such as effective_order=True."""
        self._metric = SacreBleuMetric(**arguments)

    def score(self, text: str, references: list[str]) -> float:
        return self._metric.compute([], [text], [references])["lexical/sacrebleu"][1]


class IncreasingNumbersReward(_OfTheText):
    """RL4LMs' synthetic task: of the numbers in the text, the longest beginning that increases, over `min_tokens`, at
    most 1."""

    def __init__(self, min_tokens: int = 20) -> None:
        self._min_tokens = min_tokens

    def score(self, text: str, references: list[str]) -> float:
        count, last = 0, float("-inf")
        for word in text.split():
            number = _number(word)
            if not number > last:  # also where it is NaN: no number
                break
            count, last = count + 1, number
        return min(count / self._min_tokens, 1.0)


def reward_of(function: AnyReward, before: Observation, action: int, after: Observation, done: bool) -> float:
    """The reward of one action, from either kind of function. Raises `GavelError` unless it is a finite number."""
    if isinstance(function, RewardFunction):
        value: Any = function(before, action, after, done, after.meta_info)
    else:
        texts = [after.prompt_or_input_text], [after.context_text], [after.target_or_reference_texts]
        (value,) = function(*texts, [done], [after.meta_info])
    number = math.nan if isinstance(value, str) else _number(value)
    if not math.isfinite(number):
        raise GavelError(f"the reward function gave {value!r:.100}.", "Let it return a finite number.")
    return number


def _number(value: Any) -> float:
    """The number; NaN for anything else."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
