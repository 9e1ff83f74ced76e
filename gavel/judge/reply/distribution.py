"""Scores as distributions over the levels of a scale, from the lowest to the highest.

    moments([0, 0, 0.5, 0.5])      mean 0.83, spread 0.17 on a scale from 0 to 1

A member's score is the mean, which separates attempts of the same level; the standard deviation measures the judge's
certainty. An invalid distribution is rejected, never completed or read as a score. The answers of a decision model are
matched by the names of their questions.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gavel.judge.reply.verdict import Scored, Verdict, VerdictError
from gavel.judge.rubric import Rubric
from gavel.scenarios.formats.row import is_list, is_object

NO_ANSWER = "the model gave no answer"
_TOLERANCE = 0.02
"""Largest difference of the probabilities' sum from 1: servers round."""


Moments = tuple[float, float]
"""Mean, from 0 (all on the lowest level) to 1, and standard deviation of a distribution."""


def moments(probabilities: Sequence[float]) -> Moments:
    """The moments of probabilities that sum to 1."""
    levels = [level / (len(probabilities) - 1) for level in range(len(probabilities))]
    mean = math.fsum(p * level for p, level in zip(probabilities, levels, strict=True))
    squares = (p * (level - mean) ** 2 for p, level in zip(probabilities, levels, strict=True))
    return mean, math.sqrt(math.fsum(squares))


def read_moments(probabilities: object, levels: int) -> Moments | str:
    """The moments, or why these are no `levels` probabilities that sum to 1."""
    if probabilities is None:
        return NO_ANSWER
    if not is_list(probabilities) or len(probabilities) != levels:
        return f"there are no probabilities of {levels} levels"
    numbers = [p for p in probabilities if isinstance(p, int | float) and math.isfinite(p) and p >= 0]
    if len(numbers) < levels:
        return "a probability is no number from 0 to 1"
    total = math.fsum(numbers)
    if abs(total - 1) > _TOLERANCE:
        return f"the probabilities sum to {total:.3g}, not to 1"
    return moments([p / total for p in numbers])


def verdict_of(found: Mapping[str, Moments | str], rubric: Rubric, labels: Sequence[str]) -> Verdict:
    """The score of every label whose ids (see `ids_to_score`) all have a distribution; the others are unread.

    `found`: by id, the moments of its distribution, or the reason why there are none. With criteria the mean is
    weighted, and so is the spread: a judge's uncertainties about one attempt are not independent. Raises
    `VerdictError` if no label has a score.
    """
    scores: dict[str, Scored] = {}
    unread: dict[str, str] = {}
    for label in labels:
        ids = [label + letter for letter, _ in rubric.lettered] or [label]
        given = [found.get(one, NO_ANSWER) for one in ids]
        if problem := next((each for each in given if isinstance(each, str)), None):
            unread[label] = problem
            continue
        means, spreads = zip(*(each for each in given if not isinstance(each, str)), strict=True)
        weights = [criterion.weight for criterion in rubric.criteria] or [1.0]
        by_name = {criterion.name: mean for criterion, mean in zip(rubric.criteria, means, strict=False)}
        scores[label] = Scored(_mean(means, weights), criteria=by_name, spread=_mean(spreads, weights))
    if not scores:
        raise VerdictError("; ".join(dict.fromkeys(unread.values())))
    return Verdict(scores, unread=unread)


def object_of(reply: str) -> dict[str, Any]:
    """The JSON object of a response; empty for another value. Raises `VerdictError` for what is no JSON."""
    try:
        parsed = json.loads(reply)
    except ValueError as error:
        raise VerdictError("it is not JSON") from error
    return parsed if is_object(parsed) else {}


def read_decisions(reply: str, rubric: Rubric, labels: Sequence[str], levels: int) -> Verdict:
    """The scores in the text that `gavel.llm.decisions` makes of a response.

    Raises `VerdictError` when there are none.
    """
    answers = object_of(reply).get("answers")
    if not is_list(answers):
        raise VerdictError("it holds no answers")
    found: dict[str, Moments | str] = {}
    names = Counter[str]()
    for answer in answers:
        if not is_object(answer, "name") or not isinstance(name := answer["name"], str):
            raise VerdictError("an answer has no name")
        names[name] += 1
        found[name] = read_moments(answer.get("probabilities"), levels)
    found |= {name: "its question has two answers" for name, count in names.items() if count > 1}
    return verdict_of(found, rubric, labels)


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    mean = math.fsum(w * v for w, v in zip(weights, values, strict=True)) / math.fsum(weights)
    return min(max(mean, 0.0), 1.0)
