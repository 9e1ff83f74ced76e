"""Does credit for single turns help? Training with `advantage="critic"` beside training without, and where it stops.

    export OMP_NUM_THREADS=1
    python benchmarks/turn_credit.py embedded --results FILE   token policies, three desks, five seeds; FILE is resumed
    python benchmarks/turn_credit.py chain                     episodes of 2 to 64 turns, in a minute
    python benchmarks/turn_credit.py tokens                    what states add to a judge's reply
    python benchmarks/turn_credit.py bound booking_desk        what the best critic could gain on a desk

embedded: both legs have the same tasks, seeds, groups and judge calls (the stand-in in two orders), each run a process.
"To the level" is the first step at which the mean of the last 128 attempts is there; a run that never is counts as its
number of steps. The level is .85, or the highest below it, in steps of .05, that every run of the desk reaches.

chain: one decision at each of T turns, two actions, the attempt succeeds if the right one is chosen at one turn that is
hidden from the policy and the same in all episodes; all other turns do nothing. The policy is a table of logits, the
judge `distorted` truth. So nothing but the estimator differs, and the expected gradient is known.

bound: the gradient of groups of eight, 64 attempts at each of eight tasks, after five steps of training. `n*` is how
many groups have as much noise as signal; the cosine with the expected gradient is 1 / sqrt(1 + n* / n) for n groups.
"""

import argparse
import asyncio
import json
import math
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import fmean, geometric_mean, stdev
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

from benchmarks.engine_quality import Bias, distorted
from gavel.judge.config import JudgeConfig
from gavel.judge.judge import Judge
from gavel.judge.offline import stand_in
from gavel.judge.prompt.truncate import count_tokens
from gavel.judge.stats import expected_scores
from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import find_scenario
from gavel.scenarios.scripted_agent import played_by, players_of
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.config import LoopConfig, TrainConfig
from gavel.trainer.data.advantages import critic_advantages
from gavel.trainer.data.token_sequences import sequences
from gavel.trainer.learner.logprobs import trained_logprobs
from gavel.trainer.loop.train_loop import train_scenario
from gavel.trainer.model import TrainableModel

DESKS: dict[str, dict[str, Any]] = {
    "returns_desk": {"policy": "embedded/returns-desk", "rate": 4e-3, "steps": 40, "held_out": 128},
    "booking_desk": {"policy": "embedded/booking-desk", "rate": 2e-3, "steps": 40, "held_out": 128},
    "retail_desk": {"policy": "tool-caller", "rate": 2e-3, "steps": 3, "held_out": 8},
}
CLONED = ("returns_desk", "booking_desk")
TASKS, MEMBERS, WINDOW, LEVEL = 2, 8, 8, 0.85
FIGURES = ("success", "judge_score", "turns", "groups_trained", "critic/lambda", "health/states_correlation")
COUNTS = ("judge/calls", "judge/completion_tokens")


async def learn(name: str, leg: str, seed: int, directory: str) -> dict[str, Any]:
    """One training run. `leg`: `mean`, or a lambda."""
    desk, scenario, is_critic = DESKS[name], find_scenario(name), leg != "mean"
    judge = Judge("stand-in", rubric=scenario.rubric, config=JudgeConfig(states=is_critic, seed=seed))
    loop = LoopConfig(
        steps=desk["steps"],
        tasks_per_step=TASKS,
        group_size=MEMBERS,
        max_tokens=64,
        seed=seed,
        evaluate_every=desk["steps"],
        final_tasks=desk["held_out"],
    )
    critic: dict[str, Any] = {"advantage": "critic", "gae_lambda": float(leg)} if is_critic else {}
    train = TrainConfig(learning_rate=desk["rate"], warmup_steps=3, total_steps=desk["steps"], **critic)
    model = TrainableModel(name=f"{leg}-{seed}", project=name, base_model=desk["policy"])
    started = time.process_time()
    async with LocalBackend(directory, max_context=1024 if name in CLONED else None) as backend:
        await model.register(backend)
        await train_scenario(model, scenario, judge, loop, train)
        rows, ends = backend.history(model, "train"), backend.history(model, "held_out")
        alarms = [row["alarm"] for row in backend.history(model, "alarms")]
    found: dict[str, Any] = {"scenario": name, "leg": leg, "seed": seed, "alarms": alarms}
    found |= {"held_out": [row["success"] for row in ends]}
    found |= {figure: [round(row[figure], 3) for row in rows if figure in row] for figure in FIGURES + COUNTS}
    return found | {"cpu_seconds": round(time.process_time() - started)}


