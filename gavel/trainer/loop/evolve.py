"""Exploration and imitation in turns (AgentEvol, arXiv 2406.04151), and rejection sampling as its case of one round.

    iteration 0   imitate the base data, where there is some
    iteration n   roll out train tasks with the policy of n - 1, keep the best attempts by a threshold of their reward
                  or by the judge's ranking, and imitate base data and kept attempts *from the base model*

The policy of every iteration is measured on the same held-out tasks. Explored groups are stored as they are made and an
iteration's choice follows from them alone, so a run that was killed anywhere goes on with what it had.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

from gavel.judge.judge import Judge
from gavel.scenarios.gather import GroupTally, gather_display
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.mixture import Mixture
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.seeds import seed_of
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.protocol import TrainResult
from gavel.trainer.config import EvolveConfig, SftConfig
from gavel.trainer.loop.evaluation import EVALUATION, Evaluation, EvaluationObserver, evaluate_once
from gavel.trainer.loop.experiment import describe_experiment
from gavel.trainer.loop.group_maker import GroupMaker, Weights, check_rewards, needed_judge
from gavel.trainer.loop.imitation import (
    BestMembers,
    choose_best_members,
    describe_sft,
    fingerprint,
    imitation_plan,
    with_schedule,
)
from gavel.trainer.loop.watchdog import (
    RESUME,
    LoopError,
    Watchdog,
    check_turn_limits,
    stall_seconds,
    stop_at_outage,
    with_turn_limit,
)
from gavel.trainer.model import TrainableModel
from gavel.trainer.runs.metrics import judge_totals

EXPLORED, ITERATIONS = "explored", "iterations"
"""Splits of the metrics: explored groups, and a row for what each iteration imitates."""
_STORED_AT_ONCE = 16
"""Explored groups between two that are written: what a kill may cost."""
_COUNTS = ("first_step", "last_step", "explored", "kept", "imitated")
_MAY_CHANGE = {"iterations", "concurrency", "stall_seconds"}


@dataclass(frozen=True, slots=True)
class Iteration:
    """Result of one iteration. Iteration 0 explores nothing: it imitates the base data alone."""

    number: int
    first_step: int
    """Training steps done before it."""
    last_step: int
    """Training steps done after it; its checkpoint is that of this step."""
    explored: int = 0
    """Number of attempts."""
    explored_reward: float | None = None
    """Their mean reward, of those that have one."""
    kept: int = 0
    """Attempts of its exploration that are imitated."""
    imitated: int = 0
    """All trajectories that are imitated, those of the base data among them."""
    measures: dict[str, float] = field(default_factory=dict[str, float])
    """Means over the held-out tasks after it, such as success; empty without held-out tasks."""

    @property
    def success(self) -> float | None:
        return self.measures.get("success")


class EvolveObserver(EvaluationObserver):
    """Also observes what an iteration imitates and learns."""

    def chosen(self, iteration: Iteration, chosen: BestMembers) -> None:
        """It is known what an iteration imitates."""

    def learned(self, iteration: Iteration, result: TrainResult) -> None:
        """A step is done and saved."""

    def evaluated(self, number: int, evaluation: Evaluation) -> None:
        """The policy of an iteration is measured; number 0 before any learning and after the base data."""


async def evolve(
    model: TrainableModel,
    scenario: Scenario,
    *,
    judge: Judge | None = None,
    base: Sequence[Trajectory] = (),
    config: EvolveConfig | None = None,
    train: SftConfig | None = None,
    observer: EvolveObserver | None = None,
) -> list[Iteration]:
    """Improves a registered model by what it does itself, from wherever the run stands; gives all its iterations.

    `judge`: needed when `config.reward` gives it a weight. `base`: demonstrations that every iteration imitates, too.
    `train`: of the supervised steps; where it does not set them, the rate warms up over 3 steps and decays to zero in
    every iteration. Only the number of iterations may grow in a run that goes on (`RunDirectoryError`). Raises
    `LoopError` when nothing can be explored or imitated, and `DemonstrationError` for a malformed demonstration.
    """
    config = (config or EvolveConfig()).with_reward_for(scenario.success is not None)
    train = train or SftConfig()
    weights: Weights = config.reward or {}
    check_rewards(scenario, weights)
    check_turn_limits(scenario, config.turn_limits)
    judge = needed_judge(weights, judge)
    settings = {
        "evolve": config.model_dump(mode="json", exclude=_MAY_CHANGE),
        "training": describe_sft(train),
        "base": {"trajectories": len(base), "fingerprint": fingerprint(base)},
    }
    model.backend.pin(model, describe_experiment(Mixture([scenario]), judge) | settings)
    watchdog = Watchdog(stall_seconds(config.sampling()))
    judges = {} if judge is None else {scenario.name: judge}
    maker = GroupMaker(model, judges, config.sampling(), watchdog)
    run = _Evolution(model, scenario, judge, base, config, train, observer or EvolveObserver(), maker)
    return await watchdog.guard(run.run())


def iterations_of(rows: Sequence[dict[str, Any]]) -> list[Iteration]:
    """The iterations that a run's metrics tell of, each with its evaluation."""
    measures = {
        row["step"]: {name: value for name, value in row.items() if name not in ("step", "time", "split")}
        for row in rows
        if row["split"] == EVALUATION
    }
    known = {int(row["iteration"]): row for row in rows if row["split"] == ITERATIONS}
    return [
        Iteration(
            number=number,
            measures=measures.get(row["last_step"], {}),
            explored_reward=row.get("explored_reward"),
            **{name: int(row[name]) for name in _COUNTS},
        )
        for number, row in sorted(known.items())
    ]


