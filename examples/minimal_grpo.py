"""GRPO with a judge as the reward, from top to bottom: what `gavel demo` does, without its conveniences.

A step: sample tasks, roll out a group of attempts at each, let the judge score every group, turn scores into
advantages, update the LoRA adapter once. Held-out success is measured before, between and after.

Simplifications, against `gavel train`: rollouts and training take turns, evaluations have few tasks, checkpoints are
never deleted, and what fails is not counted. About a minute on two cores:

    python examples/minimal_grpo.py
    python examples/minimal_grpo.py 2     # two steps only
"""

import asyncio
import statistics
import sys
import time

import gavel

STEPS = 12
TASKS_PER_STEP = 16
GROUP_SIZE = 8
HELD_OUT_TASKS = 96
SEED = 0

SCENARIO = gavel.find_scenario("returns_desk")
"""The job: a system prompt, tools, tasks in two splits, a rubric for the judge; and `success`, for measuring only."""

JUDGE = gavel.Judge("stand-in", rubric=SCENARIO.rubric)
"""Scores the members of a group from 0 to 1 relative to one another. Here a program that checks the rubric's rules; for
a language model write its name, such as "openai/gpt-5-mini"."""

CONFIG = gavel.TrainConfig(
    learning_rate=2e-3,
    warmup_steps=2,
    advantage="mean",  # score - mean of the group: the function `advantages` below
    loss=gavel.ClippedSurrogate(clip_low=0.2, clip_high=0.2),
)


async def attempt(model: gavel.TrainableModel, task: gavel.Task, seed: int) -> gavel.Trajectory:
    """One rollout: the policy talks to the tools until it answers the customer or its turns run out.

    Each turn in the trajectory is the sampled choice with its token ids and log-probs, so nothing is tokenised again.
    """
    return await gavel.rollout(model, SCENARIO, task, seed=seed, max_tokens=64)


async def judged_groups(model: gavel.TrainableModel, step: int) -> list[gavel.TrajectoryGroup]:
    """Groups of attempts at the step's tasks, each judged as soon as its own members are done."""
    tasks = SCENARIO.sample("train", TASKS_PER_STEP, seed=SEED, step=step)
    seeds = iter(range(step * 1_000_000, (step + 1) * 1_000_000, 100))  # a rollout's turns use the seeds that follow
    return await gavel.gather_trajectory_groups(
        (gavel.TrajectoryGroup(attempt(model, task, next(seeds)) for _ in range(GROUP_SIZE)) for task in tasks),
        after_each=JUDGE.score,
        progress=False,
    )


def advantages(group: gavel.TrajectoryGroup) -> list[float]:
    """How much better each scored member did than its group: `[members]`, with mean 0.

    `model.train` computes the same. A member that the judge could not score has no reward, and is not trained; a group
    of equal scores has advantages of 0, and is left out.
    """
    scores = [trajectory.reward for trajectory in group if trajectory.reward is not None]
    return [score - statistics.fmean(scores) for score in scores]


async def held_out_success(model: gavel.TrainableModel) -> float:
    """Share of held-out tasks that the policy does right, one attempt each."""
    assert SCENARIO.success
    tasks = SCENARIO.sample("held_out", HELD_OUT_TASKS, seed=SEED)
    attempts = [attempt(model, task, seed=-100 * number) for number, task in enumerate(tasks, start=1)]
    trajectories = await gavel.gather_trajectories(attempts, progress=False)
    return statistics.fmean(SCENARIO.success(trajectory) for trajectory in trajectories)


def show(group: gavel.TrajectoryGroup) -> None:
    """What one group teaches: score, advantage and tool calls of every member, best first."""
    members = sorted(zip(advantages(group), group, strict=True), key=lambda pair: -pair[0])
    for advantage, trajectory in members:
        calls = [call["function"]["name"] for turn in trajectory.messages() for call in turn.get("tool_calls") or ()]
        print(f"    score {trajectory.reward:.2f}  advantage {advantage:+.2f}  {' > '.join(calls)}")


async def main(steps: int) -> None:
    started = time.monotonic()
    model = gavel.TrainableModel(
        name=f"minimal-grpo-{time.time_ns()}", project="examples", base_model="embedded/returns-desk"
    )
    async with gavel.LocalBackend() as backend:
        await model.register(backend)
        curve = {0: await held_out_success(model)}
        print(f"step  0: held-out success {curve[0]:.2f}")
        for step in range(steps):
            groups = await judged_groups(model, step)
            if step == 0:
                show(groups[0])
            # One clipped policy-gradient update of the adapter on the sampled tokens; the next rollouts use it.
            result = await model.train(groups, CONFIG)
            spread = statistics.fmean(abs(advantage) for group in groups for advantage in advantages(group))
            line = f"step {result.step:2}: mean score {result.metrics['reward']:.2f}, mean |advantage| {spread:.2f}"
            if result.step % 5 == 0 or result.step == steps:
                curve[result.step] = await held_out_success(model)
                line += f", held-out success {curve[result.step]:.2f}"
            print(f"{line}  ({time.monotonic() - started:.0f} s)")
    print("\nheld-out success by step")
    for step, success in curve.items():
        print(f"{step:4} {'#' * round(40 * success)} {success:.2f}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else STEPS))