def learn_apart(run: tuple[str, str, int]) -> dict[str, Any]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(learn(*run, directory))


def run_embedded(scenarios: Sequence[str], gae_lambda: str, seeds: Sequence[int], file: Path) -> None:
    """Makes the runs that the file does not hold yet, one process each, seed by seed, and prints the tables."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    runs = {(row["scenario"], row["leg"], row["seed"]): row for row in map(json.loads, lines)}
    wanted = [(name, leg, seed) for seed in seeds for name in scenarios for leg in ("mean", gae_lambda)]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool, file.open("a") as kept:
        for row in pool.imap(learn_apart, [run for run in wanted if run not in runs]):
            runs[row["scenario"], row["leg"], row["seed"]] = row
            print(json.dumps(row), file=kept, flush=True)
    for name in scenarios:
        show(name, *([runs[name, leg, seed] for seed in seeds] for leg in ("mean", gae_lambda)))


def show(name: str, without: list[dict[str, Any]], critic: list[dict[str, Any]]) -> None:
    """Prints the table of one desk; the interval is a bootstrap over the seeds, which both legs share."""
    print(f"\n{name}, seeds {[row['seed'] for row in without]}")
    for figure in ("success", "judge_score"):
        curves = [[smooth(row[figure]) for row in leg] for leg in (without, critic)]
        level = min(LEVEL, math.floor(20 * min(max(curve) for leg in curves for curve in leg)) / 20)
        taken = [[steps_to(curve, level) for curve in leg] for leg in curves]
        ratios = [math.log(a / b) for a, b in zip(*taken, strict=True)]
        random = Random(0)
        drawn = sorted(fmean(random.choices(ratios, k=len(ratios))) for _ in range(10_000))
        low, high = (math.exp(drawn[at]) for at in (250, 9749))
        times, means = math.exp(fmean(ratios)), [round(geometric_mean(leg), 1) for leg in taken]
        print(f"  steps to a {figure} of {level:.2f}: without {taken[0]}, critic {taken[1]}; geometric means {means},")
        print(f"    {times:.2f} times fewer [{low:.2f}, {high:.2f}]")
    for title, leg in (("without", without), ("critic", critic)):
        ends = [row["held_out"][-1] for row in leg]
        print(
            f"  {title}: held-out success {fmean(row['held_out'][0] for row in leg):.3f} -> {fmean(ends):.3f} {ends}, "
            f"{fmean(fmean(row['turns']) for row in leg):.1f} turns, "
            f"groups with a signal {sum(sum(row['groups_trained']) for row in leg):.0f} "
            f"of {TASKS * sum(len(row['success']) for row in leg)}, "
            f"judge calls {sum(sum(row['judge/calls']) for row in leg):.0f}, "
            f"alarms {[each for row in leg for each in row['alarms']]}"
        )
    first = [sum(row["judge/completion_tokens"][0] for row in leg) for leg in (without, critic)]
    print(f"  reply tokens of the same attempts (step 1): {first}, {first[1] / first[0] - 1:+.1%}")
    used = [each < 1 for row in critic for each in row["critic/lambda"]]
    print(f"  lambda below 1 in {sum(used)} of {len(used)} steps")


def smooth(values: Sequence[float]) -> list[float]:
    return [fmean(values[max(0, end - WINDOW) : end]) for end in range(min(WINDOW, len(values)), len(values) + 1)]


def steps_to(curve: Sequence[float], level: float) -> int:
    """The first step at the level, or the last step."""
    lead = min(WINDOW, len(curve))
    return next((lead + at for at, value in enumerate(curve) if value >= level), lead + len(curve) - 1)


DISTORTIONS = {"noisy": Bias(state_correlation=0.3), "leak": Bias(state_leak=0.5)}


def chain(turns: int, leg: str, seed: int, *, group: int = 8, steps: int = 400, rate: float = 0.15) -> int:
    """Steps until the right action at the one turn that matters has probability .85; `steps` where it never has.

    The rate is that of a normalized gradient, as Adam's is: so no leg gains by larger advantages alone.
    """
    random = Random(f"{turns}/{seed}")
    kind, _, distortion = leg.partition(",")
    bias = DISTORTIONS.get(distortion, Bias())
    logits, decisive = [0.0] * turns, turns // 2
    for step in range(1, steps + 1):
        right = [1 / (1 + math.exp(-logit)) for logit in logits]
        attempts = [[random.random() < p for p in right] for _ in range(group)]
        scores = {str(n): float(attempt[decisive]) for n, attempt in enumerate(attempts)}
        if len(set(scores.values())) == 1:
            continue
        true = {
            name: [right[decisive] if turn < decisive else score for turn in range(turns - 1)]
            for name, score in scores.items()
        }
        states = list(distorted(true, scores, bias, random).values())
        by_turn = advantages(kind, list(scores.values()), states)
        gradient = [
            sum(own[turn] * (attempt[turn] - right[turn]) for own, attempt in zip(by_turn, attempts, strict=True))
            for turn in range(turns)
        ]
        norm = math.sqrt(math.fsum(each**2 for each in gradient)) or 1.0
        logits = [logit + rate * each / norm for logit, each in zip(logits, gradient, strict=True)]
        if 1 / (1 + math.exp(-logits[decisive])) >= LEVEL:
            return step
    return steps


def advantages(kind: str, scores: list[float], states: list[list[float]]) -> list[list[float]]:
    """`one-sided`: generalized advantage estimation at lambda 1, score less the state before; else lambda."""
    if kind == "mean":
        return critic_advantages(scores, states, 1.0)
    if kind == "one-sided":
        mean = fmean(scores)
        befores = expected_scores(scores, states)
        return [[score - before for before in [mean, *own]] for score, own in zip(scores, befores, strict=True)]
    return critic_advantages(scores, states, float(kind))


LEGS = ("mean", "0.9", "0.5", "0", "one-sided", "0.5,noisy", "0,noisy", "0.5,leak", "0,leak", "one-sided,leak")
LENGTHS = (2, 4, 8, 16, 32, 64)


def run_chain(seeds: int, file: Path | None) -> None:
    print("turns  " + "  ".join(f"{leg:>15}" for leg in LEGS))
    means: dict[str, list[float]] = {leg: [] for leg in LEGS}
    for turns in LENGTHS:
        cells: list[str] = []
        for leg in LEGS:
            found = [float(chain(turns, leg, seed)) for seed in range(seeds)]
            means[leg].append(fmean(found))
            cells.append(f"{fmean(found):8.1f} ± {stdev(found) / math.sqrt(seeds):4.1f}")
        print(f"{turns:>5}  " + "  ".join(cells), flush=True)
    if file is not None:
        file.write_text(chart(means), encoding="utf-8")


DRAWN = {
    "mean": ("#888", "without (mean)"),
    "one-sided,leak": ("#c60", "score less the state before, leaking"),
    "0.9": ("#6ab", "critic, λ = .9"),
    "0.5,leak": ("#37b", "critic, λ = .5, leaking"),
    "0.5": ("#025", "critic, λ = .5"),
}


def chart(means: Mapping[str, Sequence[float]]) -> str:
    """Steps over turns, both on logarithmic scales, as SVG."""
    top = max(max(means[leg]) for leg in DRAWN)
    low = min(min(means[leg]) for leg in DRAWN)

    def place(turns: int, steps: float) -> tuple[float, float]:
        across = (math.log(turns) - math.log(LENGTHS[0])) / (math.log(LENGTHS[-1]) - math.log(LENGTHS[0]))
        return 50 + 330 * across, 210 - 185 * (math.log(steps) - math.log(low)) / (math.log(top) - math.log(low))

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 660 260" font-family="sans-serif" font-size="12">',
        '<rect width="660" height="260" fill="#fff"/>',
        '<text x="50" y="252">turns of an episode, of which one decides</text>',
        '<text x="8" y="14">steps until that turn is right with probability .85</text>',
    ]
    parts += [f'<text x="{place(turns, low)[0]:.0f}" y="232" text-anchor="middle">{turns}</text>' for turns in LENGTHS]
    parts += [f'<text x="40" y="{place(2, s)[1] + 4:.0f}" text-anchor="end">{s:.0f}</text>' for s in (low, top)]
    for leg, (colour, _) in DRAWN.items():
        points = [place(turns, steps) for turns, steps in zip(LENGTHS, means[leg], strict=True)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
    for row, leg in enumerate(sorted(DRAWN, key=lambda leg: -means[leg][-1])):
        colour, name = DRAWN[leg]
        parts.append(f'<text x="395" y="{40 + 40 * row}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


async def run_tokens() -> None:
    """Tokens of the stand-in's replies on the players of shipped scenarios, with states and without."""
    for name in CLONED:
        scenario = find_scenario(name)
        players = players_of(name)
        task = scenario.sample("train", 1, seed=0)[0]
        group = [
            await rollout(played_by(player, task), scenario, task, seed=n) for n, player in enumerate(players.values())
        ]
        kept: list[str] = []

        async def keep(messages: Sequence[Message], schema: Mapping[str, Any], kept: list[str] = kept) -> str:
            kept.append(stand_in.reply("stand-in", messages))
            return kept[-1]

        for states in (False, True):
            await Judge(keep, rubric=scenario.rubric, orders=1, states=states).score(TrajectoryGroup(group))
        without, within = map(count_tokens, kept)
        turns = sum(message["role"] == "assistant" for each in group for message in each.messages())
        print(
            f"{name}: {without} tokens for {len(group)} members of {turns} turns, {within} with states "
            f"({within / without - 1:+.1%}, {(within - without) / turns:.1f} a turn)"
        )


