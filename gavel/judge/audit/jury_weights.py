"""Weights of a jury, learnt from groups in which the better members are known.

    jury_weights(scores)      {"openai/a": 1.62, "openai/b": 0.38}      for Juror(model, weight=…)

The weights are those of the best linear combination of judges that err independently. Judges that err alike need less.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from gavel.judge.audit.agreement import Pairs, center
from gavel.judge.audit.golden import GoldenResult
from gavel.judge.audit.votes import distinct_members, judge_calls

_CAUTION = 10.0
"""Members, added to those seen, of which no judge knows the order: a few groups do not make one judge decide alone."""
_MIN_R, _MAX_R = 0.02, 0.98
"""A judge that knows nothing keeps a small weight, which is above 0 as a juror's must be."""


def golden_scores(results: Iterable[GoldenResult]) -> list[dict[str, Pairs]]:
    """For each judged golden group, (score, rank from the worst tier) of its members by judge model.

    A model's score is the mean of its votes. Members that are identical to a judge count once.
    """
    found: list[dict[str, Pairs]] = []
    for result in results:
        if result.judged is None or not result.scores:
            continue
        tiers = {name: -tier for tier, names in enumerate(result.group.order) for name in names}
        rank = {id(member): tiers[name] for name, member in zip(result.group.members, result.judged, strict=True)}
        of_model: dict[str, dict[int, list[float]]] = {}
        for call in judge_calls(result.judged):
            for member, score in call.scores.items():
                of_model.setdefault(call.model, {}).setdefault(member, []).append(score)
        members = [member for member, _ in distinct_members(result.judged)]
        found.append(
            {
                model: [(math.fsum(own) / len(own), float(rank[id(members[n])])) for n, own in votes.items()]
                for model, votes in of_model.items()
            }
        )
    return found


def jury_weights(groups: Sequence[Mapping[str, Pairs]]) -> dict[str, float]:
    """The weight of each judge, 1 on average, from its (score, reference) pairs in each group.

    w ∝ r / (1 - r²), the weights of the best linear predictor from standardised scores whose errors are independent,
    with each judge's correlation r with the reference within groups, drawn towards 0 by `_CAUTION` members.
    """
    known = {judge: _correlation([group[judge] for group in groups if judge in group]) for judge in _judges(groups)}
    raw = {judge: r / (1 - r * r) for judge, r in known.items()}
    mean = math.fsum(raw.values()) / len(raw) if raw else 1.0
    return {judge: weight / mean for judge, weight in raw.items()}


def _judges(groups: Sequence[Mapping[str, Pairs]]) -> list[str]:
    return list(dict.fromkeys(judge for group in groups for judge in group))


def _correlation(groups: Sequence[Pairs]) -> float:
    """Of scores and references that are standardised within each group; a group that the judge ties counts as 0."""
    products = members = 0.0
    for pairs in groups:
        scores, references = center([score for score, _ in pairs]), center([value for _, value in pairs])
        scale = math.sqrt(math.fsum(x * x for x in scores) * math.fsum(y * y for y in references))
        if any(references):
            members += len(pairs)
            products += len(pairs) * math.fsum(x * y for x, y in zip(scores, references, strict=True)) / (scale or 1.0)
    return min(max(products / (members + _CAUTION), _MIN_R), _MAX_R)
