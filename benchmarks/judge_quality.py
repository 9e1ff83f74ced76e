"""Accuracy and bias of the judge engine with a biased judge model, against simpler ways of asking the same model.

    python benchmarks/judge_quality.py --json

The judge model is simulated; everything between it and the reward is the engine itself: prompts, labels, orders,
replies, votes. `engine_quality.py` has the judge's formula and defines the figures; `±` is the standard error of tau.
Takes about 4 minutes on one core. Exits with 1 when a figure misses its bar.
"""

import argparse
import asyncio
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Literal

from engine_quality import (
    POSITION_BIASED,
    Bias,
    Faults,
    Latent,
    Scorer,
    SimulatedGroup,
    SimulatedJudge,
    engine_scorer,
    measure_quality,
    prompt_scorer,
    simulated_groups,
)

from gavel.judge.judge import Judge
from gavel.judge.panel.anchors import Anchor
from gavel.judge.prompt.truncate import count_tokens
from gavel.llm.types import Message, text_of
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

LEVELS = 10
WIDTH = 1.0
"""Standard deviation of a distribution that a simulated judge answers with, in levels."""
Form = Literal["groupwise", "decisions", "readout"]

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
"""Noise at 32 members is 1.7 times that at 8, which gives one long prompt about the tau of the reference, .657."""
CURVED = replace(POSITION_BIASED, curve=0.5)
HARSH = replace(POSITION_BIASED, severity=-0.5)
NARROW = replace(POSITION_BIASED, noise=0.3, compression=0.75, step=0.01)
WIDE = Bias(slope=1.0, noise=2.5, step=0.05)
"""A good judge that uses a quarter of the scale, and a poor one that uses all of it."""
LENIENT = replace(POSITION_BIASED, severity=0.5, compression=0.3)
CONTRAST = Bias(halo=-2.0, noise=0.5, step=0.05)
"""Scores a member by its contrast with the one before it."""
SHARES = (0.0, 0.5)
"""Shares of the noise's variance that are luck in sampling words, from which distributions are free."""
SHIFT = 0.7
"""Shift of the mean quality, up or down, of the other members of a group in the comparisons of anchors."""
BARS = {
    "engine, orders=2": {"tau": 0.76},
    "engine, orders=4": {
        "tau": 0.83,
        "advantage_correlation": 0.94,
        "position_slope": 0.02,
        "arrival_slope": 0.02,
        "advantage_with_length": 0.03,
    },
    "engine, orders=8": {"tau": 0.88},
    "jury: good narrow, poor wide, 2 orders each": {"tau": 0.683},
}
"""Minimum agreement; maximum absolute bias."""


class TokenCountingJudge:
    """A simulated judge for one mode, which counts the tokens of its prompts and schemas.

    In the modes `decisions` and `readout` a score is the middle of a normal distribution over ten levels. How much of a
    judge's noise is luck in sampling its words, which a distribution lacks, is not known: `sampling` is that share of
    the noise's variance.
    """

    def __init__(
        self, members: Mapping[str, Latent], bias: Bias, form: Form, sampling: float = 0.0, seed: int = 0
    ) -> None:
        if form != "groupwise":
            bias = replace(bias, step=0.0, noise=bias.noise * math.sqrt(1 - sampling))
        self._judge = SimulatedJudge(members, bias, name=form, seed=seed)
        self._form: Form = form
        self.tokens = 0
        self.__qualname__ = form

    async def __call__(self, messages: Sequence[Message], schema: Mapping[str, Any]) -> str:
        self.tokens += count_tokens("\n".join([*map(text_of, messages), json.dumps(schema)]))
        words = await self._judge(messages, schema)
        if self._form == "groupwise":
            return words
        scores = {entry["trajectory_id"]: entry["score"] for entry in json.loads(words)["scores"]}
        distributions = {label: distribution(score) for label, score in scores.items()}
        if self._form == "decisions":
            return json.dumps({"answers": [{"name": n, "probabilities": p} for n, p in distributions.items()]})
        return json.dumps(_with_tokens(distributions))


def distribution(score: float) -> list[float]:
    """Over the levels, around a score from 0 to 1."""
    weights = [math.exp(-(((level - score * (LEVELS - 1)) / WIDTH) ** 2) / 2) for level in range(LEVELS)]
    return [weight / math.fsum(weights) for weight in weights]


