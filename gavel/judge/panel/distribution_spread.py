"""Standard errors of scores that are means of distributions.

A judge that answers with a distribution has doubts of its own, which more orders of the same text do not resolve: they
stay as they are, averaged over its calls. How far its answers differ from order to order is error too, which shrinks
with their number. Both add up:

    error² = (error of the mean over orders)² + Σ over jurors of share² · mean(spread²)

So one call has the distribution's standard deviation as its error, and jurors, whose doubts are their own, halve it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gavel.judge.panel.aggregate import AggregateScore, Answer, Scores
from gavel.judge.panel.anchors import fit_scale

_NEGLIGIBLE = 1e-3
"""Share of an error below which the differences between orders do not count for its degrees of freedom."""


def with_spreads(scores: Scores, answers: Sequence[Answer], fixed: Mapping[int, float]) -> Scores:
    """The scores with the spreads of their votes in the standard errors.

    `fixed`: scores of anchors, by member; a spread is put on their scale.
    """
    slopes = {juror: _slope(answers, juror, fixed) for juror in {answer.juror for answer in answers}}
    combined = dict(scores)
    for member, score in scores.items():
        if isinstance(score, AggregateScore) and any(member in answer.spreads for answer in answers):
            combined[member] = _with_doubt(score, _doubt(member, answers, slopes))
    return combined


def _with_doubt(score: AggregateScore, doubt: float) -> AggregateScore:
    between, freedom = score.standard_error or 0.0, score.degrees_of_freedom
    error = math.hypot(between, doubt)
    if freedom is not None:  # Satterthwaite 1946: the doubts are known, not estimated
        freedom = freedom * (error / between) ** 4 if between > _NEGLIGIBLE * error else None
    return replace(score, standard_error=error, degrees_of_freedom=freedom)


def _doubt(member: int, answers: Sequence[Answer], slopes: Mapping[int, float]) -> float:
    squares: dict[int, list[tuple[float, float]]] = {}
    for answer in answers:
        if member in answer.spreads:
            spread = answer.spreads[member] / slopes[answer.juror]
            squares.setdefault(answer.juror, []).append((answer.weight, spread**2))
    weights = {juror: math.fsum(weight for weight, _ in of_juror) for juror, of_juror in squares.items()}
    total = math.fsum(weights.values())
    parts = [
        (weights[juror] / total) ** 2 * math.fsum(weight * square for weight, square in of_juror) / weights[juror]
        for juror, of_juror in squares.items()
    ]
    return math.sqrt(math.fsum(parts))


def _slope(answers: Sequence[Answer], juror: int, fixed: Mapping[int, float]) -> float:
    """By how much the juror's scores change with the scale of the anchors; 1 without anchors."""
    own = [answer.scores for answer in answers if answer.juror == juror]
    votes = [(score, fixed[member]) for scores in own for member, score in scores.items() if member in fixed]
    return fit_scale(votes).slope if votes else 1.0
