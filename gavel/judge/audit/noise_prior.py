"""The noise of a judge's votes over many groups: a prior for the standard errors of further groups.

    prior = fit_noise_prior(judged_groups)            of a golden set, or of the first groups of a run
    judge = Judge("openai/gpt-5-mini", config=JudgeConfig(noise_prior=prior))

It is fitted once and then stays as it is, so that no score's error depends on the order in which groups are judged.
"""

from collections.abc import Iterable

from gavel.judge.audit.votes import distinct_members, judge_calls
from gavel.judge.panel.aggregate import Answer, group_noise
from gavel.judge.panel.standard_errors import Noise, NoisePrior, fit_prior
from gavel.scenarios.group import TrajectoryGroup


def noise_of(group: TrajectoryGroup) -> Noise:
    """The noise of a judged group's votes, from the votes alone; jurors are told apart by model, and weigh the same."""
    calls = judge_calls(group)
    models = list(dict.fromkeys(call.model for call in calls))
    answers = [
        Answer(
            number,
            models.index(call.model),
            1.0,
            {member: call.scores[member] for member in sorted(call.scores, key=call.positions.__getitem__)},
        )
        for number, call in enumerate(calls)
    ]
    return group_noise(answers, len(distinct_members(group)))


def fit_noise_prior(groups: Iterable[TrajectoryGroup]) -> NoisePrior | None:
    """The prior for a judge whose `groups` these are; None where no group has more votes than its scores need.

    Groups judged in the mode "pairwise" or with anchors are left out: their votes are on other scales.
    """
    return fit_prior(
        noise_of(group) for group in groups if group.judgement is not None and group.judgement.mode == "groupwise"
    )
