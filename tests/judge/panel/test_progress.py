"""What is known of a group while it is judged."""

import asyncio
import json
from typing import Any

from gavel.judge.judge import Judge
from gavel.judge.panel.progress import Progress
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from tests.limits import HANG_SECONDS


async def test_votes_are_there_as_soon_as_their_ballot_is_over():
    asked, go_on = asyncio.Event(), asyncio.Event()
    calls: list[int] = []

    async def judge(messages: list[dict[str, Any]], schema: dict[str, Any]) -> str:
        calls.append(1)
        if len(calls) > 1:
            asked.set()
            await go_on.wait()
        labels = schema["properties"]["scores"]["items"]["properties"]["trajectory_id"]["enum"]
        return json.dumps({"scores": [{"trajectory_id": n, "explanation": "so", "score": 0.5} for n in labels]})

    group = TrajectoryGroup(Trajectory(messages_and_choices=[{"role": "user", "content": text}]) for text in "aba")
    progress = Progress()
    assert (progress.answered, progress.calls, progress.votes()) == (0, 0, {})
    judging = asyncio.create_task(Judge(judge, orders=2).score(group, progress=progress))
    await asked.wait()
    async with asyncio.timeout(HANG_SECONDS):
        while not progress.answered:  # noqa: ASYNC110  the second request may go out before the first reply is read
            await asyncio.sleep(0.01)
    assert (progress.answered, progress.calls) == (1, 2)
    assert {index: len(votes) for index, votes in progress.votes().items()} == {0: 1, 1: 1, 2: 1}
    go_on.set()
    judged = await judging
    assert progress.answered == 2
    votes = [trajectory.judgement.votes for trajectory in judged.trajectories if trajectory.judgement]
    assert [progress.votes()[index] for index in range(3)] == votes