def _with_tokens(distributions: Mapping[str, list[float]]) -> dict[str, Any]:
    """A reply as `gavel.llm.response` writes it: the likeliest digits, with the alternatives in their places."""
    tokens: list[tuple[str, list[tuple[str, float]]]] = []
    for number, (label, probabilities) in enumerate(distributions.items()):
        before = f'{", " if number else "{"}"{label}":'
        likeliest = str(max(range(LEVELS), key=probabilities.__getitem__))
        tokens += [(before, []), (likeliest, [(str(n), math.log(p)) for n, p in enumerate(probabilities)])]
    tokens.append(("}", []))
    return {"text": "".join(token for token, _ in tokens), "tokens": tokens}


def groups_with_shared_member(
    count: int, seed: int, table: dict[str, Latent]
) -> list[tuple[SimulatedGroup, SimulatedGroup]]:
    """Pairs of groups of 8, one weak and one strong, that share one trajectory, at position n mod 8 in pair n."""
    drawn = simulated_groups(2 * count, 8, seed, table)
    return [
        (_with_shared_member(weak, weak, n % 8, -SHIFT, table), _with_shared_member(weak, strong, n % 8, SHIFT, table))
        for n, (weak, strong) in enumerate(zip(drawn[::2], drawn[1::2], strict=True))
    ]


def _with_shared_member(
    home: SimulatedGroup, case: SimulatedGroup, common: int, shift: float, table: dict[str, Latent]
) -> SimulatedGroup:
    """`case` with every quality raised by `shift`, and the member at position `common` replaced by that of `home`."""
    group, lengths, qualities = list(case.group.trajectories), list(case.lengths), [q + shift for q in case.qualities]
    group[common], lengths[common] = home.group.trajectories[common], home.lengths[common]
    qualities[common] = home.qualities[common]
    for trajectory, quality in zip(group, qualities, strict=True):
        table[trajectory.messages()[0]["content"].split()[0]] = Latent(quality)
    return SimulatedGroup(TrajectoryGroup(group), tuple(qualities), tuple(lengths))


def anchors(table: dict[str, Latent]) -> list[Anchor]:
    """Two anchors, with the scores of a judge without bias or noise."""
    made: list[Anchor] = []
    for name, quality in (("sim-weak", -1.5), ("sim-strong", 1.5)):
        table[name] = Latent(quality)
        text = f"{name} {'.' * (70 - len(name))}"
        trajectory = Trajectory(messages_and_choices=[{"role": "assistant", "content": text}])
        made.append(Anchor(trajectory, 1 / (1 + math.exp(-quality))))
    return made


async def context_effect(
    weak: Scorer, strong: Scorer, pairs: Sequence[tuple[SimulatedGroup, SimulatedGroup]]
) -> dict[str, float]:
    """Mean distance of the shared trajectory's two scores, and its mean gain from the weak to the strong group."""
    gains: list[float] = []
    for n, (one, other) in enumerate(pairs):
        here, there = (await weak(one)).rewards[n % 8], (await strong(other)).rewards[n % 8]
        if here is not None and there is not None:
            gains.append(there - here)
    return {"same_trajectory_apart": round(fmean(map(abs, gains)), 4), "same_trajectory_gain": round(fmean(gains), 4)}


