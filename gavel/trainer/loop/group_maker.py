"""Rolls out a task several times and scores what came of it: one group, or one for each agent of an episode.

    maker = GroupMaker(model, {"returns_desk": judge}, LoopConfig(group_size=8), Watchdog(math.inf))
    groups = await maker.make(scenario, task, seeds=lambda index: seed_of(0, "train", step, task.id, index), …)

The training loop and the exploration of `evolve` make their groups here. What fails stays in the group: a rollout as a
failed member, a judgement as a group without scores.

The reward of a trajectory is the weighted sum of named rewards, by default the judge's score alone. Without one of them
it is None: not scored, which is never 0. A reward with weight 0 is not computed; without a weight for `judge` the judge
is not called.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gavel.judge.judge import Judge
from gavel.judge.panel.standard_errors import NoisePrior
from gavel.scenarios.chat_model import ChatModel
from gavel.scenarios.gather import GroupTally, gather_group
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import LoopConfig, RewardName
from gavel.trainer.data.token_sequences import COMPACT
from gavel.trainer.loop.evaluation import call_measure, measure
from gavel.trainer.loop.watchdog import LoopError, Watchdog

Weights = Mapping[RewardName, float]
Parts = dict[RewardName, float | None]
"""The named rewards of one trajectory; None where there is no score."""


def needed_judge(weights: Weights, judge: Judge | None) -> Judge | None:
    """`judge`, where the reward gives it a weight. Raises `LoopError` where there is none then, and `JudgeError` for
    one that cannot be asked."""
    if not weights.get("judge"):
        return None
    if judge is None:
        raise LoopError("the reward gives the judge a weight, but there is no judge", "Pass judge=gavel.Judge(…).")
    judge.check()
    return judge


def _functions(scenario: Scenario) -> dict[RewardName, tuple[str, Callable[[Trajectory], float] | None]]:
    return {"hand": ("hand_reward", scenario.hand_reward), "success": ("success", scenario.success)}


def check_rewards(scenario: Scenario, weights: Weights) -> None:
    """Raises `LoopError` when the scenario lacks a function that a weighted reward calls."""
    for name, (argument, function) in _functions(scenario).items():
        if weights.get(name) and function is None:
            raise LoopError(
                f"the reward {name!r} needs {argument}, which the scenario {scenario.name} does not have",
                f"Pass {argument}=… to its gavel.Scenario, or take {name!r} out of the weights of the reward.",
            )


def programmed_parts(scenario: Scenario, trajectory: Trajectory, weights: Weights) -> Parts:
    """The weighted rewards that are no judge's. A failed rollout has no score: they are None.

    Raises `ScenarioError` when one of the scenario's functions fails.
    """
    parts: Parts = {name: 1.0 for name, weight in weights.items() if weight and name != "judge"}
    if trajectory.status == "failed":
        return dict.fromkeys(parts)
    for name, (argument, function) in _functions(scenario).items():
        if name in parts and function is not None:
            value = call_measure(scenario, argument, function, trajectory)
            parts[name] = float(value != 0) if name == "success" else value
    return parts


def set_rewards(group: TrajectoryGroup, programmed: Sequence[Parts], weights: Weights) -> None:
    """Sets each member's reward from its programmed parts and, where that has a weight, the judge's score.

    The parts are kept as the metrics `reward/<name>`, unless the judge's is the only one.
    """
    for trajectory, parts in zip(group.trajectories, programmed, strict=True):
        known: Parts = {"judge": trajectory.reward} if weights.get("judge") else {}
        known |= parts
        values = {name: value for name, value in known.items() if value is not None}
        total = 0.0
        for name, weight in weights.items():
            total += weight * values.get(name, 0.0)
        trajectory.reward = total if len(values) == len(known) else None
        if known.keys() != {"judge"}:
            trajectory.metrics |= {f"reward/{name}": value for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class GroupMaker:
    """Makes the groups of a run: samples the members and has them judged."""

    model: ChatModel
    judges: Mapping[str, Judge]
    """By the scenario's name; empty where the reward gives the judge no weight."""
    config: LoopConfig
    watchdog: Watchdog
    several: bool = False
    """True if the run has several scenarios, whose metrics are logged separately."""
    fields: Mapping[str, Any] = field(default_factory=lambda: COMPACT)
    """Extra fields of each request to the model."""

    async def make(
        self,
        scenario: Scenario,
        task: Task,
        *,
        seeds: Callable[[int], int],
        limiter: AbstractAsyncContextManager[object],
        tally: GroupTally,
        rollout_starts: Callable[[], None] = lambda: None,
        noise_prior: NoisePrior | None = None,
    ) -> list[TrajectoryGroup]:
        """The group of `task`; of several agents, one group for each.

        `seeds`: that of each rollout, by its number. `limiter`: is held by a rollout while it runs. `rollout_starts` is
        called then. `noise_prior`: of the judge's votes.
        """
        others: list[list[Trajectory]] = [[] for _ in range(self.config.group_size)]
        further: list[TrajectoryGroup] = []

        async def member(index: int) -> Trajectory:
            async with limiter:
                rollout_starts()
                with self.watchdog.during("rollout", f"of {self.config.group_size} rollouts of task {task.id}"):
                    return await rollout(
                        self.model,
                        scenario,
                        task,
                        temperature=self.config.temperature,
                        max_tokens=self.config.max_tokens,
                        seed=seeds(index),
                        fields=self.fields,
                        others=others[index],
                    )

        async def scored(group: TrajectoryGroup) -> TrajectoryGroup:
            first, *rest = split_by_agent(group, [each for further in others for each in further])
            score = partial(self._score, scenario, noise_prior)
            further.extend(await asyncio.gather(*(gather_group(each, score) for each in rest)))
            return await score(first)

        group = TrajectoryGroup(member(index) for index in range(self.config.group_size))
        return [await gather_group(group, scored, tally), *further]

    async def _score(
        self, scenario: Scenario, noise_prior: NoisePrior | None, group: TrajectoryGroup
    ) -> TrajectoryGroup:
        """The group with measures, rewards and, if the reward needs it, a judgement."""
        if not len(group):
            return group
        for trajectory in group:
            if trajectory.status != "failed":
                trajectory.metrics |= measure(scenario, trajectory)
        programmed = [programmed_parts(scenario, trajectory, self.config.reward) for trajectory in group]
        if (judge := self.judges.get(scenario.name)) is not None:
            with self.watchdog.during("judging", "groups"):
                group = await judge.score(group, noise_prior=noise_prior)
        set_rewards(group, programmed, self.config.reward)
        if self.several:
            with_scenario_metrics(scenario, group)
        return group


