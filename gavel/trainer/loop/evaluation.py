"""Measures a policy on held-out tasks, sampled as in training."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import fmean

from gavel.llm.errors import GavelError
from gavel.scenarios.gather import gather_trajectories
from gavel.scenarios.rollout import ChatModel, rollout
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.seeds import seed_of
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import LoopConfig
from gavel.trainer.data.token_sequences import COMPACT
from gavel.trainer.model import TrainableModel

_Z95 = 1.959964


class EvaluationError(GavelError):
    """Nothing could be measured."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Means over the tasks of one evaluation."""

    tasks: int
    measures: dict[str, float]
    """`success` when the scenario can tell, the scenario's own measures, `truncated`, `turns`, `tool_errors`; and
    `failed` where rollouts did: their share of all, which the other means leave out."""
    trajectories: list[Trajectory]

    @property
    def success(self) -> float | None:
        return self.measures.get("success")

    @property
    def half_width(self) -> float | None:
        """Half width of the 95 % interval of `success` (normal approximation)."""
        return None if self.success is None else interval(self.success, self.tasks)


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
    """What the scenario's `function` gives for a trajectory; `ScenarioError` when it raises."""
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

    Each runs within a context manager from `around()`. A failed rollout (the model could not be reached) does not
    measure the policy and is left out. Raises `EvaluationError` when all did, and `ScenarioError`.
    """

    async def one(task: Task) -> Trajectory:
        with around():
            return await rollout(
                model,
                scenario,
                task,
                temperature=config.temperature,
                max_tokens=config.max_tokens,
                seed=seed_of(config.seed, "evaluation", task.id),
                fields=COMPACT if isinstance(model, TrainableModel) else None,  # others may refuse it
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
    trajectories = [trajectory for trajectory in trajectories if trajectory.status != "failed"]
    for trajectory in trajectories:
        trajectory.metrics |= measure(scenario, trajectory)
        trajectory.metrics["truncated"] = trajectory.status == "truncated"
    names = dict.fromkeys(name for trajectory in trajectories for name in trajectory.metrics)
    means = {name: fmean(float(t.metrics.get(name, 0.0)) for t in trajectories) for name in names}
    if failed:
        means["failed"] = len(failed) / (len(failed) + len(trajectories))
    return Evaluation(len(trajectories), means, trajectories)
