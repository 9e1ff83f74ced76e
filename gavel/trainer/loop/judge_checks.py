"""Checks of a judge that ask it, or another one, more than training does: is it still the one that the run began with?

    checks = checks_of(judge, None, JudgeChecks(every=10, second="anthropic/claude-haiku-4-5"), model)
    await checks.metrics(step, groups)        # {"health/golden_right": 0.97, "health/second_tau": 0.6, …}

The golden set and the anchors are the same at every check, so only the judge can change their figures; a cassette would
hide that, and is not read. A check that fails is counted and told, and training goes on without its figures.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from gavel.base.errors import first_error
from gavel.judge.audit.agreement import kendall_tau
from gavel.judge.audit.golden import SHIPPED, GoldenGroup, check_golden, load_golden
from gavel.judge.audit.health import PREFIX
from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.scenarios.group import TrajectoryGroup
from gavel.trainer.config import JudgeChecks
from gavel.trainer.model import TrainableModel

logger = logging.getLogger(__name__)

_BASELINE = 1
"""The training step whose groups are the anchors."""


@dataclass(frozen=True, slots=True)
class Checks:
    """The checks of one run."""

    judge: Judge
    second: Judge | None
    config: JudgeChecks
    model: TrainableModel
    golden: Sequence[GoldenGroup]

    async def metrics(self, step: int, groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
        """What is found after `step` training steps, whose next one trains `groups`. Costs are in `checks/…`."""
        found: dict[str, float] = {}
        asked: list[TrajectoryGroup] = []
        try:
            if self.second is not None:
                found |= await second_opinion(self.second, groups, self.config.second_groups, asked)
            if self.config.every and step % self.config.every == 0:
                found |= await self._replayed(step, asked)
        except JudgeError as error:
            logger.warning("The judge was not checked at step %d: %s", step + 1, error)
            found["checks/failed"] = 1.0
        return found | _costs(asked)

    async def _replayed(self, step: int, asked: list[TrajectoryGroup]) -> dict[str, float]:
        judge, found = self.judge.without_cassette(), dict[str, float]()
        results = await check_golden(judge, self.golden)
        asked += [result.judged for result in results if result.judged is not None]
        if all(result.scores for result in results):
            pairs = sum(len(result.group.pairs) for result in results)
            found[f"{PREFIX}golden_right"] = sum(result.right for result in results) / pairs
        if step >= _BASELINE and self.config.anchors:
            stored = await self.model.backend.logged(self.model, "train", _BASELINE)
            found |= await anchor_drift(judge, stored, self.config.anchors, asked)
        return found


def checks_of(judge: Judge, second: Judge | None, config: JudgeChecks, model: TrainableModel) -> Checks:
    """The checks that the settings ask for; `second` is instead of the model that they name, which has the rubric,
    orders and budget of `judge`.

    Raises `JudgeError` for a golden set that cannot be read, and a second judge that cannot be asked.
    """
    if second is None and config.second is not None:
        second = Judge(
            config.second, rubric=judge.rubric, orders=judge.orders, budget=judge.budget, cassette=judge.cassette
        )
    if second is not None:
        second.check()
    golden = load_golden(config.golden or SHIPPED) if config.every else []
    return Checks(judge, second, config, model, golden)


async def second_opinion(
    second: Judge, groups: Sequence[TrajectoryGroup], most: int, asked: list[TrajectoryGroup]
) -> dict[str, float]:
    """How another judge scores the first `most` scored groups: its mean score, the first judge's mean of the same
    members, and the mean Kendall tau-b within groups. What it judged is appended to `asked`."""
    pairs = await _scored_again(second, groups, most, asked)
    both = [pair for of_group in pairs for pair in of_group]
    if not both:
        return {}
    found = {
        f"{PREFIX}second_score": fmean(theirs for _, theirs in both),
        f"{PREFIX}second_sampled": fmean(ours for ours, _ in both),
    }
    taus = [tau for of_group in pairs if (tau := kendall_tau(of_group)) is not None]
    return found | ({f"{PREFIX}second_tau": fmean(taus)} if taus else {})


async def anchor_drift(
    judge: Judge, groups: Sequence[TrajectoryGroup], most: int, asked: list[TrajectoryGroup]
) -> dict[str, float]:
    """How far the scores of the first `most` scored groups moved since they were stored: mean, and mean of the size."""
    changes = [now - before for of_group in await _scored_again(judge, groups, most, asked) for before, now in of_group]
    if not changes:
        return {}
    return {f"{PREFIX}anchor_drift": fmean(changes), f"{PREFIX}anchor_change": fmean(map(abs, changes))}


async def _scored_again(
    judge: Judge, groups: Sequence[TrajectoryGroup], most: int, asked: list[TrajectoryGroup]
) -> list[list[tuple[float, float]]]:
    """The stored and the new score of each member that has both, by group."""
    chosen = [group for group in groups if group.judgement and group.judgement.status in ("scored", "partial")][:most]
    with first_error():
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(judge.score(_bare(group))) for group in chosen]
    again = [task.result() for task in running]
    asked += again
    return [
        [
            (old.judgement.score, new.judgement.score)
            for old, new in zip(before, after, strict=True)
            if old.judgement and new.judgement
            if old.judgement.score is not None and new.judgement.score is not None
        ]
        for before, after in zip(chosen, again, strict=True)
    ]


def _bare(group: TrajectoryGroup) -> TrajectoryGroup:
    """Without what an earlier judge said."""
    members = [member.model_copy(update={"reward": None, "judgement": None}) for member in group]
    return group.model_copy(update={"trajectories": members, "judgement": None})


def _costs(asked: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Calls of the checks, and dollars where all are known."""
    judgements = [group.judgement for group in asked if group.judgement is not None]
    if not judgements:
        return {}
    costs = [judgement.cost_usd for judgement in judgements if judgement.calls]
    known = [cost for cost in costs if cost is not None]
    found = {"checks/calls": float(sum(judgement.calls for judgement in judgements))}
    return found | ({"checks/cost_usd": sum(known)} if len(known) == len(costs) else {})