def split_by_agent(group: TrajectoryGroup, others: Sequence[Trajectory]) -> list[TrajectoryGroup]:
    """The group with the episodes' further trajectories, divided by agent in the order of their appearance.

    Members of different agents are not compared: four episodes of the players X and O give [X X X X] and [O O O O]. The
    first group keeps what is not an agent's: exceptions, and episodes that failed before an agent was known.
    """
    members = [*group.trajectories, *others]
    agents = list(dict.fromkeys(each.agent for each in members if each.agent is not None))
    if len(agents) < 2:
        return [group]
    first, *further = agents
    main = [each for each in members if each.agent in (first, None)]
    return [
        group.model_copy(update={"trajectories": main}),
        *(
            TrajectoryGroup([each for each in members if each.agent == agent], metadata=dict(group.metadata))
            for agent in further
        ),
    ]


def with_scenario_metrics(scenario: Scenario, trajectories: Iterable[Trajectory]) -> None:
    """Adds each metric and the reward once more with the scenario's name before it, for means over it alone."""
    for trajectory in trajectories:
        own = {f"{scenario.name}/{name}": value for name, value in trajectory.metrics.items()}
        if trajectory.reward is not None:
            own[f"{scenario.name}/reward"] = trajectory.reward
        trajectory.metrics |= own
