"""The training loop of a scenario: rollouts -> judge -> train -> evaluate, until the last step.

There is one loop, for one scenario or a mixture of several. Groups are prefetched (`prefetch.py`): with `max_staleness`
0 no rollout of a step starts before the step before it is trained and its adapter is live; with more, stages overlap.

It resumes after the last finished step: tasks and seeds depend on the step and the position in it alone, a step is on
disk before the next one is trained, and groups in flight at a kill are made again. The reward is `LoopConfig.reward`.

Checks of a judge that ask it, or another one, more than training does: is it still the one that the run began with?

    checks = make_checks(judge, None, JudgeChecks(every=10, second="anthropic/claude-haiku-4-5"), model)
    await checks.metrics(step, groups)        # {"health/golden_right": 0.97, "health/second_tau": 0.6, …}

The golden set and the anchors are the same at every check, so only the judge can change their figures; a cassette would
hide that, and is not read. A check that fails is counted and told, and training goes on without its figures.
"""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from statistics import fmean

from gavel.base.errors import run_all
from gavel.judge.audit.agreement import mean_kendall_tau
from gavel.judge.audit.golden import check_golden
from gavel.judge.audit.health import PREFIX, judge_health
from gavel.judge.audit.human_labels import SHIPPED, GoldenGroup, load_golden
from gavel.judge.audit.votes import fit_noise_prior
from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.judge.panel.standard_errors import NoisePrior
from gavel.scenarios.gather import completion_tokens, gather_display
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.mixture import Mixture, PlannedTask
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.seeds import seed_of
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.protocol import TrainResult
from gavel.trainer.config import JudgeChecks, LoopConfig, Ppo, TrainConfig
from gavel.trainer.data.left_out import LeftOut
from gavel.trainer.data.training_batch import has_signal
from gavel.trainer.loop.evaluation import (
    BASE,
    BEST,
    EVALUATION,
    TIMES,
    WINS,
    Evaluation,
    EvaluationObserver,
    best_step,
    evaluate_once,
    judge_wins,
    judged_tasks,
    without_judgement,
)
from gavel.trainer.loop.experiment import describe_run, judges_of
from gavel.trainer.loop.group_maker import GroupMaker, check_rewards, needed_judge, with_scenario_metrics
from gavel.trainer.loop.judge_alarms import JudgeAlarm, judge_alarms
from gavel.trainer.loop.prefetch import GroupSlot, RolloutPrefetcher, staleness
from gavel.trainer.loop.watchdog import (
    LoopError,
    Watchdog,
    check_turn_limits,
    stall_seconds,
    stop_at_outage,
    with_turn_limit,
)
from gavel.trainer.model import TrainableModel
from gavel.trainer.runs.metrics import judge_totals

logger = logging.getLogger(__name__)

_BASELINE = 1
"""The training step whose groups are the anchors."""
_COSTS = ("calls", "cost_usd")


