# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false
"""The golden set: groups with a known order, for tests of a judge and its prompts.

A verdict concerns two members of which one is known to be better; it is right if the better one scored higher. A
group that was not fully judged has no verdicts.

    weights = jury_weights(golden_scores(results))    {"openai/a": 2.1, "openai/b": 0.0}    0 = leave it out
    learnt_prior(with_weights(results, weights))      NoisePrior(variance=0.004, df=40, skill=1.3)   of this jury
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any, cast

from gavel.base.errors import run_all
from gavel.judge.audit.agreement import Pairs, pair_accuracy
from gavel.judge.audit.human_labels import GoldenGroup
from gavel.judge.audit.votes import answers_of, distinct_members, fit_noise_prior, votes_by_model
from gavel.judge.judge import Judge
from gavel.judge.panel.aggregate import groupwise
from gavel.judge.panel.standard_errors import NoisePrior
from gavel.judge.stats import LengthBias, centred_sums, characters_written
from gavel.scenarios.group import TrajectoryGroup, with_judgements
from gavel.scenarios.judgement import GroupJudgement, Judgement


@dataclass(frozen=True, slots=True)
class GoldenResult:
    """A judge's scores of a golden group."""

    group: GoldenGroup
    judged: TrajectoryGroup
    """The group with its votes, members in the order of the file."""
    scores: Mapping[str, float]
    """Of all members, by name, or empty."""
    reason: str = ""
    """Why there are no scores."""

    @property
    def account(self) -> GroupJudgement:
        """Its calls, what they cost, and the ids of its prompts."""
        return self.judged.judgement or GroupJudgement(status="unscored")

    @property
    def right(self) -> int:
        """Number of right verdicts."""
        return len(self.group.pairs) - len(self.violated) if self.scores else 0

    @property
    def violated(self) -> list[tuple[str, str]]:
        """The pairs whose better member did not score higher."""
        return [(a, b) for a, b in self.group.pairs if self.scores and self.scores[a] <= self.scores[b]]


async def check_golden(judge: Judge, groups: Iterable[GoldenGroup]) -> list[GoldenResult]:
    """Judges all groups concurrently; results are in order.

    A group with a lost call gets no scores, since fewer votes may give another order. Raises `JudgeError` if the judge
    cannot be called at all (see `Judge.check` and `Judge.score`).
    """
    judge.check()
    return await run_all(_check(judge, group) for group in groups)


async def _check(judge: Judge, group: GoldenGroup) -> GoldenResult:
    judged = await judge.score(group.group())
    whole = judged.judgement or GroupJudgement(status="unscored")
    scores = {name: each.reward for name, each in zip(group.members, judged, strict=True) if each.reward is not None}
    if len(scores) < len(judged) or whole.lost_orders:
        return GoldenResult(group, judged, {}, whole.reason or "; ".join(whole.warnings))
    return GoldenResult(group, judged, scores)


_CAUTION = 10.0
"""Members, added to those seen, of which no judge knows the order: a few groups do not make one judge decide alone."""
_USEFUL, _MAX_R = 0.1, 0.98
"""Correlations with the labels: below the first a judge is left out of a jury, since it may know nothing."""
_OTHERS = 0.4
"""Weight of all other jurors together over that of the best: they decide where the best sees no difference."""


def golden_scores(results: Iterable[GoldenResult]) -> list[Mapping[str, Pairs]]:
    """For each judged golden group, (score, rank from the worst tier) of its members by judge model.

    A model's score is the mean of its votes. Members that are identical to a judge count once.
    """
    found: list[Mapping[str, Pairs]] = []
    for result in (each for each in results if each.scores):
        rank = {id(member): of for of, member in zip(result.group.ranks.values(), result.judged, strict=True)}
        ranks = [rank[id(member)] for member, _ in distinct_members(result.judged)]
        of_model: dict[str, list[tuple[float, float]]] = {}
        for member, by_model in votes_by_model(result.judged).items():
            for model, scores in by_model.items():
                of_model.setdefault(model, []).append((math.fsum(scores) / len(scores), ranks[member]))
        found.append(of_model)
    return found


def jury_weights(groups: Sequence[Mapping[str, Pairs]]) -> dict[str, float]:
    """The weight of each judge, from its (score, reference) pairs in each group: 1 on average, 0 = leave it out.

    The best judge decides and the others break its ties, with weights ∝ r / (1 - r²) of their correlations r with the
    reference within groups, drawn towards 0 by `_CAUTION` members. These weights alone, which are those of the best
    linear combination of judges that err independently, are taken for all where they order more pairs rightly by more
    than a standard error. So a jury loses to its best member by no more than the few labels can tell.
    """
    judges = dict.fromkeys(judge for group in groups for judge in group)
    known = {judge: _correlation([group[judge] for group in groups if judge in group]) for judge in judges}
    if not known:
        return {}
    best = max(known, key=known.__getitem__)
    combined = {judge: r / (1 - r * r) if r > _USEFUL else 0.0 for judge, r in known.items()}
    combined[best] = combined[best] or 1.0
    others = math.fsum(combined.values()) - combined[best]
    decided = {judge: _OTHERS * weight / others if others else 0.0 for judge, weight in combined.items()} | {best: 1.0}
    gains = [
        with_all - alone
        for group in groups
        if (with_all := pair_accuracy(_jury_pairs(group, combined))) is not None
        and (alone := pair_accuracy(_jury_pairs(group, decided))) is not None
    ]
    clear = len(gains) > 1 and fmean(gains) > stdev(gains) / math.sqrt(len(gains))
    weights = combined if clear else decided
    mean = math.fsum(weights.values()) / len(weights)
    return {judge: weight / mean for judge, weight in weights.items()}


