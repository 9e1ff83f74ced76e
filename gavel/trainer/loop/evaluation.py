"""Measures a policy on held-out tasks, sampled as in training.

The judge also tells how often the policy's attempts beat those of earlier steps at the same held-out tasks:

    await judge_wins(judge, attempts, {"base": attempts of step 0, "best": attempts of the best step so far})
    attempts[0].metrics["wins/base"]        # 1.0, or 0.5 for a tie, or 0.0

It is the learning curve of a scenario without `success`. An attempt and its rivals are judged as one group, so the
orders of the judge balance who is shown first. What the judge leaves unscored has no such metric.
"""

import logging
import math
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean
from typing import Any, cast

from gavel.base.errors import GavelError, run_all
from gavel.base.text import counted
from gavel.judge.judge import Judge
from gavel.scenarios.environment import NO_OUTCOME
from gavel.scenarios.gather import gather_trajectories
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.rollout import ChatModel, rollout
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.seeds import seed_of
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import LoopConfig
from gavel.trainer.data.token_sequences import COMPACT
from gavel.trainer.loop.watchdog import Watchdog, held_out_scenario
from gavel.trainer.model import TrainableModel
from gavel.trainer.runs.metrics import judge_totals

logger = logging.getLogger(__name__)

EVALUATION, TIMES = "held_out", "times"
"""Splits of a run's metrics: points of the learning curve, and seconds."""
EVALUATING = "evaluation on held-out tasks"
"""The phase reported to observers during evaluation."""
_Z95 = 1.959964


class EvaluationError(GavelError):
    """Nothing could be measured."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The episodes of one evaluation."""

    tasks: int
    """Episodes that did not fail."""
    trajectories: list[Trajectory]
    """Theirs: in an episode of several agents more than one."""
    failed: int = 0
    compared: list[TrajectoryGroup] = field(default_factory=list[TrajectoryGroup])
    """The groups in which the judge compared them with others' attempts."""

    @property
    def measures(self) -> dict[str, float]:
        """Means over the trajectories that have a metric: `success` when the scenario can tell, the scenario's own
        measures, `truncated`, `turns`, `tool_errors`; and `failed` where episodes did: their share of all."""
        names = dict.fromkeys(name for each in self.trajectories for name in each.metrics)
        known = {name: [float(t.metrics[name]) for t in self.trajectories if name in t.metrics] for name in names}
        share = {"failed": self.failed / (self.failed + self.tasks)} if self.failed else {}
        return {name: fmean(values) for name, values in known.items()} | share

    @property
    def success(self) -> float | None:
        return self.measures.get("success")


def interval(share: float, count: int) -> float:
    """Half width of the 95 % interval of a share over `count` trials (normal approximation)."""
    return _Z95 * math.sqrt(share * (1 - share) / count)


def measure(scenario: Scenario, trajectory: Trajectory) -> dict[str, float]:
    """The scenario's success and measures of one trajectory.

    Raises `ScenarioError` when one of the scenario's functions fails.
    """
    functions: dict[str, Callable[[Trajectory], float]] = dict(scenario.measures)
    if scenario.success is not None:
        functions["success"] = scenario.success
    return {name: call_measure(scenario, name, function, trajectory) for name, function in functions.items()}


def call_measure(
    scenario: Scenario, name: str, function: Callable[[Trajectory], float], trajectory: Trajectory
) -> float:
    """Returns the value of the scenario's `function` for a trajectory. Raises `ScenarioError` when it raises."""
    try:
        number = float(function(trajectory))
    except Exception as error:
        raise ScenarioError(
            f"{name} of the scenario {scenario.name} failed: {type(error).__name__}: {error}",
            "Mend the function; it is called with a Trajectory, also with one that was truncated.",
        ) from error
    if not math.isfinite(number) or (name == "success" and not 0 <= number <= 1):
        raise ScenarioError(
            f"{name} of the scenario {scenario.name} gave {number}",
            "Let success give True or False, or a share from 0 to 1, and every other function a finite number.",
        )
    return number


