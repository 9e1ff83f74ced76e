# pyright: basic, reportMissingImports=false, reportOptionalMemberAccess=false, reportArgumentType=false
"""RULER of openpipe-art, as its documentation uses it; "4 calls" averages four of them, with different seeds."""

import art
from art.rewards.ruler import ruler_score_group
from driver import conversation, run


async def once(url, model, task, attempts, seed=0):
    group = art.TrajectoryGroup(
        [art.Trajectory(messages_and_choices=conversation(task, attempt), reward=0.0) for attempt in attempts]
    )
    params = {"api_base": f"{url}/v1", "api_key": "none", "seed": seed}
    judged = await ruler_score_group(group, f"openai/{model}", params)
    return [trajectory.reward for trajectory in judged.trajectories]


async def four(url, model, task, attempts):
    answers = [await once(url, model, task, attempts, seed) for seed in range(4)]
    return [sum(scores) / len(scores) for scores in zip(*answers, strict=True)]


if __name__ == "__main__":
    run({"ruler": once, "ruler4": four})