def _jury_pairs(group: Mapping[str, Pairs], weights: Mapping[str, float]) -> Pairs:
    """The (score, reference) pairs of a jury in a group in which all its judges scored all members."""
    own = {judge: pairs for judge, pairs in group.items() if weights[judge]}
    if len({len(pairs) for pairs in own.values()}) != 1:
        return []
    scores = zip(*([weights[judge] * score for score, _ in pairs] for judge, pairs in own.items()), strict=True)
    references = (reference for _, reference in next(iter(own.values())))
    return [(round(math.fsum(of_jury), 9), value) for of_jury, value in zip(scores, references, strict=True)]


def _correlation(groups: Sequence[Pairs]) -> float:
    """Of scores and references that are standardised within each group; a group that the judge ties counts as 0."""
    products = members = 0.0
    for pairs in groups:
        xy, xx, yy = centred_sums(pairs)
        if yy:
            members += len(pairs)
            products += len(pairs) * xy / (math.sqrt(xx * yy) or 1.0)
    return min(products / (members + _CAUTION), _MAX_R)


def with_weights(results: Iterable[GoldenResult], weights: Mapping[str, float]) -> list[GoldenResult]:
    """The results of the same votes in a jury with these weights, by judge model; 0 leaves a judge's votes out.

    Results of other modes than "groupwise", whose votes are no scores, stay as they are.
    """
    weighted: list[GoldenResult] = []
    for result in results:
        judged, whole = result.judged, result.judged.judgement
        if whole is None or whole.mode != "groupwise":
            weighted.append(result)
            continue
        distinct = [judgement.votes for _, judgement in distinct_members(judged)]
        means = groupwise(answers_of(judged, weights), len(distinct))
        members: list[Judgement] = []
        for before in (trajectory.judgement or Judgement() for trajectory in judged):
            votes = [vote for vote in before.votes if weights.get(vote.model)]
            found = means.get(distinct.index(before.votes)) if votes else None
            known = {"score": found and found.score, "standard_error": found and found.standard_error}
            members.append(before.model_copy(update={"votes": votes, **known}))
        named = zip(result.group.members, members, strict=True) if result.scores else ()
        scores = {name: each.score for name, each in named if each.score is not None}
        weighted.append(replace(result, scores=scores, judged=with_judgements(judged, members, whole)))
    return weighted


def learnt_prior(results: Iterable[GoldenResult]) -> NoisePrior | None:
    """What the results tell of the judge's errors: the noise of its votes, and its skill; None without any result.

    Of a jury it holds for the weights that its scores were made with (see `with_weights`).
    """
    results = [result for result in results if result.scores]
    prior = fit_noise_prior(result.judged for result in results) or NoisePrior()
    skill = learnt_skill(results)
    if skill is None:
        return prior if prior.df else None
    lengths = LengthBias()
    for result in results:
        ranks = zip(result.judged, result.group.ranks.values(), strict=True)
        lengths.add([(characters_written(attempt), rank) for attempt, rank in ranks])
    return prior.model_copy(update={"skill": skill, "length": lengths.correlation})


def learnt_skill(results: Iterable[GoldenResult]) -> float | None:
    """The skill of `NoisePrior.p_better` under which the known orders of all pairs are most likely; None without any.

    It is drawn towards that of other judges by its own standard error, so that a few pairs that are all right, or not,
    are not taken for the whole truth. A group's pairs count as much as its members less one.
    """
    pairs: list[tuple[float, float, float]] = []
    for result in (each for each in results if each.scores):
        members = zip(result.group.members, result.judged, strict=True)
        errors = {name: (member.judgement and member.judgement.standard_error) or 0.0 for name, member in members}
        weight = (len(errors) - 1) / len(result.group.pairs)
        for better, worse in result.group.pairs:
            if difference := result.scores[better] - result.scores[worse]:  # a tie says nothing of what it decides
                pairs.append((difference, math.hypot(errors[better], errors[worse]), weight))
    if not pairs:
        return None
    usual = math.sqrt(fmean(difference**2 for difference, _, _ in pairs))

    def unlikelihood(scaled: float) -> float:
        trial = NoisePrior(skill=scaled / usual)
        seen = -math.fsum(w * math.log(max(trial.p_better(d, e), 1e-300)) for d, e, w in pairs)
        return seen + (scaled - _USUAL_SKILL) ** 2 / 2

    from scipy.optimize import minimize_scalar

    found: Any = minimize_scalar(unlikelihood, bounds=(-_MAX_SKILL, _MAX_SKILL), method="bounded")
    return round(float(cast(float, found["x"])) / usual, 4)


_MAX_SKILL = 5.0
"""Of the usual difference: with so much, one pair in three million is wrong."""
_USUAL_SKILL = 0.9
"""The mean of eight judges on LLMEval² and MT-Bench. As a prior it has the variance 1: a judge may also contradict."""
