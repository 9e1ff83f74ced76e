"""Metrics of generated texts, through kept libraries, and reward functions of single actions.

    RougeMetric().compute([], ["the cat"], [["the cat sat"]])["lexical/rouge1"]      ([0.8], 0.8)

    class Brevity(RewardFunction):
        def __call__(self, prev_observation, action, current_observation, done, meta_info=None):
            return -0.01 if not done else float("." in current_observation.context_text)

A metric gives {name: (a value for each text, the value of all)}. The corpus value of ROUGE is the mean over texts:
RL4LMs' is the middle of a random bootstrap around it. Most rewards are 0 until the text is complete, then a metric.
"""

import functools
import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from gavel.base.errors import GavelError
from gavel.base.extras import install_line
from gavel.integrations.rl4lms.texts import Observation


class MissingLibraryError(GavelError, ImportError):
    """A library of the extra is not installed."""


def imported(module: str) -> Any:
    """The module. Raises `MissingLibraryError`."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingLibraryError(
            f"gavel.integrations.rl4lms needs {error.name or module}, which is not installed.",
            install_line("rl4lms"),
        ) from error


Values = dict[str, tuple[list[float] | None, float]]
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
    ) -> Values:
        """By name, a value for each text (None where there is none) and that of all."""


class RougeMetric(TextMetric):
    """ROUGE-1, -2, -L and -Lsum, F-measures with a stemmer; of several references the best counts."""

    def __init__(self) -> None:
        _scorer()

    def compute(
        self,
        prompt_texts: Sequence[str],
        generated_texts: Sequence[str],
        reference_texts: Sequence[Sequence[str]],
        meta_infos: Sequence[dict[str, Any] | None] | None = None,
    ) -> Values:
        scores = [rouge_scores(text, refs) for text, refs in zip(generated_texts, reference_texts, strict=True)]
        by_type = {name: [each[name] for each in scores] for name in _ROUGE}
        return {f"lexical/{name}": (values, fmean(values) if values else 0.0) for name, values in by_type.items()}


class SacreBleuMetric(TextMetric):
    """SacreBLEU from 0 to 1: sentence BLEU of each text, corpus BLEU of all."""

    def __init__(self, **arguments: Any) -> None:
        """`arguments`: of sacrebleu's `BLEU`."""
        self._bleu: Any = imported("sacrebleu").BLEU(**arguments)
        self._sentence: Any = imported("sacrebleu").BLEU(**{"effective_order": True, **arguments})

    def compute(
        self,
        prompt_texts: Sequence[str],
        generated_texts: Sequence[str],
        reference_texts: Sequence[Sequence[str]],
        meta_infos: Sequence[dict[str, Any] | None] | None = None,
    ) -> Values:
        pairs = list(zip(generated_texts, reference_texts, strict=True))
        each = [self._sentence.sentence_score(text, list(refs)).score / 100 for text, refs in pairs]
        most = max((len(refs) for _, refs in pairs), default=0)
        streams = [[refs[at] if at < len(refs) else None for _, refs in pairs] for at in range(most)]
        corpus = self._bleu.corpus_score(list(generated_texts), streams).score / 100 if most else 0.0
        return {"lexical/sacrebleu": (each, corpus)}


class DistinctMetric(TextMetric):
    """Distinct-n of all texts: different n-grams of words over all n-grams (arXiv 1510.03055)."""

    def __init__(self, n: int = 2) -> None:
        self._n = n

    def compute(
        self,
        prompt_texts: Sequence[str],
        generated_texts: Sequence[str],
        reference_texts: Sequence[Sequence[str]],
        meta_infos: Sequence[dict[str, Any] | None] | None = None,
    ) -> Values:
        grams = [
            tuple(words[at : at + self._n])
            for words in (text.split() for text in generated_texts)
            for at in range(len(words) - self._n + 1)
        ]
        return {f"diversity_metrics/distinct-{self._n}": (None, len(set(grams)) / len(grams) if grams else 0.0)}


def rouge_scores(text: str, references: Sequence[str]) -> dict[str, float]:
    """The F-measures of a text, with the best of its references by each type."""
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
