"""What the judge engine makes of a biased judge, beside simpler ways of asking the same judge.

    python benchmarks/judge_quality.py --json

The judge is simulated (`judge.simulate` states the model); everything between it and the reward is the engine's own:
prompts, labels, orders, replies, votes. `judge.quality` says what is measured; `±` is the standard error of tau. Two
minutes on one core. Exits with 1 when a bar is missed.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from judge.judge import Judge
from judge.quality import Case, Scorer, cases, engine, in_one_prompt, measure, plainly
from judge.simulate import POSITION_BIASED, Faults, Latent, SimulatedJudge

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


async def report(count: int, seed: int) -> list[dict[str, Any]]:
    table: dict[str, Latent] = {}
    of_8, of_32 = cases(count, 8, seed, table), cases(max(count // 5, 2), 32, seed, table)

    def judge(bias=POSITION_BIASED, faults: Faults | None = None, name: str = "one") -> SimulatedJudge:
        return SimulatedJudge(table, bias, faults, name=name, seed=seed)

    rows: list[dict[str, Any]] = []

    async def row(what: str, scorer: Scorer, groups: Sequence[Case]) -> None:
        started = time.monotonic()
        figures = (await measure(scorer, groups)).figures()
        rows.append({"what": what, **figures, "seconds": round(time.monotonic() - started, 1)})

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
    parser.add_argument("--groups", type=int, default=1500, help="of 8 members; a fifth as many of 32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = asyncio.run(report(arguments.groups, arguments.seed))
    missed = missed_bars(rows)
    if arguments.json:
        print(json.dumps({"rows": rows, "missed_bars": missed}, indent=1, ensure_ascii=False))
    else:
        for row in rows:
            print(
                f"{row['what']:50} tau {row['tau']:.3f} ± {row['±']:.3f}  advantage {row['advantage_correlation']:.3f}"
            )
        print("\n".join(missed) or "Every bar is met.")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
