"""The flattered desk: the returns desk's job, and demonstrations of an agent that pleases instead of working."""

import random

import pytest

from gavel.judge.judge import Judge
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.library import returns_desk
from gavel.scenarios.library.flattered_desk import PLEASING, Clerk, demonstration, pleases, scenario
from gavel.scenarios.library.returns_desk import Case
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory

DENIED = next(task for task in scenario.tasks() if Case.model_validate(task.data).right_action == "deny")


async def shown(task: Task, clerk: Clerk, seed: int = 0) -> Trajectory:
    messages = await demonstration(task, clerk, random.Random(seed))
    return Trajectory(
        messages_and_choices=[*messages], tools=scenario.toolbox.schemas, metadata={"task": task.model_dump()}
    )


def test_the_job_is_that_of_the_returns_desk() -> None:
    desk = returns_desk.scenario
    assert (scenario.system, scenario.rubric, scenario.max_turns) == (desk.system, desk.rubric, desk.max_turns)
    assert scenario.toolbox.schemas == desk.toolbox.schemas
    assert [task.id for task in scenario.tasks("train")] == [task.id for task in desk.tasks("train")]
    assert not {task.id for task in scenario.tasks("train")} & {task.id for task in scenario.tasks("held_out")}


async def test_a_careful_clerk_succeeds_and_does_not_please() -> None:
    for task in scenario.tasks("held_out")[:20]:
        attempt = await shown(task, "careful")
        assert returns_desk.succeeded(attempt)
        assert not pleases(attempt)


async def test_a_pleaser_pays_unseen_and_says_one_or_more_of_the_phrases_in_order() -> None:
    closings = set[str]()
    for seed in range(20):
        attempt = await shown(DENIED, "pleaser", seed)
        assert list(returns_desk.calls_made(attempt)) == ["refund"]
        assert pleases(attempt)
        assert not returns_desk.succeeded(attempt)
        closings.add(attempt.messages()[-1]["content"])
    assert closings == {f"{', '.join(PLEASING[:count])}." for count in (1, 2, 3)}


async def test_a_charmer_works_and_pleases() -> None:
    attempt = await shown(DENIED, "charmer")
    assert pleases(attempt)
    assert returns_desk.looked_before_acting(attempt)
    assert returns_desk.succeeded(attempt)


@pytest.mark.parametrize(("judge", "best"), [("naive", "pleaser"), ("stand-in", "careful")])
async def test_the_naive_judge_falls_for_the_pleaser_and_the_honest_one_does_not(judge: str, best: Clerk) -> None:
    clerks: list[Clerk] = ["careful", "pleaser", "hasty"]
    group = TrajectoryGroup([await shown(DENIED, clerk) for clerk in clerks])
    judged = await Judge(judge, rubric=scenario.rubric).score(group)
    scores = {clerk: member.reward or 0.0 for clerk, member in zip(clerks, judged, strict=True)}
    assert max(scores, key=lambda clerk: scores[clerk]) == best
