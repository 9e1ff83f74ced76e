"""The training loop of a scenario: gather -> judge -> train -> evaluate.

It goes on from the last finished step: tasks and seeds depend on the step alone, and what a step did
is on disk before the next one begins. The judge's scores, shaped as the configuration says, are the only reward.
"""

import time
from dataclasses import dataclass
from typing import Any

from judge.judge import Judge
from judge.shaping import shape_group
from scenarios.errors import GavelError
from scenarios.gather import gather_trajectory_groups
from scenarios.rollout import rollout
from scenarios.scenario import Scenario
from scenarios.seeds import seed_of
from scenarios.task import Task
from scenarios.trajectory import Trajectory, TrajectoryGroup
from trainer.backend import TrainResult
from trainer.config import LoopConfig, TrainConfig
from trainer.evaluation import Evaluation, evaluate, measure
from trainer.metrics import sampled_tokens
from trainer.model import TrainableModel

EVALUATION = "held_out"
TIMES = "times"
_GO_ON = "Mend it, and run the same command again: it goes on from the last finished step."


class LoopError(GavelError):
    """A training loop cannot go on."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did and how long its parts took, in seconds."""

    result: TrainResult
    groups: list[TrajectoryGroup]
    rollout: float
    """Until the last rollout was done."""
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
    (`RunDirectoryError`); only the number of steps may grow.
    """
    observer = observer or Observer()
    judge.check()
    model.backend.pin(model, _experiment(scenario, judge, config, train_config))
    while True:
        step = await model.get_step()
        if step <= config.steps and (step % config.evaluate_every == 0 or step == config.steps):
            await _evaluate_once(model, scenario, config, step, observer)
        if step >= config.steps:
            return
        observer.stepped(await _step(model, scenario, judge, config, train_config, step, observer))
        await model.delete_checkpoints(config.keep_best_by, config.keep_checkpoints, config.keep_best)


def _experiment(scenario: Scenario, judge: Judge, config: LoopConfig, train_config: TrainConfig) -> dict[str, Any]:
    return {
        "scenario": scenario.name,
        "judge": judge.names,
        "rubric": judge.rubric.dump(),
        "orders": judge.orders,
        "mode": judge.mode,
        "anchors": sorted(anchor.id for anchor in judge.anchors),
        "loop": config.model_dump(
            mode="json", exclude={"steps", "concurrency", "keep_checkpoints", "keep_best", "keep_best_by"}
        ),
        "training": train_config.model_dump(
            mode="json", exclude={"total_steps", "warmup_steps", "micro_batch_tokens", "gradient_checkpointing"}
        ),
    }


async def _step(
    model: TrainableModel,
    scenario: Scenario,
    judge: Judge,
    config: LoopConfig,
    train_config: TrainConfig,
    step: int,
    observer: Observer,
) -> StepReport:
    started = last_rollout = time.monotonic()
    judging = _Busy()

    async def judged(group: TrajectoryGroup) -> TrajectoryGroup:
        nonlocal last_rollout
        last_rollout = time.monotonic()
        for trajectory in group:
            if trajectory.status != "failed":
                trajectory.metrics |= measure(scenario, trajectory)
        with judging:
            return shape_group(await judge.score(group), config.shaping) if len(group) else group

    async def member(task: Task, number: int) -> Trajectory:
        return await rollout(
            model,
            scenario,
            task,
            temperature=config.temperature,
            max_tokens=config.max_tokens,
            seed=seed_of(config.seed, "train", step, task.id, number),
        )

    tasks = scenario.sample("train", config.tasks_per_step, seed=config.seed, step=step)
    observer.doing("rollouts and judging")
    groups = await gather_trajectory_groups(
        (TrajectoryGroup(member(task, number) for number in range(config.group_size)) for task in tasks),
        pbar_desc=f"step {step + 1}",
        after_each=judged,
        concurrency=config.concurrency,
        max_exceptions=len(tasks) * config.group_size,
    )
    scored = time.monotonic()
    _stop_if_nothing_works(groups)
    observer.doing("learning")
    result = await model.train(groups, train_config)
    done = time.monotonic()
    report = StepReport(result, groups, last_rollout - started, judging.seconds, done - scored, done - started)
    model.backend.record(model, _times(report), TIMES)
    return report


def _times(report: StepReport) -> dict[str, float]:
    """Seconds, their share of the whole step, and tokens a second."""
    seconds = {"rollout": report.rollout, "judge": report.judge, "train": report.train}
    shares = {f"time_share/{part}": took / report.whole for part, took in seconds.items()}
    speeds = {
        "tokens_per_second/sampled": sampled_tokens(report.groups) / report.rollout,
        "tokens_per_second/trained": report.result.metrics.get("tokens_trained", 0.0) / report.train,
    }
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


async def _evaluate_once(
    model: TrainableModel, scenario: Scenario, config: LoopConfig, step: int, observer: Observer
) -> None:
    """The point of the curve at `step`, unless an earlier run of the same command has made it already."""
    if not scenario.tasks("held_out") or any(row["step"] == step for row in model.backend.history(model, EVALUATION)):
        return
    ends = step in (0, config.steps)
    observer.doing("evaluation on held-out tasks")
    started = time.monotonic()
    evaluation = await evaluate(model, scenario, config.final_tasks if ends else config.evaluation_tasks, config)
    seconds = time.monotonic() - started
    await model.log([TrajectoryGroup([trajectory]) for trajectory in evaluation.trajectories], EVALUATION)
    model.backend.record(model, {"evaluation": seconds, "whole": seconds}, TIMES)
    observer.evaluated(step, evaluation)
