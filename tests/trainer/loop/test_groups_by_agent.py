"""Episodes of several agents are trained: each agent's attempts among themselves, and only what the policy sampled."""

import json
from pathlib import Path
from typing import Any

import pytest

from gavel.judge.judge import Judge
from gavel.llm.types import Message
from gavel.scenarios.agent import Agent, together
from gavel.scenarios.episode import Episode
from gavel.scenarios.function_model import ChatRequest, FunctionModel
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.scenario import Scenario, find_scenario
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.config import LoopConfig, TrainConfig
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.loop.evaluation import evaluate
from gavel.trainer.loop.train_loop import Observer, StepReport, train_scenario
from gavel.trainer.model import TrainableModel

pytestmark = pytest.mark.slow

LOOP = LoopConfig(
    steps=2,
    tasks_per_step=2,
    group_size=3,
    max_tokens=8,
    evaluate_every=9,
    final_tasks=2,
    evaluation_tasks=2,
    reward={"hand": 1.0},
)


async def duel(model: Any, task: Task, episode: Episode) -> list[Trajectory]:
    """Who says the word with the higher checksum wins."""
    one = Agent(episode, "one", system="Say a word.")
    other = Agent(episode, "other", system="Say a better word.", steps_back=int(str(task.data.get("back", 0))))
    said = {agent: await agent.ask(task.user) for agent in (one, other)}
    best = max(said, key=lambda agent: sum(said[agent].encode()))
    for agent in said:
        agent.trajectory.metrics["won"] = agent is best
    one.trajectory.metrics["against"] = other.trajectory.policy_version or 0
    return [one.trajectory, other.trajectory]


async def _worker(request: ChatRequest) -> Message:
    return {"content": f"I did: {request.messages[-1]['content']}"}


WORKER = FunctionModel("worker", _worker)


async def plan_and_work(model: Any, task: Task, episode: Episode) -> Trajectory:
    planner, worker = Agent(episode, "planner"), Agent(episode, "worker", model=WORKER)
    await planner.ask(await worker.ask(await planner.ask(task.user)))
    return together(planner, worker)


TASKS = [Task(user=f"Word {number}") for number in range(8)]
WON = {"success": lambda each: bool(each.metrics["won"]), "hand_reward": lambda each: float(each.metrics["won"])}


class Steps(Observer):
    def __init__(self) -> None:
        self.reports: list[StepReport] = []

    def stepped(self, report: StepReport) -> None:
        self.reports.append(report)


async def trained(runs: Path, scenario: Scenario, loop: LoopConfig = LOOP, versions: int = 1) -> list[StepReport]:
    model = TrainableModel(name="small", project="tests", base_model=EMBEDDED_POLICY)
    steps = Steps()
    async with LocalBackend(runs, versions=versions) as backend:
        await model.register(backend)
        judge = Judge("constant") if loop.reward.get("judge") else None
        await train_scenario(model, scenario, judge, loop, TrainConfig(), steps)
    return steps.reports


def agents(groups: list[TrajectoryGroup]) -> list[list[str | None]]:
    return [[each.agent for each in group] for group in groups]


async def test_in_self_play_each_agent_is_compared_with_itself_and_all_turns_are_trained(tmp_path: Path):
    reports = await trained(tmp_path, Scenario("duel", rollout=duel, tasks=TASKS, **WON))
    assert [report.result.step for report in reports] == [1, 2]
    for report in reports:
        assert agents(report.groups) == [["one"] * 3, ["other"] * 3] * 2
        wins = [each.reward for group in report.groups for each in group]
        assert sum(reward or 0.0 for reward in wins) == len(wins) / 2
        with_signal = [group for group in report.groups if len({each.reward for each in group}) > 1]
        assert report.result.metrics.get("trajectories_trained", 3 * len(with_signal)) == 3 * len(with_signal)
    (first, *_) = [json.loads(line) for line in (tmp_path / "tests" / "small" / "metrics.jsonl").open()]
    assert first["split"] == "held_out"
    assert first["success"] == 0.5


async def test_an_older_policy_is_an_opponent_that_is_not_trained(tmp_path: Path):
    tasks = [task.model_copy(update={"data": {"back": 1}}) for task in TASKS]
    reports = await trained(tmp_path, Scenario("duel", rollout=duel, tasks=tasks, **WON), versions=2)
    for report in reports:
        assert agents(report.groups) == [["one"] * 3] * 2
        assert all(each.status != "failed" for group in report.groups for each in group)
        members = [member for group in report.groups for member in group]
        assert {(each.policy_version, each.metrics["against"]) for each in members} == {(report.result.step - 1, 0)}


async def test_a_planner_is_trained_and_another_model_s_words_are_not(tmp_path: Path):
    scenario = Scenario("team", rollout=plan_and_work, tasks=TASKS, hand_reward=lambda each: len(str(each.messages())))
    reports = await trained(tmp_path, scenario)
    for report in reports:
        for each in (member for group in report.groups for member in group):
            planner, worker = each.histories()
            assert (planner.agent, worker.agent) == ("planner", "worker")
            assert len(list(each.choices())) == 2
            assert worker.messages()[-1]["content"].startswith("I did: ")


async def test_an_evaluation_measures_the_policy_alone_against_another_model():
    async def against(model: Any, task: Task, episode: Episode) -> list[Trajectory]:
        one, other = Agent(episode, "one"), Agent(episode, "other", model=WORKER)
        for agent, won in ((one, True), (other, False)):
            await agent.ask(task.user)
            agent.trajectory.metrics["won"] = won
        return [other.trajectory, one.trajectory]

    scenario = Scenario("against", rollout=against, tasks=TASKS[:4], held_out=TASKS[4:], **WON)
    found = await evaluate(FunctionModel("policy", _worker), scenario, 4, LOOP)
    assert (found.tasks, found.success) == (4, 1.0)
    assert {each.agent for each in found.trajectories} == {"one"}


async def test_tic_tac_toe_is_trained_in_self_play_and_measured_against_another_player(tmp_path: Path):
    scenario = find_scenario("tic_tac_toe")
    reports = await trained(tmp_path, scenario, LOOP.model_copy(update={"reward": {"judge": 1.0, "hand": 1.0}}))
    assert [report.result.step for report in reports] == [1, 2]
    members = [member for report in reports for group in report.groups for member in group]
    assert {member.agent for member in members} <= {"X", "O"}
    assert all(member.status != "failed" and member.reward is not None for member in members)
    measured = [json.loads(line) for line in (tmp_path / "tests" / "small" / "metrics.jsonl").open()]
    assert [(row["step"], row["trajectories"]) for row in measured if row["split"] == "held_out"] == [(0, 2), (2, 2)]
