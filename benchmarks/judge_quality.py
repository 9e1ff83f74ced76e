"""What the judge engine makes of a biased judge, beside simpler ways of asking the same judge.

    python benchmarks/judge_quality.py --json

The judge is simulated (`judge.simulate` states the model); everything between it and the reward is the engine's own:
prompts, labels, orders, replies, votes. Agents that finish first are shorter and arrive first, and none of that says
anything about their quality. A figure of a group is averaged over groups; `±` is its standard error. Three minutes on
one core. Exits with 1 when a bar is missed.
"""

import argparse
import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean, stdev
from typing import Any

from judge.agreement import mean_kendall_tau
from judge.anchors import Anchor
from judge.ballot import centred_places, orders
from judge.blocks import BLOCK, LARGEST
from judge.canonical import CanonicalGroup, canonicalise
from judge.judge import Judge
from judge.ruler import JudgeOptions
from judge.simulate import POSITION_BIASED, Faults, Latent, SimulatedJudge
from judge.transcript import draw_marks, render_transcripts
from judge.verdict import read_verdict
from scenarios.trajectory import Trajectory, TrajectoryGroup

SORTS = Faults(sorted_reply=0.3)
EVERY_FAULT = Faults(
    sorted_reply=0.1,
    dropped_label=0.05,
    doubled_label=0.05,
    other_scale=0.05,
    refusal=0.05,
    truncation=0.05,
    timeout=0.05,
    rate_limit=0.05,
)
TASTE = replace(POSITION_BIASED, idiosyncrasy=0.7)
CROWDED = replace(POSITION_BIASED, crowding=0.375)
"""Noise at 32 members is 1.7 times that at 8: so that one long prompt has about the tau of the reference, .657."""
CURVED = replace(POSITION_BIASED, curve=0.5)
HARSH = replace(POSITION_BIASED, severity=-0.5)
LENIENT = replace(POSITION_BIASED, severity=0.5, compression=0.3)
BETTER = 0.7
"""By how much the mean quality of a group is above 0, or below, where companies are compared."""
BARS = {
    "engine, orders=2": {"tau": 0.76},
    "engine, orders=4": {
        "tau": 0.83,
        "advantage_correlation": 0.94,
        "slot_slope": 0.02,
        "arrival_slope": 0.02,
        "advantage_with_length": 0.03,
    },
    "engine, orders=8": {"tau": 0.88},
}
"""Least agreement, and greatest absolute leak."""


