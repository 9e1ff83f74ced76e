"""Metrics of generated texts, through kept libraries: {name: (a value for each text, the value of all)}.

    RougeMetric().compute([], ["the cat"], [["the cat sat"]])["lexical/rouge1"]      ([0.8], 0.8)

The corpus value of ROUGE is the mean over texts: RL4LMs' is the middle of a random bootstrap around it.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from gavel.compat.rl4lms.libraries import imported

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