@dataclass(frozen=True, slots=True)
class Checks:
    """The checks of one run."""

    judge: Judge
    second: Judge | None
    config: JudgeChecks
    model: TrainableModel
    golden: Sequence[GoldenGroup]

    async def metrics(self, step: int, groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
        """The metrics of the checks after `step` training steps, with `groups` to be trained next.

        Of the second judge its mean score, the first judge's over the same members, and the mean Kendall tau-b within
        groups; the share of golden pairs that are right; the drift of the anchors' scores since they were stored, mean
        and mean absolute. Calls, and dollars where all are known, are in `checks/…`.
        """
        config, found, asked = self.config, dict[str, float](), list[TrajectoryGroup]()
        try:
            if self.second is not None:
                pairs = await _score_again(self.second, groups, config.second_groups, asked)
                if both := [*chain(*pairs)]:
                    found[f"{PREFIX}second_score"] = fmean(theirs for _, theirs in both)
                    found[f"{PREFIX}second_sampled"] = fmean(ours for ours, _ in both)
                if (tau := mean_kendall_tau(pairs)) is not None:
                    found[f"{PREFIX}second_tau"] = tau
            if config.every and step % config.every == 0:
                judge = self.judge.without_cassette()
                results = await check_golden(judge, self.golden)
                asked += [result.judged for result in results]
                if all(result.scores for result in results):
                    verdicts = sum(len(result.group.pairs) for result in results)
                    found[f"{PREFIX}golden_right"] = sum(result.right for result in results) / verdicts
                if step >= _BASELINE and config.anchors:
                    stored = await self.model.backend.logged(self.model, "train", _BASELINE)
                    pairs = await _score_again(judge, stored, config.anchors, asked)
                    if changes := [now - before for before, now in chain(*pairs)]:
                        found[f"{PREFIX}anchor_drift"] = fmean(changes)
                        found[f"{PREFIX}anchor_change"] = fmean(map(abs, changes))
        except JudgeError as error:
            logger.warning("The judge was not checked at step %d: %s", step + 1, error)
            found["checks/failed"] = 1.0
        totals = judge_totals(asked)
        return found | {f"checks/{name}": totals[key] for name in _COSTS if (key := f"judge/{name}") in totals}


def make_checks(judge: Judge, second: Judge | None, config: JudgeChecks, model: TrainableModel) -> Checks:
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
    return Checks(judge, second, config, model, load_golden(config.golden or SHIPPED) if config.every else [])


async def _score_again(
    judge: Judge, groups: Sequence[TrajectoryGroup], most: int, asked: list[TrajectoryGroup]
) -> list[list[tuple[float, float]]]:
    """The stored and the new score of each member that has both, by group, of the first `most` scored groups. Those
    that `judge` has scored are appended to `asked`."""
    chosen = [group for group in groups if group.judgement and group.judgement.status in ("scored", "partial")][:most]
    bare = [
        group.model_copy(update={"trajectories": [*map(without_judgement, group)], "judgement": None})
        for group in chosen
    ]
    again = await run_all(map(judge.score, bare))
    asked += again
    scores = [
        [[member.judgement and member.judgement.score for member in group] for group in each]
        for each in (chosen, again)
    ]
    return [
        [(old, new) for old, new in zip(before, after, strict=True) if old is not None and new is not None]
        for before, after in zip(*scores, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class StepReport:
    """Result of one step, and the seconds of its parts; parts overlap, so their sum may exceed `whole`."""

    result: TrainResult
    groups: list[TrajectoryGroup]
    rollout: float
    """While at least one rollout ran, whichever step it is for."""
    judge: float
    """While at least one group was being judged; part of it may fall into `rollout`."""
    train: float
    whole: float


class Observer(EvaluationObserver):
    """Also observes steps, points of the learning curve and alarms."""

    def stepped(self, report: StepReport) -> None:
        """A step is done and saved."""

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        """A point of the learning curve is known."""

    def alarmed(self, step: int, alarm: JudgeAlarm) -> None:
        """The judge's scores are to be distrusted, for a reason that the run has not had before."""


NOISE_PRIOR = "noise_prior"
ALARMS = "alarms"
CUT = "cut"
"""Metric of a step: the share of its trajectories with a reply that was cut at its token limit."""
STALE = LeftOut.STALE.metric
REFILLS, UNFILLED = "refill/groups", "refill/unfilled"
_NO_REFILL = "Leave refill (--refill) at 0, or choose another loss."


async def train_scenario(
    model: TrainableModel,
    scenario: Scenario | Mixture,
    judge: Judge | None,
    config: LoopConfig,
    train_config: TrainConfig,
    observer: Observer | None = None,
    *,
    second: Judge | None = None,
) -> None:
    """Trains a registered model until `config.steps`, from wherever it stands.

    Of a `Mixture`, every group is of one scenario, and every figure is there for each scenario (`retail/success`) and
    for all; a judge without a rubric scores each by the scenario's. `judge` may be None when `config.reward` gives it
    no weight. `second` scores the sample of each step that `config.checks` describes, in place of the model that is
    named there. A run resumes only as the experiment that it was started as: another judge, rubric, reward, seed or
    setting is refused (`RunDirectoryError`); only the number of steps may grow. Raises `LoopError` when every rollout
    or judgement of a step fails, or nothing progresses.
    """
    mixture = Mixture.of(scenario)
    for each in mixture:
        check_rewards(each, config.reward)
        check_turn_limits(each, config.turn_limits)
    judge = needed_judge(config.reward, judge)
    if (kind := train_config.advantage) in ("shrunk", "critic") and config.reward.get("judge", 1.0) != 1.0:
        raise LoopError(
            f"the advantage {kind!r} needs rewards on the scale of the judge's scores: its weight must be 1",
            "Give the judge the weight 1 and scale the other rewards, or choose another advantage.",
        )
    if kind == "critic" and (judge is None or not judge.config.states):
        raise LoopError(
            "the advantage 'critic' needs the judge's states after single turns, and it is not asked for them",
            "Make the judge with states (Judge(states=True), --states), or choose another advantage.",
        )
    if config.refill and isinstance(train_config.loss, Ppo):
        raise LoopError("refill replaces groups without a signal; with the loss ppo every group has one", _NO_REFILL)
    if (served := model.backend.versions(model)) <= config.max_staleness:
        raise LoopError(
            f"max_staleness={config.max_staleness} needs {config.max_staleness + 1} steps' adapters at once; the "
            f"backend serves {served}",
            f"Make it with LocalBackend(versions={config.max_staleness + 1}), or leave max_staleness at 0.",
        )
    await model.backend.prepare(model, train_config)
    model.backend.pin(model, describe_run(mixture, judge, config, train_config))
    checks = None if judge is None else make_checks(judge, second, config.checks, model)
    watchdog = Watchdog(stall_seconds(config))
    maker = GroupMaker(model, judges_of(mixture, judge), config, watchdog, several=len(mixture) > 1)
    loop = _Loop(model, mixture, checks, config, train_config, observer or Observer(), maker)
    await watchdog.guard(loop.run())


@dataclass(slots=True)
class _Loop:
    """One call of `train_scenario`."""

    model: TrainableModel
    mixture: Mixture
    checks: Checks | None
    config: LoopConfig
    train_config: TrainConfig
    observer: Observer
    maker: GroupMaker
    made: Counter[int] = field(default_factory=Counter[int])
    """Groups that are rolled out and judged, by step."""
    noise_prior: NoisePrior | None = None
    """The noise of the judge's votes in the first step, once it is known."""

    async def run(self) -> None:
        config, backend, first = self.config, self.model.backend, await self.model.get_step()
        for row in backend.history(self.model, NOISE_PRIOR):
            self.noise_prior = NoisePrior(variance=row["variance"], df=row["df"], ends=row.get("ends"))
        limiter, per_step = asyncio.Semaphore(config.concurrency), len(self._plan(0))
        prefetcher = RolloutPrefetcher(
            partial(self._make_groups, limiter, per_step),
            first=first,
            last=config.steps,
            per_step=per_step,
            max_staleness=config.max_staleness,
            watchdog=self.maker.watchdog,
            refills=math.floor(config.refill * per_step),
            has_signal=lambda group: has_signal(group, self.train_config),
        )
        async with prefetcher:
            for step in range(first, config.steps + 1):
                if config.max_staleness:
                    prefetcher.advance(step)  # the next rollouts run during the evaluation
                if step % config.evaluate_every == 0 or step == config.steps:
                    await self._evaluate_once(step)
                if step == config.steps:
                    break
                prefetcher.advance(step)
                report = await self._step(step, prefetcher)
                backend.record(self.model, _times(report), TIMES)
                self.observer.stepped(report)
                self._raise_alarms(step + 1)
                await self.model.delete_checkpoints(self._best_by(), config.keep_checkpoints, config.keep_best)

    def _best_by(self) -> list[str]:
        """The metrics by which the best checkpoints are chosen: over all scenarios, and for each of several."""
        chosen = self.config.keep_best_by
        if chosen != LoopConfig.model_fields["keep_best_by"].default:
            return [chosen]
        by = {each.name: "success" if each.success is not None else f"{WINS}{BASE}" for each in self.mixture}
        whole = list(dict.fromkeys(f"{EVALUATION}/{metric}" for metric in by.values()))
        return whole + [f"{EVALUATION}/{name}/{metric}" for name, metric in by.items() if len(by) > 1]

    async def _step(self, step: int, prefetcher: RolloutPrefetcher) -> StepReport:
        started, watchdog = time.monotonic(), self.maker.watchdog
        self.observer.doing("rollouts and judging")
        with gather_display(prefetcher.tallies, f"step {step + 1}"):
            batch = await prefetcher.batch()
        groups = batch.groups
        stop_at_outage(self.judge, groups)
        if step == 0 and self.judge and not self.judge.config.noise_prior and self.noise_prior is None:
            self.noise_prior = fit_noise_prior(groups)
            if self.noise_prior is not None:
                self.model.backend.record(self.model, self.noise_prior.model_dump(exclude_none=True), NOISE_PRIOR)
        metrics = judge_health(groups)
        if self.config.refill:
            metrics |= {REFILLS: float(batch.refills), UNFILLED: float(batch.unfilled)}
        if self.config.max_staleness:
            metrics |= staleness(groups, step) | {STALE: float(batch.stale)}
        if members := [member for group in groups for member in group]:
            metrics[CUT] = fmean(any(c.finish_reason == "length" for c in member.choices()) for member in members)
        if self.checks is not None:
            with watchdog.during("judging", "checks of the judge"):
                metrics |= await self.checks.metrics(step, groups)
        scored = time.monotonic()
        self.observer.doing("learning")
        with watchdog.during("training", "learning", counted=False):
            result = await self.model.train(groups, self.train_config, metrics=metrics)
        done = time.monotonic()
        rollout, judge = watchdog.lap("rollout"), watchdog.lap("judging")
        return StepReport(result, groups, rollout, judge, done - scored, done - started)

    @property
    def judge(self) -> Judge | None:
        return None if self.checks is None else self.checks.judge

    def _raise_alarms(self, step: int) -> None:
        """Tells and stores each alarm once in a run. Raises `LoopError` where the run is to stop at one."""
        backend = self.model.backend
        known = {row["alarm"] for row in backend.history(self.model, ALARMS)}
        for alarm in judge_alarms(backend.history(self.model, "train")):
            if alarm not in known:
                backend.record(self.model, {"alarm": alarm.value}, ALARMS)
                self.observer.alarmed(step, alarm)
                if self.config.on_alarm == "stop":
                    raise LoopError(
                        f"stopped after step {step}: {alarm.sentence}",
                        f"{alarm.advice} To go on all the same, run the same command again.",
                    )

    async def _make_groups(self, limiter: asyncio.Semaphore, per_step: int, slot: GroupSlot) -> list[TrajectoryGroup]:
        """Rolls out and scores the group at `slot.position` of the plan; of several agents, one group for each."""
        step, number = divmod(slot.position, per_step)
        seeded: list[str | int] = ["train", step]
        planned = self._plan(step)
        if slot.refill is not None:  # the seed, step and number alone decide a further group, too
            round_, number = divmod(slot.refill, per_step)
            seeded = ["refill", step, slot.refill]
            planned = self._plan(step, seed_of(self.config.seed, "refill", round_))
        scenario, task, repeat = planned[number].scenario, planned[number].task, planned[number].repeat
        if len(self.mixture) > 1:  # two scenarios may have a task of the same id
            seeded = [scenario.name, *seeded, *([repeat] if repeat else [])]
        groups = await self.maker.make(
            with_turn_limit(scenario, self.config.turn_limits, step),
            task,
            seeds=lambda index: seed_of(self.config.seed, *seeded, task.id, index),
            limiter=limiter,
            tally=slot.tally,
            rollout_starts=slot.rollout_starts,
            # for steps whose rollouts all start after the first step: the same however fast others are, and resumed
            noise_prior=self.noise_prior if step > self.config.max_staleness else None,
        )
        if slot.refill is None and not self.config.max_staleness:  # else it may be another step's, or beyond its number
            self.made[step] += 1
            self.observer.advanced(self.made[step], per_step)
        return groups

    def _plan(self, step: int, seed: int | None = None) -> list[PlannedTask]:
        seed = self.config.seed if seed is None else seed
        return self.mixture.plan(self.config.tasks_per_step, seed=seed, step=step)

    async def _evaluate_once(self, step: int) -> None:
        """Makes the point of the learning curve at `step`, unless an earlier run of the same command made it."""
        config = self.config
        tasks = config.final_tasks if step in (0, config.steps) else config.evaluation_tasks
        found = await evaluate_once(
            self.model, self.mixture, tasks, config, self.maker.watchdog, self.observer, partial(self._compare, step)
        )
        if found is not None:
            self.observer.evaluated(step, found)

    async def _compare(self, step: int, scenario: Scenario, attempts: list[Trajectory]) -> list[TrajectoryGroup]:
        """Adds how often attempts beat those of the base and of the best step so far, where that is wanted."""
        tasks, several, compared = judged_tasks(scenario, self.config), len(self.mixture) > 1, list[TrajectoryGroup]()
        if step and tasks and self.judge:
            backend, rivals = self.model.backend, {BASE: 0}
            best = best_step(backend.history(self.model, EVALUATION), f"{scenario.name}/" if several else "")
            if best is not None:
                rivals[BEST] = best
            theirs = {
                name: [
                    each
                    for group in await backend.logged(self.model, EVALUATION, at)
                    for each in group
                    if each.metadata.get("scenario") == scenario.name
                ]
                for name, at in rivals.items()
            }
            self.observer.doing("judging held-out attempts")
            with self.maker.watchdog.during("judging", "groups of the evaluation"):
                compared = await judge_wins(self.maker.judges[scenario.name], attempts, theirs, tasks)
        if several:
            with_scenario_metrics(scenario, attempts)
        return compared


def _times(report: StepReport) -> dict[str, float]:
    """Seconds, their share of the whole step, and tokens per second."""
    seconds = {"rollout": report.rollout, "judge": report.judge, "train": report.train}
    shares = {f"time_share/{part}": took / report.whole for part, took in seconds.items()}
    speeds = {"tokens_per_second/trained": report.result.metrics.get("tokens_trained", 0.0) / report.train}
    if report.rollout:  # with overlap all rollouts may have finished before the step started
        sampled = sum(completion_tokens(member) for group in report.groups for member in group)
        speeds["tokens_per_second/sampled"] = sampled / report.rollout
    return seconds | {"whole": report.whole} | shares | speeds