SIZE, ATTEMPTS, PROJECTED = 8, 64, 2048


async def run_bound(name: str) -> None:
    """Noise of a desk's gradient within and between tasks; only the first is within a critic's reach."""
    scenario, desk = find_scenario(name), DESKS[name]
    judge = Judge("stand-in", rubric=scenario.rubric)
    model = TrainableModel(name="bound", project=name, base_model=desk["policy"])
    loop = LoopConfig(steps=5, tasks_per_step=8, max_tokens=64, evaluate_every=5, final_tasks=4)
    train = TrainConfig(learning_rate=desk["rate"], warmup_steps=3, total_steps=20)
    found: list[np.ndarray] = []
    with tempfile.TemporaryDirectory() as directory:
        async with LocalBackend(directory, max_context=1024) as backend:
            await model.register(backend)
            await train_scenario(model, scenario, judge, loop, train)
            policy = next(iter(backend._training.values())).policy  # pyright: ignore[reportPrivateUsage]
            for number, task in enumerate(scenario.sample("train", 8, seed=77)):
                seeds = range(1000 * number, 1000 * number + ATTEMPTS)
                made = await asyncio.gather(*(rollout(model, scenario, task, seed=n, max_tokens=64) for n in seeds))
                groups = [TrajectoryGroup([*made[at : at + SIZE]]) for at in range(0, ATTEMPTS, SIZE)]
                judged = [await judge.score(group) for group in groups]
                found.append(np.array([gradient(policy, g) for g in judged if None not in [m.reward for m in g]]))
    within = fmean(each.var(0, ddof=1).sum() for each in found)
    means = np.array([each.mean(0) for each in found])
    spread = means.var(0, ddof=1).sum()
    between = max(0.0, spread - fmean(each.var(0, ddof=1).sum() / len(each) for each in found))
    signal = (means.mean(0) ** 2).sum() - spread / len(found)
    for number in (8, 2):
        alone, best = (1 + (within + between) / signal / number, 1 + between / signal / number)
        print(
            f"{name}, {number} groups a step: cosine {alone**-0.5:.3f}, without noise in tasks {best**-0.5:.3f}: "
            f"at most {(alone / best) ** 0.5:.2f} times as fast"
        )
    print(f"n* {(within + between) / signal:.2f}, of which between tasks {between / signal:.2f}")