async def report(count: int, seed: int) -> list[dict[str, Any]]:
    table: dict[str, Latent] = {}
    few = max(count // 5, 2)
    of_8, of_32 = simulated_groups(count, 8, seed, table), simulated_groups(few, 32, seed, table)

    def judge(bias=POSITION_BIASED, faults: Faults | None = None, name: str = "one") -> SimulatedJudge:
        return SimulatedJudge(table, bias, faults, name=name, seed=seed)

    rows: list[dict[str, Any]] = []

    async def row(what: str, scorer: Scorer, groups: Sequence[SimulatedGroup], **more: Any) -> None:
        started = time.monotonic()
        figures = (await measure_quality(scorer, groups)).figures()
        rows.append({"what": what, **figures, **more, "seconds": round(time.monotonic() - started, 1)})

    await row("1 call in order of arrival", prompt_scorer(judge(), 1, in_order=True), of_8)
    await row("4 calls in order of arrival", prompt_scorer(judge(), 4, in_order=True), of_8)
    for count in (1, 2, 4, 8):
        balanced = Judge(judge(), orders=count)
        await row(f"engine, orders={count}", engine_scorer(balanced), of_8)
        rows[-1]["slot_slope_of_votes"] = round(balanced.position_bias[8].slope, 4)
        await row(
            f"contrast with the one before: orders={count}", engine_scorer(Judge(judge(CONTRAST), orders=count)), of_8
        )
    sorts = judge(faults=SORTS)
    await row(
        "30 % sorted replies: 1 call, read by position", prompt_scorer(sorts, 1, by_position=True, in_order=True), of_8
    )
    await row(
        "30 % sorted replies: 4 calls, read by position", prompt_scorer(sorts, 4, by_position=True, in_order=True), of_8
    )
    await row("30 % sorted replies: engine, orders=4", engine_scorer(Judge(sorts, orders=4)), of_8)
    await row("45 % of calls faulty: engine, orders=4", engine_scorer(Judge(judge(faults=EVERY_FAULT), orders=4)), of_8)
    await row("taste .7: one judge, 3 calls", engine_scorer(Judge(judge(TASTE), orders=3)), of_8)
    three = [judge(TASTE, name=name) for name in ("one", "two", "three")]
    await row("taste .7: three judges, 1 call each", engine_scorer(Judge(three, orders=1)), of_8)
    narrow, wide, fair = judge(NARROW, name="narrow"), judge(WIDE, name="wide"), judge(name="fair")
    for name, jurors in (
        ("a good narrow judge", narrow),
        ("a poor wide judge", wide),
        ("jury: good narrow, poor wide", [narrow, wide]),
        ("jury: good narrow, fair", [narrow, fair]),
        ("jury: fair, poor wide", [fair, wide]),
    ):
        await row(f"{name}, 2 orders each", engine_scorer(Judge(jurors, orders=2)), of_8[:few])
    for bias, name in (
        (CROWDED, "G=32"),
        (replace(CROWDED, curve=1.0), "G=32, graded on a curve"),
        (POSITION_BIASED, "G=32, read as well as 8"),
    ):
        await row(f"{name}: one long prompt, 2 orders", prompt_scorer(judge(bias), 2), of_32)
        await row(f"{name}: engine (blocks), orders=2", engine_scorer(Judge(judge(bias), orders=2)), of_32)
    for members, groups in ((4, simulated_groups(few, 4, seed, table)), (8, of_8[:few])):
        calls = members * (members - 1)
        for name, options in (
            ("pairwise, orders=2", {"mode": "pairwise"}),
            (f"groupwise, as many calls ({calls})", {"orders": calls}),
            (f"groupwise, as many showings ({2 * members - 2} calls)", {"orders": 2 * members - 2}),
        ):
            await row(f"G={members}: {name}", engine_scorer(Judge(judge(), **options)), groups)
    for orders in (2, 4, 8):
        ways: list[tuple[Form, float]] = [("groupwise", 0), *((f, s) for f in ("decisions", "readout") for s in SHARES)]
        for mode, sampling in ways:
            asked = TokenCountingJudge(table, POSITION_BIASED, mode, sampling, seed)
            luck = "" if mode == "groupwise" else f", {sampling:.0%} of noise is sampling"
            name = f"{mode}, orders={orders}{luck}"
            await row(name, engine_scorer(Judge(asked, mode=mode, orders=orders)), of_8[:few])
            rows[-1]["tokens_per_group"] = round(asked.tokens / few)
    pairs = groups_with_shared_member(few, seed + 1, table)
    for name, options in (("groupwise", {}), ("anchored", {"anchors": anchors(table)})):
        for what, sides in (("graded on half a curve", (CURVED, CURVED)), ("harsh and lenient", (HARSH, LENIENT))):
            weak, strong = (engine_scorer(Judge(judge(bias), **options)) for bias in sides)
            apart = await context_effect(weak, strong, pairs)
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
    parser.add_argument(
        "--groups", type=int, default=1500, help="number of groups of 8; a fifth of it in the later rows"
    )
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
                + (f"  {row['tokens_per_group']:,} tokens" if "tokens_per_group" in row else "")
                + ("" if apart is None else f"  apart {apart:.3f} gain {row['same_trajectory_gain']:+.3f}")
            )
        print("\n".join(missed) or "Every bar is met.")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
