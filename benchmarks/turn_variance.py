"""How much of the gradient's noise could credit for single turns take out? On a shipped desk, at a step of training.

    OMP_NUM_THREADS=1 python benchmarks/turn_variance.py returns_desk

Eight tasks, 64 attempts at each, judged in groups of eight. The true value of a state is the mean reward of the
attempts that came to the same text. Printed for each kind of advantage: `n*`, the groups whose mean gradient has as
much noise as signal; the cosine with the expected gradient with 8 and 2 groups a step, 1 / sqrt(1 + n* / n); and the
share of the noise that lies between tasks. A kind is `mean`, or whose states (the true ones or the judge's) and lambda.
"""

import argparse
import asyncio
import tempfile
from collections import defaultdict
from statistics import fmean
from typing import Any

import numpy as np
import torch
import turn_credit

from gavel.judge.config import JudgeConfig
from gavel.judge.judge import Judge
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import find_scenario
from gavel.scenarios.trajectory import Choice, Trajectory
from gavel.trainer.config import LoopConfig, TrainConfig
from gavel.trainer.data.advantages import critic_advantages
from gavel.trainer.data.token_sequences import sequences

GROUP, PROJECTED = 8, 2048
KINDS = ("mean", "true 0.5", "true 0", "judge 0.5", "judge 0")


async def measure(name: str, steps: int, tasks: int, members: int) -> None:
    from gavel.trainer.backends.local import LocalBackend
    from gavel.trainer.loop.train_loop import train_scenario
    from gavel.trainer.model import TrainableModel

    scenario = find_scenario(name)
    judge = Judge("stand-in", rubric=scenario.rubric, config=JudgeConfig(states=True))
    model = TrainableModel(name="v", project=name, base_model=turn_credit.POLICIES[name])
    loop = LoopConfig(steps=steps, tasks_per_step=8, max_tokens=64, evaluate_every=steps, final_tasks=4)
    config = TrainConfig(learning_rate=turn_credit.RATES[name], warmup_steps=3, total_steps=20)
    with tempfile.TemporaryDirectory() as directory:
        async with LocalBackend(directory, max_context=1024) as backend:
            await model.register(backend)
            await train_scenario(model, scenario, judge, loop, config)
            groups: list[list[list[Trajectory]]] = []
            for number, task in enumerate(scenario.sample("train", tasks, seed=77)):
                seeds = range(1000 * number, 1000 * number + members)
                made = await asyncio.gather(*(rollout(model, scenario, task, seed=n, max_tokens=64) for n in seeds))
                parts = [TrajectoryGroup([*made[at : at + GROUP]]) for at in range(0, members, GROUP)]
                groups.append([list(await judge.score(part)) for part in parts])
            policy = next(iter(backend._training.values())).policy  # pyright: ignore[reportPrivateUsage]
            found = {kind: [list[np.ndarray]() for _ in groups] for kind in KINDS}
            for at, of_task in enumerate(groups):
                ends: dict[str, list[float]] = defaultdict(list)
                for member in (each for group in of_task for each in group if each.reward is not None):
                    for text in _texts(member):
                        ends[text].append(member.reward or 0.0)
                for group in of_task:
                    if None in [member.reward for member in group]:
                        continue
                    slopes = [_slopes(policy, member) for member in group]
                    for kind in KINDS:
                        paid = _paid(kind, group, {text: fmean(own) for text, own in ends.items()})
                        pairs = zip(paid, slopes, strict=True)
                        terms = (a * g for own, of in pairs for a, g in zip(own, of, strict=True))
                        found[kind][at].append(sum(terms, np.zeros(PROJECTED, np.float32)) / GROUP)
    for kind, of_tasks in found.items():
        drawn = [np.array(each) for each in of_tasks]
        within = fmean(each.var(0, ddof=1).sum() for each in drawn)
        means = np.array([each.mean(0) for each in drawn])
        spread = means.var(0, ddof=1).sum()
        between = max(0.0, spread - fmean(each.var(0, ddof=1).sum() / len(each) for each in drawn))
        noise = (within + between) / ((means.mean(0) ** 2).sum() - spread / len(drawn))
        print(
            f"{kind:10s} n* {noise:.2f}, cosine {(1 + noise / 8) ** -0.5:.3f} {(1 + noise / 2) ** -0.5:.3f}, "
            f"of the noise between tasks {between / (within + between):.2f}"
        )


def _texts(member: Trajectory) -> list[str]:
    """What had been said and done after each turn."""
    found, text = list[str](), ""
    for item in member.messages_and_choices:
        if isinstance(item, Choice):
            found.append(text)
            calls = [each.function for each in item.message.tool_calls or []]  # pyright: ignore[reportAttributeAccessIssue]
            text += f"|{item.message.content}{[(each.name, each.arguments) for each in calls]}"
        elif item["role"] == "tool":
            text += f"|{item['content']}"
    return [*found[1:], text]


def _slopes(policy: Any, member: Trajectory) -> list[np.ndarray]:
    """The gradient of each turn's log-probability, projected at random."""
    from gavel.trainer.learner.logprobs import trained_logprobs

    (tokens,) = sequences(member)
    weights = [each for each in policy.model.parameters() if each.requires_grad]
    size = sum(each.numel() for each in weights)
    draw = torch.Generator().manual_seed(0)
    to = torch.randint(0, PROJECTED, (size,), generator=draw)
    sign = torch.randint(0, 2, (size,), generator=draw) * 2.0 - 1
    logprobs = trained_logprobs(policy, [tokens])
    places = [at for at, sampled in enumerate(tokens.sampled) if sampled]
    found, start = list[np.ndarray](), 0
    for end in sorted(tokens.turn_ends.values()):
        stop = sum(place <= end for place in places)
        slope = torch.autograd.grad(logprobs[start:stop].sum(), weights, retain_graph=True)
        flat = torch.cat([each.flatten() for each in slope])
        found.append(torch.zeros(PROJECTED).index_add_(0, to, flat * sign).numpy())
        start = stop
    return found


def _paid(kind: str, group: list[Trajectory], values: dict[str, float]) -> list[list[float]]:
    rewards = [member.reward or 0.0 for member in group]
    whose, _, gae_lambda = kind.partition(" ")
    texts = [_texts(member) for member in group]
    states = [[values[text] for text in own] for own in texts]
    if whose == "judge":
        told = [list(member.judgement.states) if member.judgement else [] for member in group]
        states = [own if len(own) == len(of) else [] for own, of in zip(told, texts, strict=True)]
    paid = critic_advantages(rewards, states, float(gae_lambda or 1))
    mean = fmean(rewards)
    return [own or [reward - mean] * len(of) for own, reward, of in zip(paid, rewards, texts, strict=True)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=turn_credit.POLICIES)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--members", type=int, default=64)
    options = parser.parse_args()
    asyncio.run(measure(options.scenario, options.steps, options.tasks, options.members))
