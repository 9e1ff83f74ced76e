"""The training loop of a scenario: gather -> judge -> train -> evaluate.

It goes on from the last finished step: tasks and seeds depend on the step (and the place in it) alone, and what a
step did is on disk before the next one is trained; groups that were under way are made again. The judge's scores
are the only reward.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from gavel.judge.judge import Judge
from gavel.scenarios.gather import gather_trajectory_groups
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.seeds import seed_of
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.protocol import TrainResult
from gavel.trainer.config import LoopConfig, TrainConfig
from gavel.trainer.data.left_out import LeftOut
from gavel.trainer.loop.evaluation import Evaluation, evaluate, measure
from gavel.trainer.loop.prefetch import Ahead, staleness
from gavel.trainer.loop.watchdog import LoopError, Watchdog
from gavel.trainer.model import TrainableModel
from gavel.trainer.runs.metrics import sampled_tokens

EVALUATION = "held_out"
TIMES = "times"
STALE = LeftOut.STALE.metric
_GO_ON = "Mend it, and run the same command again: it goes on from the last finished step."


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did and how long its parts took, in seconds; with overlap they are more than `whole` in sum."""

    result: TrainResult
    groups: list[TrajectoryGroup]
    rollout: float
    """Until the last rollout was done; with overlap, while at least one ran."""
    judge: float
    """While at least one group was being judged; part of it falls into `rollout`."""
    train: float
    whole: float


class Observer:
    """What a loop tells while it runs; the methods do nothing unless overridden."""

    def doing(self, what: str) -> None:
        """The loop begins with `what` and waits for it."""

    def stepped(self, report: StepReport) -> None:
        """A step is done and saved."""

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        """A point of the learning curve is known."""


async def train_scenario(
    model: TrainableModel,
    scenario: Scenario,
    judge: Judge,
    config: LoopConfig,
    train_config: TrainConfig,
    observer: Observer | None = None,
) -> None:
    """Trains a registered model until `config.steps`, from wherever it stands.

    A run goes on only as the experiment that it was begun as: another judge, rubric, seed or setting is refused
    (`RunDirectoryError`); only the number of steps may grow. Raises `LoopError` when nothing works or nothing moves.
    """
    judge.check()
    _check_versions(model, config)
    model.backend.pin(model, _experiment(scenario, judge, config, train_config))
    loop = _Loop(model, scenario, judge, config, train_config, observer or Observer(), Watchdog(config.stall_seconds))
    await loop.watchdog.guard(loop.overlapping() if config.max_staleness else loop.in_turn())


def _experiment(scenario: Scenario, judge: Judge, config: LoopConfig, train_config: TrainConfig) -> dict[str, Any]:
    return {
        "scenario": scenario.name,
        "judge": judge.names,
        "rubric": judge.rubric.dump(),
        "orders": judge.orders,
        "mode": judge.mode,
        "anchors": sorted(anchor.id for anchor in judge.anchors),
        "loop": config.model_dump(
            mode="json",
            exclude={"steps", "concurrency", "keep_checkpoints", "keep_best", "keep_best_by", "stall_seconds"},
        ),
        "training": train_config.model_dump(
            mode="json", exclude={"total_steps", "warmup_steps", "micro_batch_tokens", "gradient_checkpointing"}
        ),
    }


def _check_versions(model: TrainableModel, config: LoopConfig) -> None:
    served, needed = model.backend.versions(model), config.max_staleness + 1
    if served < needed:
        raise LoopError(
            f"max_staleness={config.max_staleness} needs {needed} steps' adapters at once; the backend serves {served}",
            f"Make it with LocalBackend(versions={needed}), or leave max_staleness at 0.",
        )


