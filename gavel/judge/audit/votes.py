"""Reads the votes of a judged group back as calls of the judge, over its distinct members.

Identical members were shown once and share their votes. Only the first of them counts here, since counting copies
would overstate how well a judge agrees with itself.

    prior = fit_noise_prior(judged_groups)            of a golden set, or of the first groups of a run
    judge = Judge("openai/gpt-5-mini", config=JudgeConfig(noise_prior=prior))

A noise prior is fitted once and then stays, so that no score's error depends on the order in which groups are judged.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from gavel.judge.errors import JudgeError
from gavel.judge.panel.aggregate import Answer, group_noise
from gavel.judge.panel.standard_errors import NoisePrior, fit_prior
from gavel.scenarios.group import TrajectoryGroup, as_groups
from gavel.scenarios.judgement import Judgement
from gavel.scenarios.trajectory import Trajectory

_ROUNDING = 1e-6
"""By which a mean of scores may leave [0, 1]."""


@dataclass(frozen=True, slots=True)
class JudgeCall:
    """One answered call to a judge model."""

    model: str
    scores: dict[int, float]
    """By member, an index into `distinct_members`, in the order shown."""
    is_complete: bool
    """Whether no vote of it is missing."""


def judged_groups(groups: Iterable[TrajectoryGroup] | TrajectoryGroup) -> list[TrajectoryGroup]:
    """The groups as a list. Raises `JudgeError` where no member of any is judged, or a score is outside [0, 1], and
    `GroupError` for anything but groups."""
    groups = as_groups(groups, single=False)
    for number, group in enumerate(groups, 1):
        for at, member in enumerate(group, 1):
            judgement = member.judgement or Judgement()
            for score in (judgement.score, *(vote.score for vote in judgement.votes)):
                # another program may have written the file: one NaN would make every figure NaN
                if score is not None and not -_ROUNDING <= score <= 1 + _ROUNDING:
                    raise JudgeError(
                        f"a judge's score of member {at} of group {number} is {score}, and scores are from 0 to 1.",
                        "Mend the file, or judge it anew: gavel score FILE --out judged.jsonl.",
                    )
    if not any(member.judgement and member.judgement.score is not None for group in groups for member in group):
        members = sum(len(group) for group in groups)
        raise JudgeError(
            f"none of the {members} members of {len(groups)} group{'s' * (len(groups) != 1)} has a judge's score.",
            "Judge them first: gavel score FILE --out judged.jsonl, or Judge.score.",
        )
    return groups


def distinct_members(group: TrajectoryGroup) -> list[tuple[Trajectory, Judgement]]:
    """The judged members; of identical ones, which have the same votes, only the first."""
    kept: dict[object, tuple[Trajectory, Judgement]] = {}
    for member in group:
        if (judgement := member.judgement) is not None and (judgement.votes or judgement.score is not None):
            shown = tuple((vote.order, vote.position) for vote in judgement.votes)
            kept.setdefault(shown or id(member), (member, judgement))
    return list(kept.values())


def judge_calls(group: TrajectoryGroup) -> list[JudgeCall]:
    """The calls that gave the group's votes, in order."""
    members = enumerate(distinct_members(group))
    votes = sorted((v.order, v.position, number, v.score, v.model) for number, (_, own) in members for v in own.votes)
    calls: list[JudgeCall] = []
    for _, of_call in groupby(votes, key=itemgetter(0)):
        _, positions, numbers, scores, models = zip(*of_call, strict=True)
        scores_shown = dict(zip(numbers, scores, strict=True))
        calls.append(JudgeCall(models[0], scores_shown, positions == tuple(range(len(positions)))))
    return calls


def votes_by_model(group: TrajectoryGroup) -> dict[int, dict[str, list[float]]]:
    """For each member with votes, an index into `distinct_members`, its scores by judge model."""
    found: dict[int, dict[str, list[float]]] = {}
    for call in judge_calls(group):
        for member in sorted(call.scores):
            found.setdefault(member, {}).setdefault(call.model, []).append(call.scores[member])
    return found


def voting_models(groups: Iterable[TrajectoryGroup]) -> list[str]:
    """The judge models that voted, in order of first appearance."""
    return list(dict.fromkeys(call.model for group in groups for call in judge_calls(group)))


def answers_of(group: TrajectoryGroup, weights: Mapping[str, float] | None = None) -> list[Answer]:
    """The group's votes as `aggregate` takes them; jurors are told apart by model.

    `weights`: by model; a model without a weight, or with 0, is left out. None = all weigh the same.
    """
    calls = judge_calls(group)
    models = list(dict.fromkeys(call.model for call in calls))
    known = dict.fromkeys(models, 1.0) if weights is None else weights
    return [
        Answer(number, models.index(call.model), known[call.model], call.scores)
        for number, call in enumerate(calls)
        if known.get(call.model)
    ]


def fit_noise_prior(groups: Iterable[TrajectoryGroup]) -> NoisePrior | None:
    """The prior for a judge whose `groups` these are; None where no group has more votes than its scores need.

    Groups judged in the mode "pairwise" or with anchors are left out: their votes are on other scales.
    """
    return fit_prior(
        group_noise(answers_of(group), len(distinct_members(group)))
        for group in groups
        if group.judgement is not None and group.judgement.mode == "groupwise"
    )
