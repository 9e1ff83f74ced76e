"""Criteria for one task, written by a model that has seen the attempts, and kept where they tell them apart.

    task.criteria = await draft_criteria(task, attempts, "openai/gpt-5-mini")

1. The model reads the attempts and writes criteria.
2. A judge scores the attempts by all of them, in balanced orders.
3. Criteria by which the attempts differ no more than by chance are dropped.
4. Near-duplicates are merged: criteria that say the same, or that score all attempts the same; their weights add up.

All attempts of a group are judged by the same criteria: those of their task.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean, pvariance, variance
from typing import Unpack

from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Models, jury
from gavel.judge.panel.schedule import LARGEST_WHOLE
from gavel.judge.prompt.call_prompt import GroupPrompts, with_request
from gavel.judge.prompt.canonical_group import canonicalize, has_reference, with_reference
from gavel.judge.prompt.fenced_transcript import draw_markers
from gavel.judge.prompt.flags import with_flags
from gavel.judge.prompt.sanitize import sanitize
from gavel.judge.rubric import Criterion, Rubric
from gavel.judge.rubric_draft import MOST_CRITERIA, ask_for_rubric
from gavel.judge.ruler import JudgeOptions
from gavel.llm.client import Client
from gavel.llm.message_parts import text_of
from gavel.llm.prices import prices_from_environment
from gavel.llm.types import Message
from gavel.prompts import render
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.truth import KEY, Truth

MIN_SPREAD = 0.05
"""Standard deviation of the attempts' scores, below which a criterion tells nothing."""
_ABOVE_NOISE = 2.0
"""By how many standard errors of one attempt's score the attempts must differ (standard deviation)."""
_SAME_WORDS = 0.6
"""Share of common words from which two criteria say the same."""
_SAME_SCORES = 0.05
"""Root mean square of the differences up to which two criteria score the same."""


async def draft_criteria(
    task: Task | str,
    attempts: TrajectoryGroup | Iterable[Trajectory],
    model: Models | None = None,
    **options: Unpack[JudgeOptions],
) -> list[Criterion]:
    """Criteria that tell the attempts at a task apart, the most telling first; empty when none does.

    `model`: who writes (the first of a jury) and who scores, as for `Judge`; None = `GAVEL_JUDGE_MODEL`. `options`: of
    the judge; with one order nobody knows how far scores differ by chance, and only a spread is asked for.

    Raises `JudgeError` when the model cannot be asked, drafts no criteria, or scores nobody by them.
    """
    group = await attempts if isinstance(attempts, TrajectoryGroup) and attempts.pending else attempts
    shown = [trajectory for trajectory in group if trajectory.status != "failed"]
    task = Task(user=task) if isinstance(task, str) else task
    jurors = jury(model)
    judge = Judge(jurors, **options)  # before the first call: a mistake in the options is told at once
    given = options.get("prices")
    writer = Client(
        jurors[0].models[0],
        jurors[0].params,
        prices=prices_from_environment() if given is None else given,
        budget=judge.budget,
        cassette=judge.cassette,
        context=jurors[0].context,
    )
    prompt = _prompt(writer, task, shown)
    if prompt is None:
        return []
    drafted = await ask_for_rubric(writer, prompt, True)
    options["budget"], options["cassette"] = judge.budget, judge.cassette
    judge = Judge(jurors, rubric=drafted, **options)
    metadata = {KEY: Truth(reference=task.truth.reference).dump()}
    alike = [trajectory.model_copy(update={"metadata": {}}) for trajectory in shown]
    judged = await judge.score(TrajectoryGroup(alike, metadata=metadata))
    scored = [_scored(criterion, judged) for criterion in drafted.criteria]
    if any(len(each.means) < 2 for each in scored):
        reason = judged.judgement.reason if judged.judgement else ""
        raise JudgeError(f"no criteria can be kept: the judge scored too few attempts: {reason}")
    return [each.criterion for each in merge_near_duplicates([each for each in scored if each.discriminates])]


@dataclass(frozen=True, slots=True)
class ScoredCriterion:
    """A criterion and the scores of the attempts by it."""

    criterion: Criterion
    means: Sequence[float]
    """Of each attempt, over the orders."""
    noise: float | None = None
    """Standard error of a mean; None = not known."""

    @property
    def spread(self) -> float:
        """Standard deviation of the attempts' scores."""
        return math.sqrt(variance(self.means))

    @property
    def discriminates(self) -> bool:
        """Whether the attempts differ by it, by more than chance."""
        return self.spread >= max(MIN_SPREAD, _ABOVE_NOISE * (self.noise or 0.0))


def merge_near_duplicates(criteria: Sequence[ScoredCriterion]) -> list[ScoredCriterion]:
    """The criteria, the widest spread first; one that says or scores as an earlier one adds its weight to that one."""
    merged: list[ScoredCriterion] = []
    for each in sorted(criteria, key=lambda one: one.spread, reverse=True):
        for number, other in enumerate(merged):
            if _say_the_same(each.criterion, other.criterion) or _score_the_same(each.means, other.means):
                weight = other.criterion.weight + each.criterion.weight
                merged[number] = replace(other, criterion=replace(other.criterion, weight=weight))
                break
        else:
            merged.append(each)
    return merged


def _prompt(writer: Client, task: Task, attempts: Sequence[Trajectory]) -> list[Message] | None:
    """The request for criteria; None when there are no two different attempts."""
    group = with_flags(canonicalize(dict(enumerate(attempts))))
    if len(group.members) < 2:
        return None
    group = with_reference(group, task.truth.reference)
    dice = Random(group.digest)
    order = dice.sample(range(len(group.members)), min(len(group.members), LARGEST_WHOLE))
    prompt = GroupPrompts(group, draw_markers(group, dice), Rubric.of(None)).fit(order, writer.room(MOST_CRITERIA))
    request = render("judge/draft_criteria.j2", task=sanitize(task.user.strip()), most=MOST_CRITERIA - 2)
    system = render("judge/draft_criteria_system.j2", reference=has_reference(group))
    return [
        {"role": "system", "content": system.strip()},
        {"role": "user", "content": with_request(text_of(prompt.messages[-1]), request)},
    ]


def _scored(criterion: Criterion, judged: TrajectoryGroup) -> ScoredCriterion:
    """The scores of a criterion over all votes; what an order gives to all attempts alike is no noise."""
    votes = [
        {vote.order: vote.criteria[criterion.name] for vote in trajectory.judgement.votes}
        for trajectory in judged
        if trajectory.judgement and trajectory.judgement.votes
    ]
    orders = {order: fmean(one[order] for one in votes if order in one) for one in votes for order in one}
    centred = [[score - orders[order] for order, score in one.items()] for one in votes]
    errors = [variance(scores) / len(scores) for scores in centred if len(scores) > 1]
    lost = len(votes) / (len(votes) - 1) if len(votes) > 1 else 1.0  # by taking out the means of the orders
    noise = math.sqrt(fmean(errors) * lost) if errors else None
    return ScoredCriterion(criterion, [fmean(one.values()) for one in votes], noise)


def _say_the_same(one: Criterion, other: Criterion) -> bool:
    words, others = (set(re.findall(r"\w+", f"{each.name} {each.text}".casefold())) for each in (one, other))
    return len(words & others) >= _SAME_WORDS * len(words | others)


def _score_the_same(one: Sequence[float], other: Sequence[float]) -> bool:
    return math.sqrt(pvariance([a - b for a, b in zip(one, other, strict=True)])) <= _SAME_SCORES