@dataclass(frozen=True, slots=True)
class _Loop:
    """One call of `train_scenario`."""

    model: TrainableModel
    scenario: Scenario
    judge: Judge
    config: LoopConfig
    train_config: TrainConfig
    observer: Observer
    watchdog: Watchdog

    async def in_turn(self) -> None:
        """Each step is rolled out, judged and trained before the next begins."""
        while (step := await self._next_step()) is not None:
            self.observer.stepped(await self._step(step))
            await self._tidy()

    async def overlapping(self) -> None:
        """Rollouts and judging of the next groups go on while a step is trained or evaluated."""
        first, last, per_step = await self.model.get_step(), self.config.steps, len(self._tasks(0))
        rolling, judging = _Busy(), _Busy()
        places = asyncio.Semaphore(self.config.concurrency)

        async def make(place: int, rollout_begins: Callable[[], None]) -> TrajectoryGroup:
            step, number = divmod(place, per_step)
            task = self._tasks(step)[number]

            async def member(seat: int) -> Trajectory:
                async with places:
                    rollout_begins()
                    with rolling:
                        return await self._rollout(step, task, seat)

            async def judged(group: TrajectoryGroup) -> TrajectoryGroup:
                with judging:
                    return await self._judged(group)

            (group,) = await gather_trajectory_groups(
                [TrajectoryGroup(member(seat) for seat in range(self.config.group_size))],
                after_each=judged,
                max_exceptions=self.config.group_size,
                progress=False,
            )
            return group

        ahead = Ahead(
            make,
            first=first,
            last=last,
            per_step=per_step,
            max_staleness=self.config.max_staleness,
            watchdog=self.watchdog,
        )
        async with ahead:
            ahead.advance(first)
            while (step := await self._next_step()) is not None:
                started = time.monotonic()
                self.observer.doing("rollouts and judging")
                batch = await ahead.batch()
                _stop_if_nothing_works(batch.groups)
                scored = time.monotonic()
                overlap = staleness(batch.groups, step) | {STALE: float(batch.stale)}
                result = await self._learn(batch.groups, overlap)
                ahead.advance(step + 1)
                done = time.monotonic()
                report = StepReport(result, batch.groups, rolling.lap(), judging.lap(), done - scored, done - started)
                self._record(report)
                self.observer.stepped(report)
                await self._tidy()

    async def _next_step(self) -> int | None:
        """The step to train, once its policy is evaluated if that is due; None when all are done."""
        step = await self.model.get_step()
        if step <= self.config.steps and (step % self.config.evaluate_every == 0 or step == self.config.steps):
            await self._evaluate_once(step)
        return step if step < self.config.steps else None

    async def _step(self, step: int) -> StepReport:
        started = last_rollout = time.monotonic()
        judging = _Busy()

        async def judged(group: TrajectoryGroup) -> TrajectoryGroup:
            nonlocal last_rollout
            last_rollout = time.monotonic()
            with judging:
                return await self._judged(group)

        tasks = self._tasks(step)
        self.observer.doing("rollouts and judging")
        with self.watchdog.during("training", "waiting for all groups of the step", counted=False):
            groups = await gather_trajectory_groups(
                (
                    TrajectoryGroup(self._rollout(step, task, seat) for seat in range(self.config.group_size))
                    for task in tasks
                ),
                pbar_desc=f"step {step + 1}",
                after_each=judged,
                concurrency=self.config.concurrency,
                max_exceptions=len(tasks) * self.config.group_size,
            )
        scored = time.monotonic()
        _stop_if_nothing_works(groups)
        result = await self._learn(groups)
        done = time.monotonic()
        report = StepReport(result, groups, last_rollout - started, judging.seconds, done - scored, done - started)
        self._record(report)
        return report

    def _tasks(self, step: int) -> list[Task]:
        return self.scenario.sample("train", self.config.tasks_per_step, seed=self.config.seed, step=step)

    async def _rollout(self, step: int, task: Task, seat: int) -> Trajectory:
        with self.watchdog.during("rollout", f"of {self.config.group_size} rollouts of task {task.id}"):
            return await rollout(
                self.model,
                self.scenario,
                task,
                temperature=self.config.temperature,
                max_tokens=self.config.max_tokens,
                seed=seed_of(self.config.seed, "train", step, task.id, seat),
            )

    async def _judged(self, group: TrajectoryGroup) -> TrajectoryGroup:
        for trajectory in group:
            if trajectory.status != "failed":
                trajectory.metrics |= measure(self.scenario, trajectory)
        if not len(group):
            return group
        with self.watchdog.during("judging", "groups"):
            return await self.judge.score(group)

    async def _learn(self, groups: list[TrajectoryGroup], metrics: dict[str, float] | None = None) -> TrainResult:
        self.observer.doing("learning")
        with self.watchdog.during("training", "learning", counted=False):
            return await self.model.train(groups, self.train_config, metrics=metrics)

    def _record(self, report: StepReport) -> None:
        self.model.backend.record(self.model, _times(report), TIMES)

    async def _tidy(self) -> None:
        config = self.config
        await self.model.delete_checkpoints(config.keep_best_by, config.keep_checkpoints, config.keep_best)

    async def _evaluate_once(self, step: int) -> None:
        """The point of the curve at `step`, unless an earlier run of the same command has made it already."""
        model, backend, config = self.model, self.model.backend, self.config
        made = any(row["step"] == step for row in backend.history(model, EVALUATION))
        if made or not self.scenario.tasks("held_out"):
            return
        tasks = config.final_tasks if step in (0, config.steps) else config.evaluation_tasks
        self.observer.doing("evaluation on held-out tasks")
        started = time.monotonic()
        during = partial(self.watchdog.during, "rollout", "rollouts of the evaluation")
        with self.watchdog.during("training", "waiting for the evaluation", counted=False):
            evaluation = await evaluate(model, self.scenario, tasks, config, during)
        seconds = time.monotonic() - started
        await model.log([TrajectoryGroup([trajectory]) for trajectory in evaluation.trajectories], EVALUATION)
        backend.record(model, {"evaluation": seconds, "whole": seconds}, TIMES)
        self.observer.evaluated(step, evaluation)