@dataclass(frozen=True, slots=True)
class _Evolution:
    """One call of `evolve`."""

    model: TrainableModel
    scenario: Scenario
    judge: Judge | None
    base: Sequence[Trajectory]
    config: EvolveConfig
    train: SftConfig
    observer: EvolveObserver
    maker: GroupMaker

    async def run(self) -> list[Iteration]:
        if await self.model.get_step() == 0:
            await self._evaluate_once(0)
        for number in range(self.config.iterations + 1):
            known = self._iterations()
            iteration = known[number] if number < len(known) else await self._begin(number)
            if await self.model.get_step() < iteration.last_step:
                await self._learn(iteration, await self._collect_imitated(iteration))
            if await self.model.get_step() == iteration.last_step:
                await self._evaluate_once(number)
        return self._iterations()[: self.config.iterations + 1]

    def _iterations(self) -> list[Iteration]:
        return iterations_of(self.model.backend.history(self.model))

    async def _begin(self, number: int) -> Iteration:
        """Explores, chooses, and writes down what the iteration imitates."""
        step = await self.model.get_step()
        groups = await self._explore(number, step) if number else []
        chosen = choose_best_members(groups, self.config.kept, self.config.threshold)
        imitated = len(self.base) + len(chosen.trajectories)
        if number and not imitated:
            raise LoopError(
                f"none of the {chosen.scored:,} scored attempts of iteration {number} has a reward above "
                f"{self.config.threshold}, so there is nothing to imitate",
                "Begin anew (--fresh) with a lower --above, more --attempts, or base data (--base).",
            )
        rewards = [each.reward for group in groups for each in group if each.reward is not None]
        row = {
            "iteration": number,
            "first_step": step,
            "last_step": step + len(self._plan(number, imitated)),
            "explored": sum(map(len, groups)),
            "kept": len(chosen.trajectories),
            "imitated": imitated,
            **({"explored_reward": fmean(rewards)} if rewards else {}),
        }
        self.model.backend.record(self.model, row | judge_totals(groups), ITERATIONS)
        iteration = self._iterations()[number]
        if number:
            self.observer.chosen(iteration, chosen)
        return iteration

    async def _collect_imitated(self, iteration: Iteration) -> list[Trajectory]:
        """Base data, and what was kept: read from the run, so that it is the same after a restart."""
        if not iteration.number:
            return [*self.base]
        groups = await self._stored(iteration.number, iteration.first_step)
        kept = choose_best_members(groups, self.config.kept, self.config.threshold).trajectories
        if len(kept) != iteration.kept:
            raise LoopError(
                f"iteration {iteration.number} kept {iteration.kept} attempts, and {len(kept)} of them are stored",
                "Restore its trajectories, or start over with --fresh.",
            )
        return [*self.base, *kept]

    def _tasks(self, number: int) -> list[Task]:
        return self.scenario.sample("train", self.config.tasks, seed=self.config.seed, step=number)

    async def _stored(self, number: int, step: int) -> list[TrajectoryGroup]:
        """The groups that an iteration has explored so far, in the order of its tasks."""
        backend = self.model.backend
        if not any(row["step"] == step for row in backend.history(self.model, EXPLORED)):
            return []  # what a killed process stored without its row of metrics is replaced by the next groups
        place = {task.id: at for at, task in enumerate(self._tasks(number))}
        groups = await backend.logged(self.model, EXPLORED, step)
        return sorted((each for each in groups if _task_id(each) in place), key=lambda each: place[_task_id(each)])

    async def _explore(self, number: int, step: int) -> list[TrajectoryGroup]:
        """Makes the groups of the iteration that are not stored yet; gives all that are worth choosing from."""
        known = {_task_id(group) for group in await self._stored(number, step)}
        missing = [(task, GroupTally()) for task in self._tasks(number) if task.id not in known]
        scenario = with_turn_limit(self.scenario, self.config.turn_limits, number)
        self.observer.doing(f"exploring, iteration {number}")
        limiter = asyncio.Semaphore(self.config.concurrency)
        made, lost = list[TrajectoryGroup](), list[TrajectoryGroup]()

        def make(task: Task, tally: GroupTally) -> Coroutine[Any, Any, list[TrajectoryGroup]]:
            seeds = partial(seed_of, self.config.seed, "explore", number, task.id)
            return self.maker.make(scenario, task, seeds=seeds, limiter=limiter, tally=tally)

        with gather_display([tally for _, tally in missing], f"iteration {number}"):
            async with asyncio.TaskGroup() as running:
                tasks = [running.create_task(make(*each)) for each in missing]
                for done, task in enumerate(asyncio.as_completed(tasks), 1):
                    found = await task
                    whole = all(_was_scored(group) for group in found)  # else the same command tries the task again
                    (made if whole else lost).extend(found)
                    self.observer.advanced(done, len(missing))
                    if made and (len(made) >= _STORED_AT_ONCE or done == len(missing)):
                        await self.model.log(made, EXPLORED)
                        made = []
        groups = await self._stored(number, step)
        if lost and (not groups or (self.judge is not None and self.judge.stopped is not None)):
            stop_at_outage(self.judge, lost)
        if not groups:
            raise LoopError(f"iteration {number} has explored nothing that has a reward", RESUME)
        return groups

    def _plan(self, number: int, imitated: int) -> list[list[int]]:
        seed = seed_of(self.config.seed, "evolve", number)
        return imitation_plan(imitated, self.train.epochs, self.train.batch_size, seed) if imitated else []

    async def _learn(self, iteration: Iteration, trajectories: Sequence[Trajectory]) -> None:
        """The steps of an iteration that are not done yet; the first one begins again from the base."""
        plan = self._plan(iteration.number, iteration.imitated)
        each_step = with_schedule(self.train, len(plan))
        self.observer.doing(f"learning, iteration {iteration.number}")
        while (step := await self.model.get_step()) < iteration.last_step:
            batch = [trajectories[at] for at in plan[step - iteration.first_step]]
            config = each_step.model_copy(update={"restart": 0 < step == iteration.first_step})
            with self.maker.watchdog.during("training", "learning", counted=False):
                result = await self.model.train_sft(batch, config)
            self.observer.learned(iteration, result)
            backend, ends = self.model.backend, {each.last_step for each in self._iterations()}
            saved = backend.checkpoints(self.model)
            await backend.delete_checkpoints(self.model, [at for at in saved if at < result.step and at not in ends])

    async def _evaluate_once(self, number: int) -> None:
        """Measures the policy on held-out tasks, unless an earlier run of the same command has."""
        tasks, maker = self.config.evaluation_tasks, self.maker
        found = await evaluate_once(self.model, [self.scenario], tasks, maker.config, maker.watchdog, self.observer)
        if found is not None:
            self.observer.evaluated(number, found)


def _task_id(group: TrajectoryGroup) -> str:
    return Task.of(group.trajectories[0].metadata).id if group.trajectories else ""


def _was_scored(group: TrajectoryGroup) -> bool:
    """True if a best member can be chosen: identical attempts, too, are judged."""
    status = "" if group.judgement is None else group.judgement.status
    return status == "degenerate" or any(member.reward is not None for member in group)