@dataclass(frozen=True, slots=True)
class Case:
    """A group in order of arrival, with what is true of its members."""

    group: TrajectoryGroup
    qualities: tuple[float, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    rewards: Sequence[float | None]
    places: Sequence[float]
    """Where each member stood in the first prompt that showed it and was answered, from -1 (first) to 1."""


Scorer = Callable[[Case], Awaitable[Outcome]]


def cases(count: int, members: int, seed: int, table: dict[str, Latent]) -> list[Case]:
    """Random groups, whose members are entered in the judges' table."""
    random = Random(f"{seed}/{members}")
    made: list[Case] = []
    for number in range(count):
        ids = [f"sim-{members}x{number}x{random.randrange(16**6):06x}" for _ in range(members)]
        latents = [Latent(random.gauss()) for _ in ids]
        lengths = sorted(random.randint(20, 120) for _ in ids)
        table.update(zip(ids, latents, strict=True))
        texts = [f"{name} {'.' * (length - len(name))}" for name, length in zip(ids, lengths, strict=True)]
        group = TrajectoryGroup(Trajectory(messages_and_choices=[{"role": "assistant", "content": t}]) for t in texts)
        made.append(Case(group, tuple(latent.quality for latent in latents), tuple(map(len, texts))))
    return made


def companies(count: int, seed: int, table: dict[str, Latent]) -> list[tuple[Case, Case]]:
    """Pairs of groups of 8, one of weak and one of strong members, that have one trajectory in common.

    In the n-th pair it arrives in the (n mod 8)-th place.
    """
    drawn = cases(2 * count, 8, seed, table)
    return [
        (_in_company(weak, weak, n % 8, -BETTER, table), _in_company(weak, strong, n % 8, BETTER, table))
        for n, (weak, strong) in enumerate(zip(drawn[::2], drawn[1::2], strict=True))
    ]


def _in_company(home: Case, case: Case, common: int, better: float, table: dict[str, Latent]) -> Case:
    """`case` with the member of `home` in the place `common`, and all others better."""
    group, lengths, qualities = list(case.group.trajectories), list(case.lengths), [q + better for q in case.qualities]
    group[common], lengths[common] = home.group.trajectories[common], home.lengths[common]
    qualities[common] = home.qualities[common]
    for trajectory, quality in zip(group, qualities, strict=True):
        table[trajectory.messages()[0]["content"].split()[0]] = Latent(quality)
    return Case(TrajectoryGroup(group), tuple(qualities), tuple(lengths))


def anchors(table: dict[str, Latent]) -> list[Anchor]:
    """Two, with the scores that a judge without faults gives them."""
    made: list[Anchor] = []
    for name, quality in (("sim-weak", -1.5), ("sim-strong", 1.5)):
        table[name] = Latent(quality)
        text = f"{name} {'.' * (70 - len(name))}"
        trajectory = Trajectory(messages_and_choices=[{"role": "assistant", "content": text}])
        made.append(Anchor(trajectory, 1 / (1 + math.exp(-quality))))
    return made


async def elsewhere(weak: Scorer, strong: Scorer, pairs: Sequence[tuple[Case, Case]]) -> dict[str, float]:
    """How far apart the two scores of the common trajectory are, and by how much it gains in strong company."""
    gains: list[float] = []
    for n, (one, other) in enumerate(pairs):
        here, there = (await weak(one)).rewards[n % 8], (await strong(other)).rewards[n % 8]
        if here is not None and there is not None:
            gains.append(there - here)
    return {"same_trajectory_apart": round(fmean(map(abs, gains)), 4), "same_trajectory_gain": round(fmean(gains), 4)}


def engine(judge: Judge) -> Scorer:
    async def score(case: Case) -> Outcome:
        judged = await judge.score(case.group)
        members = len(judged) + len(judge.anchors)
        shown = centred_places(2 if judge.mode == "pairwise" else members if members <= LARGEST else BLOCK)
        votes = [trajectory.judgement.votes if trajectory.judgement else [] for trajectory in judged]
        return Outcome([t.reward for t in judged], [shown[of_one[0].slot] if of_one else 0.0 for of_one in votes])

    return score


def plainly(judge: SimulatedJudge, calls: int, *, by_position: bool = False) -> Scorer:
    """Every call in order of arrival; `by_position`: the n-th entry of the reply is taken for the n-th member."""

    async def score(case: Case) -> Outcome:
        group, arrival = _by_arrival(case)
        replies = [await _ask(judge, group, arrival, call) for call in range(calls)]
        if by_position:
            told = [[entry["score"] for entry in json.loads(reply)["scores"]] for reply, _ in replies]
        else:
            told = [[v.score for v in read_verdict(reply, labels).scores.values()] for reply, labels in replies]
        return Outcome([fmean(scores) for scores in zip(*told, strict=True)], centred_places(len(arrival)))

    return score


def in_one_prompt(judge: SimulatedJudge, count: int) -> Scorer:
    """The whole group in each of `count` balanced orders, however large it is."""

    async def score(case: Case) -> Outcome:
        group, arrival = _by_arrival(case)
        votes: list[list[float]] = [[] for _ in arrival]
        for call, order in enumerate(orders(len(arrival), count, group.digest)):
            reply, labels = await _ask(judge, group, [arrival[n] for n in order], call)
            for n, verdict in zip(order, read_verdict(reply, labels).scores.values(), strict=True):
                votes[n].append(verdict.score)
        shown, first = centred_places(len(arrival)), orders(len(arrival), count, group.digest)[0]
        return Outcome([fmean(scores) for scores in votes], [shown[first.index(n)] for n in range(len(arrival))])

    return score


def _by_arrival(case: Case) -> tuple[CanonicalGroup, list[int]]:
    """The canonical group, and its members in order of arrival."""
    group = canonicalise(dict(enumerate(case.group.trajectories)))
    arrival = {index: number for number, member in enumerate(group.members) for index in member.indices}
    return group, [arrival[index] for index in range(len(arrival))]


async def _ask(
    judge: SimulatedJudge, group: CanonicalGroup, order: Sequence[int], call: int
) -> tuple[str, tuple[str, ...]]:
    """The reply, and the labels in the order shown."""
    marks = draw_marks(group, Random(f"{group.digest}/{call}"))
    reply = await judge([{"role": "user", "content": render_transcripts(group, order, marks)}], {})
    return reply, tuple(marks.labels[member] for member in order)


async def measure(scorer: Scorer, groups: Sequence[Case]) -> dict[str, Any]:
    """How rewards agree with qualities, and what of arrival and length leaks into them.

    Advantages are a group's rewards (or qualities) less their mean, by their standard deviation. `arrival_slope` is
    the reward gained from the middle of the order of arrival to its end, `slot_slope` the same for the order of the
    first prompt.
    """
    started = time.monotonic()
    taus: list[float] = []
    advantages, true_advantages, lengths = [], [], []
    rewards, arrivals, places = [], [], []
    unscored = 0
    for case in groups:
        outcome = await scorer(case)
        scored = outcome.rewards
        kept = [n for n, reward in enumerate(scored) if reward is not None]
        unscored += len(scored) - len(kept)
        got = [reward for reward in scored if reward is not None]
        true = [case.qualities[n] for n in kept]
        if (tau := mean_kendall_tau([list(zip(got, true, strict=True))])) is None:
            continue
        taus.append(tau)
        advantages += _advantages(got)
        true_advantages += _advantages(true)
        lengths += _advantages([case.lengths[n] for n in kept])
        rewards += [reward - fmean(got) for reward in got]
        arrivals += [centred_places(len(scored))[n] for n in kept]
        places += [outcome.places[n] for n in kept]
    return {
        "tau": round(fmean(taus), 4),
        "±": round(stdev(taus) / math.sqrt(len(taus)), 4),
        "advantage_correlation": round(_correlation(advantages, true_advantages), 4),
        "advantage_with_length": round(_correlation(advantages, lengths), 4),
        "arrival_slope": round(_slope(rewards, arrivals), 4),
        "slot_slope": round(_slope(rewards, places), 4),
        "unscored_members": unscored,
        "groups": len(groups),
        "seconds": round(time.monotonic() - started, 1),
    }


def _advantages(values: Sequence[float]) -> list[float]:
    mean = fmean(values)
    spread = math.sqrt(fmean((value - mean) ** 2 for value in values))
    return [(value - mean) / spread if spread else 0.0 for value in values]


def _slope(ys: Sequence[float], xs: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(xs, ys, strict=True)) / math.fsum(x * x for x in xs)


def _correlation(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Of values whose means are 0."""
    return _slope(xs, ys) * math.sqrt(math.fsum(y * y for y in ys) / math.fsum(x * x for x in xs))


async def report(count: int, seed: int) -> list[dict[str, Any]]:
    table: dict[str, Latent] = {}
    few = max(count // 5, 2)
    of_8, of_32 = cases(count, 8, seed, table), cases(few, 32, seed, table)

    def judge(bias=POSITION_BIASED, faults: Faults | None = None, name: str = "one") -> SimulatedJudge:
        return SimulatedJudge(table, bias, faults, name=name, seed=seed)

    rows: list[dict[str, Any]] = []

    async def row(what: str, scorer: Scorer, groups: Sequence[Case], **more: Any) -> None:
        rows.append({"what": what, **await measure(scorer, groups), **more})

    await row("1 call in order of arrival", plainly(judge(), 1), of_8)
    await row("4 calls in order of arrival", plainly(judge(), 4), of_8)
    for count in (1, 2, 4, 8):
        balanced = Judge(judge(), orders=count)
        await row(f"engine, orders={count}", engine(balanced), of_8)
        rows[-1]["slot_means"] = [round(mean, 4) for mean in balanced.slots[8].means]
        rows[-1]["slot_slope_of_votes"] = round(balanced.slots[8].slope, 4)
    sorts = judge(faults=SORTS)
    await row("30 % sorted replies: 1 call, read by position", plainly(sorts, 1, by_position=True), of_8)
    await row("30 % sorted replies: 4 calls, read by position", plainly(sorts, 4, by_position=True), of_8)
    await row("30 % sorted replies: engine, orders=4", engine(Judge(sorts, orders=4)), of_8)
    await row("45 % of calls faulty: engine, orders=4", engine(Judge(judge(faults=EVERY_FAULT), orders=4)), of_8)
    await row("taste .7: one judge, 3 calls", engine(Judge(judge(TASTE), orders=3)), of_8)
    three = [judge(TASTE, name=name) for name in ("one", "two", "three")]
    await row("taste .7: three judges, 1 call each", engine(Judge(three, orders=1)), of_8)
    for bias, name in (
        (CROWDED, "G=32"),
        (replace(CROWDED, curve=1.0), "G=32, graded on a curve"),
        (POSITION_BIASED, "G=32, read as well as 8"),
    ):
        await row(f"{name}: one long prompt, 2 orders", in_one_prompt(judge(bias), 2), of_32)
        await row(f"{name}: engine (blocks), orders=2", engine(Judge(judge(bias), orders=2)), of_32)
    for members, groups in ((4, cases(few, 4, seed, table)), (8, of_8[:few])):
        calls = members * (members - 1)
        for name, options in (
            ("pairwise, orders=2", JudgeOptions(mode="pairwise")),
            (f"groupwise, as many calls ({calls})", JudgeOptions(orders=calls)),
            (f"groupwise, as many showings ({2 * members - 2} calls)", JudgeOptions(orders=2 * members - 2)),
        ):
            await row(f"G={members}: {name}", engine(Judge(judge(), **options)), groups)
    pairs = companies(few, seed + 1, table)
    for name, options in (("groupwise", JudgeOptions()), ("anchored", JudgeOptions(anchors=anchors(table)))):
        for what, sides in (("graded on half a curve", (CURVED, CURVED)), ("harsh and lenient", (HARSH, LENIENT))):
            weak, strong = (engine(Judge(judge(bias), **options)) for bias in sides)
            apart = await elsewhere(weak, strong, pairs)
            await row(f"{what}: {name}", weak, [one for one, _ in pairs], **apart)
    return rows


def missed_bars(rows: Sequence[dict[str, Any]]) -> list[str]:
    missed: list[str] = []
    for row in rows:
        for name, bar in BARS.get(row["what"], {}).items():
            met = row[name] >= bar if name in ("tau", "advantage_correlation") else abs(row[name]) <= bar
            if not met:
                missed.append(f"{row['what']}: {name} is {row[name]}, the bar is {bar}")
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=1500, help="of 8 members; a fifth as many in the later rows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = asyncio.run(report(arguments.groups, arguments.seed))
    missed = missed_bars(rows)
    if arguments.json:
        print(json.dumps({"rows": rows, "missed_bars": missed}, indent=1, ensure_ascii=False))
    else:
        for row in rows:
            apart = row.get("same_trajectory_apart")
            print(
                f"{row['what']:51} tau {row['tau']:.3f} ± {row['±']:.3f}  advantage {row['advantage_correlation']:.3f}"
                + ("" if apart is None else f"  apart {apart:.3f} gain {row['same_trajectory_gain']:+.3f}")
            )
        print("\n".join(missed) or "Every bar is met.")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