def _times(report: StepReport) -> dict[str, float]:
    """Seconds, their share of the whole step, and tokens a second."""
    seconds = {"rollout": report.rollout, "judge": report.judge, "train": report.train}
    shares = {f"time_share/{part}": took / report.whole for part, took in seconds.items()}
    speeds = {"tokens_per_second/trained": report.result.metrics.get("tokens_trained", 0.0) / report.train}
    if report.rollout:  # with overlap they may all have been done before the step began
        speeds["tokens_per_second/sampled"] = sampled_tokens(report.groups) / report.rollout
    return seconds | {"whole": report.whole} | shares | speeds


class _Busy:
    """Seconds during which at least one task was inside."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = 0
        self._since = 0.0

    def __enter__(self) -> None:
        if not self._inside:
            self._since = time.monotonic()
        self._inside += 1

    def __exit__(self, *exception: object) -> None:
        self._inside -= 1
        if not self._inside:
            self.seconds += time.monotonic() - self._since

    def lap(self) -> float:
        """The seconds since the last lap, also of what is still inside."""
        now = time.monotonic()
        seconds = self.seconds + (now - self._since if self._inside else 0.0)
        self.seconds, self._since = 0.0, now
        return seconds


def _stop_if_nothing_works(groups: list[TrajectoryGroup]) -> None:
    """A step in which every rollout failed, or no group was judged, is an outage; training on would hide it."""
    trajectories = [trajectory for group in groups for trajectory in group]
    if all(trajectory.status == "failed" for trajectory in trajectories):
        reasons = [trajectory.status_reason for trajectory in trajectories]
        reasons += [error.message for group in groups for error in group.exceptions]
        raise LoopError(f"every rollout of this step failed; the first: {reasons[0]}", _GO_ON)
    unjudged = [group for group in groups if group.judgement is None or group.judgement.status == "unscored"]
    if len(unjudged) == len(groups):
        first = unjudged[0]
        reason = first.judgement.reason if first.judgement else first.exceptions[-1].message
        raise LoopError(f"the judge scored no group of this step; the first: {reason}", _GO_ON)