def gradient(policy: Any, group: TrajectoryGroup) -> np.ndarray:
    """The policy gradient of one group without a critic, projected at random."""
    weights = [each for each in policy.model.parameters() if each.requires_grad]
    size = sum(each.numel() for each in weights)
    draw = torch.Generator().manual_seed(0)
    to = torch.randint(0, PROJECTED, (size,), generator=draw)
    sign = torch.randint(0, 2, (size,), generator=draw) * 2.0 - 1
    rewards = [member.reward or 0.0 for member in group]
    found = torch.zeros(PROJECTED)
    for member, reward in zip(group, rewards, strict=True):
        slope = torch.autograd.grad(trained_logprobs(policy, sequences(member)).sum(), weights)
        flat = torch.cat([each.flatten() for each in slope]) * (reward - fmean(rewards)) / SIZE
        found.index_add_(0, to, flat * sign)
    return found.numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    embedded = parts.add_parser("embedded")
    embedded.add_argument("--scenarios", nargs="+", choices=DESKS, default=[*DESKS])
    embedded.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    embedded.add_argument("--gae-lambda", default="0.5")
    embedded.add_argument("--results", type=Path, required=True, help="JSON lines, one for each run that is done")
    parts.add_parser("chain").add_argument("--chart", type=Path, help="SVG of the curves")
    parts.add_parser("tokens")
    parts.add_parser("bound").add_argument("scenario", choices=CLONED)
    options = parser.parse_args()
    match options.part:
        case "embedded":
            run_embedded(options.scenarios, options.gae_lambda, options.seeds, options.results)
        case "chain":
            run_chain(40, options.chart)
        case "tokens":
            asyncio.run(run_tokens())
        case _:
            asyncio.run(run_bound(options.scenario))


if __name__ == "__main__":
    main()
