"""Does credit for single turns help? Training with `advantage="critic"` beside training without, and where it stops.

    OMP_NUM_THREADS=1 python benchmarks/turn_credit.py desks --scenario returns_desk --seeds 0 1 2 3 4
    python benchmarks/turn_credit.py chain                   episodes of 2 to 64 turns, in a minute
    python benchmarks/turn_credit.py tokens                  what states add to a judge's reply

desks: the embedded policy learns from the judge `stand-in`, with as many calls in every leg. A leg is `mean`, or a
lambda of the critic; `noisy` has states whose correlation with the stand-in's own is 0.3, `leak` states that are half
the final score. A step's success is the share of its own attempts; "to .85" is the first step at which the mean of the
last 192 attempts is there.

chain: one decision at each of T turns, two actions, the attempt succeeds if the right one is chosen at one turn that is
hidden from the policy and the same in all episodes; all other turns do nothing. The policy is a table of logits, the
judge `distorted` truth. So nothing but the estimator differs, and the expected gradient is known.
"""

import argparse
import asyncio
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

from gavel.judge.config import JudgeConfig
from gavel.judge.judge import Judge
from gavel.judge.offline import stand_in
from gavel.judge.offline.simulated import Bias, distorted
from gavel.judge.prompt.truncate import count_tokens
from gavel.judge.stats import expected_scores
from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import find_scenario
from gavel.scenarios.scripted_agent import played_by, players_of
from gavel.trainer.config import LoopConfig, TrainConfig
from gavel.trainer.data.advantages import critic_advantages

RATES = {"returns_desk": 4e-3, "booking_desk": 2e-3}
POLICIES = {"returns_desk": "embedded/returns-desk", "booking_desk": "embedded/booking-desk"}
LEVEL, WINDOW = 0.85, 3
DISTORTIONS = {"noisy": Bias(state_correlation=0.3), "leak": Bias(state_leak=0.5)}
FIGURES = ("success", "judge_score", "critic/lambda", "health/states_explained", "health/states_correlation")


class Distorted:
    """The stand-in, whose states are distorted."""

    def __init__(self, bias: Bias, seed: int) -> None:
        self.bias, self.seed = bias, seed
        self.__qualname__ = "distorted stand-in"

    async def __call__(self, messages: Sequence[Message], schema: Mapping[str, Any]) -> str:
        reply = stand_in.reply("stand-in", messages)
        told = json.loads(reply)["scores"]
        scores = {each["trajectory_id"]: float(each["score"]) for each in told}
        true = {each["trajectory_id"]: [state / 100 for state in each["states"][:-1]] for each in told}
        random = Random(f"{self.seed}/{sorted(scores.items())}/{messages[-1]['content'][:200]}")
        seen = distorted(true, scores, self.bias, random)
        for each in told:
            each["states"] = [round(100 * state) for state in seen[each["trajectory_id"]]]
        return json.dumps({"scores": told})


async def learn(
    name: str,
    leg: str,
    seed: int,
    steps: int,
    directory: str,
    *,
    tasks: int = 8,
    group: int = 8,
    rate: float = 0.0,
) -> dict[str, Any]:
    """One training run. `leg`: `mean`, or a lambda, or a lambda and a distortion: `1,noisy`."""
    from gavel.trainer.backends.local import LocalBackend
    from gavel.trainer.loop.train_loop import train_scenario
    from gavel.trainer.model import TrainableModel

    scenario = find_scenario(name)
    gae_lambda, _, distortion = leg.partition(",")
    critic: dict[str, Any] = {} if leg == "mean" else {"advantage": "critic", "gae_lambda": float(gae_lambda)}
    model: Any = Distorted(DISTORTIONS[distortion], seed) if distortion else "stand-in"
    judge = Judge(model, rubric=scenario.rubric, config=JudgeConfig(states=leg != "mean", seed=seed))
    loop = LoopConfig(
        steps=steps,
        tasks_per_step=tasks,
        group_size=group,
        max_tokens=64,
        seed=seed,
        evaluate_every=steps,
        final_tasks=256,
        concurrency=256,
    )
    train = TrainConfig(learning_rate=rate or RATES[name], warmup_steps=3, total_steps=steps, **critic)
    learner = TrainableModel(name=f"{leg}-{seed}", project=name, base_model=POLICIES[name])
    started = time.process_time()
    async with LocalBackend(directory, max_context=1024) as backend:
        await learner.register(backend)
        await train_scenario(learner, scenario, judge, loop, train)
        rows = backend.history(learner, "train")
        final = backend.history(learner, "held_out")[-1]["success"]
        alarms = [row["alarm"] for row in backend.history(learner, "alarms")]
    found: dict[str, Any] = {"scenario": name, "leg": leg, "seed": seed, "final": final, "alarms": alarms}
    found |= {"tasks": tasks, "group": group, "rate": train.learning_rate}
    found |= {figure: [round(row[figure], 3) for row in rows if figure in row] for figure in FIGURES}
    return found | {
        "to": steps_to(found["success"], window=math.ceil(WINDOW * 64 / (tasks * group))),
        "cpu_seconds": round(time.process_time() - started),
    }


def steps_to(successes: Sequence[float], level: float = LEVEL, window: int = WINDOW) -> int | None:
    """The first step (from 1) at which the mean over the window that it ends is at the level."""
    ends = range(window, len(successes) + 1)
    return next((end for end in ends if fmean(successes[end - window : end]) >= level), None)


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
    for name in POLICIES:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["desks", "chain", "tokens"])
    parser.add_argument("--scenario", choices=RATES, default="returns_desk")
    parser.add_argument("--legs", nargs="+", default=["mean", "0.5"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=8, help="groups of a step: judge calls, by the orders")
    parser.add_argument("--group", type=int, default=8, help="attempts of a group")
    parser.add_argument("--rate", type=float, default=0.0, help="learning rate; default: the scenario's")
    parser.add_argument("--chart", type=Path, help="SVG of the chain's curves")
    options = parser.parse_args()
    if options.part == "chain":
        return run_chain(40, options.chart)
    if options.part == "tokens":
        return asyncio.run(run_tokens())
    for seed in options.seeds:
        for leg in options.legs:
            with tempfile.TemporaryDirectory() as directory:
                found = asyncio.run(
                    learn(
                        options.scenario,
                        leg,
                        seed,
                        options.steps,
                        directory,
                        tasks=options.tasks,
                        group=options.group,
                        rate=options.rate,
                    )
                )
            print(json.dumps(found), flush=True)
    return None


if __name__ == "__main__":
    main()