async def evaluate(
    model: ChatModel,
    scenario: Scenario,
    tasks: int,
    config: LoopConfig,
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Evaluation:
    """One rollout for each of `tasks` held-out tasks (all, if there are fewer), the same ones for the same seed.

    Where the policy plays several agents of an episode, the means are over all of them; where other models play the
    others, they are the policy's own. Each runs within a context manager from `around()`. A failed rollout (the model
    could not be reached) does not measure the policy and is left out.

    Raises `EvaluationError` when all failed, and `ScenarioError` when the scenario cannot tell how an episode ended.
    """

    others: list[list[Trajectory]] = []

    async def one(task: Task) -> Trajectory:
        further: list[Trajectory] = []
        others.append(further)
        with around():
            return await rollout(
                model,
                scenario,
                task,
                temperature=config.temperature,
                max_tokens=config.max_tokens,
                seed=seed_of(config.seed, "evaluation", task.id),
                fields=COMPACT if isinstance(model, TrainableModel) else None,  # others may refuse it
                others=further,
            )

    trajectories = await gather_trajectories(
        [one(task) for task in scenario.sample("held_out", tasks, seed=config.seed)],
        pbar_desc="evaluate",
        concurrency=config.concurrency,
    )
    failed = [trajectory for trajectory in trajectories if trajectory.status == "failed"]
    if len(failed) == len(trajectories):
        reason = failed[0].status_reason if failed else "no rollout was made"
        raise EvaluationError(f"every rollout of the evaluation failed; the first: {reason}", "Mend it, and run again.")
    unmeasured = [trajectory for trajectory in failed if trajectory.metrics.get(NO_OUTCOME)]
    if unmeasured:  # the mean of the others would be that of the episodes that it can tell
        raise ScenarioError(
            f"the environment of {scenario.name} cannot tell how {len(unmeasured)} of {len(trajectories)} held-out "
            f"episodes ended; the first: {unmeasured[0].status_reason}",
            "Mend its success or reward; they are called for every episode, also for one that was lost or truncated.",
        )
    if failed:
        told = f"{len(failed)} of {counted(len(trajectories), 'held-out rollout')} of {scenario.name} failed and"
        logger.warning("%s count in no mean; the first: %s", told, failed[0].status_reason)
    measured = [each for each in [*trajectories, *chain(*others)] if each.status != "failed"]
    for trajectory in measured:
        trajectory.metrics |= measure(scenario, trajectory)
        trajectory.metrics["truncated"] = trajectory.status == "truncated"
    return Evaluation(len(trajectories) - len(failed), measured, len(failed))


class EvaluationObserver:
    """Is told how a run goes on; the methods do nothing unless overridden."""

    def doing(self, what: str) -> None:
        """The run starts `what` and waits for it."""

    def advanced(self, done: int, total: int) -> None:
        """`done` of `total` parts of what the run waits for are finished."""


async def evaluate_once(
    model: TrainableModel,
    scenarios: Iterable[Scenario],
    tasks: int,
    config: LoopConfig,
    watchdog: Watchdog,
    observer: EvaluationObserver,
    compare: Callable[[Scenario, list[Trajectory]], Awaitable[list[TrajectoryGroup]]] | None = None,
) -> Evaluation | None:
    """Measures the policy on the scenarios' held-out tasks, and logs it as the learning curve's point of its step.

    `compare` adds metrics to a scenario's trajectories, and gives the groups that the judge was asked about. None where
    an earlier run of the same command has made the point, or nothing is held out.
    """
    backend, step = model.backend, await model.get_step()
    measured = [each for each in scenarios if each.tasks("held_out")]
    if not measured or any(row["step"] == step for row in backend.history(model, EVALUATION)):
        return None
    observer.doing(EVALUATING)
    started, done = time.monotonic(), 0
    total = sum(min(tasks, len(each.tasks("held_out"))) for each in measured)

    @contextmanager
    def watched() -> Generator[None]:
        nonlocal done
        with watchdog.during("evaluation", "rollouts"):
            yield
        done += 1
        observer.advanced(done, total)

    found: list[Evaluation] = []
    compared: list[TrajectoryGroup] = []
    with watchdog.during("training", "waiting for the evaluation", counted=False):
        for each in measured:
            found.append(await evaluate(model, held_out_scenario(each, config.turn_limits), tasks, config, watched))
            compared += [] if compare is None else await compare(each, found[-1].trajectories)
    together = Evaluation(
        sum(each.tasks for each in found),
        [trajectory for each in found for trajectory in each.trajectories],
        sum(each.failed for each in found),
        compared,
    )
    groups = [TrajectoryGroup([each]) for each in together.trajectories]
    failed = {name: share for name, share in together.measures.items() if name == "failed"}
    seconds = time.monotonic() - started
    await backend.log(model, groups, EVALUATION, step, judge_totals(compared) | failed)
    backend.record(model, {"evaluation": seconds, "whole": seconds}, TIMES)
    return together


BASE, BEST = "base", "best"
WINS = "wins/"
"""Prefix of the rival's name."""


_JUDGED_TASKS = 64


def judged_tasks(scenario: Scenario, config: LoopConfig) -> int:
    """The number of held-out tasks of a point at which the judge compares attempts."""
    if config.judged_tasks is not None:
        return config.judged_tasks
    return _JUDGED_TASKS if scenario.success is None else 0


def most_comparisons(scenarios: Iterable[Scenario], config: LoopConfig) -> int:
    """The number of groups of `judge_wins` in a whole run, where the base has tried every task."""
    steps = [step for step in range(1, config.steps + 1) if step % config.evaluate_every == 0 or step == config.steps]
    sizes = [config.final_tasks if step == config.steps else config.evaluation_tasks for step in steps]
    return sum(
        min(judged_tasks(each, config), tasks, len(each.tasks("held_out"))) for each in scenarios for tasks in sizes
    )


async def judge_wins(
    judge: Judge, attempts: Sequence[Trajectory], rivals: Mapping[str, Sequence[Trajectory]], most: int
) -> list[TrajectoryGroup]:
    """Adds the metrics `wins/<rival>` to the first `most` attempts whose task a rival has tried too; returns the groups
    that were judged.

    Raises `JudgeError` for a judge that cannot be asked, or has stopped.
    """
    tried = {name: {_task(rival): rival for rival in theirs} for name, theirs in rivals.items()}
    comparable = [each for each in attempts if any(_task(each) in theirs for theirs in tried.values())]

    async def compare(attempt: Trajectory) -> TrajectoryGroup:
        names = [name for name, theirs in tried.items() if _task(attempt) in theirs]
        members = [attempt, *(tried[name][_task(attempt)] for name in names)]
        group = TrajectoryGroup(map(without_judgement, members))
        judged = await judge.score(group)
        if judged.judgement is not None and judged.judgement.status == "degenerate":  # they did the same
            attempt.metrics |= {f"{WINS}{name}": 0.5 for name in names}
            return judged
        own, *others = (member.judgement.score if member.judgement else None for member in judged)
        for name, other in zip(names, others, strict=True):
            if own is not None and other is not None:
                attempt.metrics[f"{WINS}{name}"] = 0.5 if own == other else float(own > other)
        return judged

    return await run_all(compare(attempt) for attempt in comparable[:most])


def best_step(rows: Sequence[Mapping[str, Any]], prefix: str = "") -> int | None:
    """The step that beat the base most often, the newest among equals; None before there is one.

    `prefix`: of the metrics of one scenario among several.
    """
    metric = f"{prefix}{WINS}{BASE}"
    known = [(row[metric], row["step"]) for row in rows if row.get(metric) is not None]
    return max(known)[1] if known else None


def _task(trajectory: Trajectory) -> tuple[str, str | None]:
    """The task and who acted."""
    task = trajectory.metadata.get("task")
    named = cast("dict[str, Any]", task) if isinstance(task, dict) else {}
    return str(named.get("id")), trajectory.agent


def without_judgement(trajectory: Trajectory) -> Trajectory:
    return trajectory.model_copy(update={"reward": None, "judgement": None})
