"""Reward functions of single actions: most give 0 until the text is complete, then a metric of it.

class Brevity(RewardFunction):
    def __call__(self, prev_observation, action, current_observation, done, meta_info=None):
        return -0.01 if not done else float("." in current_observation.context_text)
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from gavel.base.errors import GavelError
from gavel.compat.rl4lms.metrics import RougeMetric, SacreBleuMetric, rouge_scores
from gavel.compat.rl4lms.observation import Observation


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


class RougeReward(RewardFunction):
    """The F-measure of a ROUGE type, with a stemmer, at the end of the text."""

    def __init__(
        self, rouge_type: str = "rougeL", shaping_fn: RewardFunction | None = None, use_single_ref: bool = True
    ) -> None:
        """`use_single_ref`: compares with the first reference alone, else with the best of them. `shaping_fn`: is added
        at the end."""
        RougeMetric()  # its library is told to be missing here, not in the middle of a run
        self._type, self._shaping, self._single = rouge_type, shaping_fn, use_single_ref

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
        references = current_observation.target_or_reference_texts
        scores = rouge_scores(current_observation.context_text, references[:1] if self._single else references)
        shaped = self._shaping(prev_observation, action, current_observation, done, meta_info) if self._shaping else 0.0
        return scores[self._type] + shaped


class RougeCombinedReward(RewardFunction):
    """The mean of the F-measures of ROUGE-1, ROUGE-2 and ROUGE-L with the first reference."""

    def __init__(self, shaping_fn: RewardFunction | None = None) -> None:
        self._parts = [RougeReward(each) for each in ("rouge1", "rouge2", "rougeL")]
        self._shaping = shaping_fn

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
        asked = (prev_observation, action, current_observation, done, meta_info)
        mean = sum(part(*asked) for part in self._parts) / len(self._parts)
        return mean + (self._shaping(*asked) if self._shaping else 0.0)


class SacreBleuReward(RewardFunction):
    """SacreBLEU of the finished text with all its references, from 0 to 1."""

    def __init__(self, **arguments: Any) -> None:
        """`arguments`: of sacrebleu's `BLEU`, such as effective_order=True."""
        self._metric = SacreBleuMetric(**arguments)

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
        texts, references = [current_observation.context_text], [current_observation.target_or_reference_texts]
        return self._metric.compute([], texts, references)["lexical/sacrebleu"][1]


class IncreasingNumbersReward(RewardFunction):
    """RL4LMs' synthetic task: of the numbers in the finished text, the longest beginning that increases, over
    `min_tokens`, at most 1."""

    def __init__(self, min_tokens: int = 20) -> None:
        self._min_tokens = min_tokens

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
        count, last = 0, float("-inf")
        for word in current_observation.context_text.split():
            try:
                number = float(word)
            except ValueError:
                break
            if not number > last:
                break
            count, last = count + 1, number
        return min(count / self._min_tokens, 1.0)


def reward_of(function: AnyReward, before: Observation, action: int, after: Observation, done: bool) -> float:
    """The reward of one action by either kind of function. Raises `GavelError` for what is no finite number."""
    if isinstance(function, RewardFunction):
        return _finite(function(before, action, after, done, after.meta_info))
    (value,) = function(
        [after.prompt_or_input_text],
        [after.context_text],
        [after.target_or_reference_texts],
        [done],
        [after.meta_info],
    )
    return _finite(value)


def _finite(value: Any) -> float:
    try:
        number = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise GavelError(f"the reward function gave {value!r:.100}.", "Let it return a finite number.")
    return number
