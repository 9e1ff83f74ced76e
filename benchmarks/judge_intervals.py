"""How often the 90 % interval of a score holds the score that the same judge would give over all orders.

    python benchmarks/judge_intervals.py --json

Every judge is simulated (`engine_quality.py`) and asked through the engine, with 2, 4 and 8 orders. What it
would say over all orders is its mean over `--truth` further orders of the same group. Columns, in one run:

    naive      the spread of a member's own votes, sd/√n, times 1.645 (what a mean of votes is usually given)
    naive t    the same with Student's t
    group      the engine's standard error, pooled over the group
    prior      the same with a prior fitted on `--prior` other groups beforehand

Exits with 1 when a row of the engine is outside 87 to 93 %.
"""

import argparse
import asyncio
import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from engine_quality import POSITION_BIASED, Bias, Latent, SimulatedGroup, SimulatedJudge, simulated_groups

from gavel.judge.audit.votes import fit_noise_prior
from gavel.judge.config import JudgeConfig
from gavel.judge.judge import Judge
from gavel.judge.panel.modes import orders as orders_of
from gavel.judge.stats import mean_and_error, score_interval
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import Judgement

KINDS = {
    "biased": POSITION_BIASED,
    "noisy": Bias(noise=1.0, step=0.05),
    "steady": Bias(slope=0.3, noise=0.15, step=0.01),
    "harsh": replace(POSITION_BIASED, severity=-1.0),
    "compressed": replace(POSITION_BIASED, compression=0.5),
    "coarse": replace(POSITION_BIASED, step=0.1),
    "steep": Bias(slope=1.0, noise=0.4, step=0.05),
    "U-shaped": Bias(u=0.6, noise=0.5, step=0.05),
    "contrast": Bias(halo=-2.0, noise=0.5, step=0.05),
    "first-shown": Bias(first=1.0, noise=0.5, step=0.05),
}
LOW, HIGH = 0.87, 0.93
LEVEL = 0.9

Interval = tuple[float, float] | None


def naive(judgement: Judgement, student: bool) -> Interval:
    """From the member's own votes alone."""
    votes = [vote.score for vote in judgement.votes]
    mean, error = mean_and_error(votes, [1.0] * len(votes))
    freedom = len(votes) - 1 if student else None
    return score_interval(Judgement(score=mean, standard_error=error, degrees_of_freedom=freedom), LEVEL)


async def judged(judge: Judge, groups: Sequence[SimulatedGroup]) -> list[TrajectoryGroup]:
    return [await judge.score(simulated.group) for simulated in groups]


def over_all_orders(model: SimulatedJudge, simulated: SimulatedGroup, count: int) -> list[float]:
    """The judge's mean score of each member, which hardly depends on any one order."""
    texts = [str(trajectory.messages()[0]["content"]) for trajectory in simulated.group]
    return model.mean_scores(texts, orders_of(len(texts), count, texts[0]), "all orders")


async def report(count: int, members: int, truth: int, prior_groups: int, seed: int) -> list[dict[str, Any]]:
    table: dict[str, Latent] = {}
    groups, others = simulated_groups(count, members, seed, table), simulated_groups(prior_groups, members, -1, table)
    rows: list[dict[str, Any]] = []
    for kind, bias in KINDS.items():
        model = SimulatedJudge(table, bias, seed=seed)
        everything = [over_all_orders(model, simulated, truth) for simulated in groups]
        for orders in (2, 4, 8):
            started = time.monotonic()
            alone = await judged(Judge(model, orders=orders, seed=seed), groups)
            prior = fit_noise_prior(await judged(Judge(model, orders=orders, seed=seed), others))
            calibrated = Judge(model, orders=orders, seed=seed, config=JudgeConfig(noise_prior=prior))
            with_prior = await judged(calibrated, groups)
            covered: dict[str, list[bool]] = {}
            widths: dict[str, list[float]] = {}
            for whole, one, other in zip(everything, alone, with_prior, strict=True):
                for true, mine, pooled in zip(whole, one, other, strict=True):
                    if not (mine.judgement and pooled.judgement):
                        raise RuntimeError("a simulated judge without faults left a member unscored")
                    ways: dict[str, Interval] = {
                        "naive": naive(mine.judgement, student=False),
                        "naive t": naive(mine.judgement, student=True),
                        "group": score_interval(mine.judgement, LEVEL),
                        "prior": score_interval(pooled.judgement, LEVEL),
                    }
                    for name, interval in ways.items():
                        low, high = interval or (math.nan, math.nan)
                        covered.setdefault(name, []).append(low - 1e-9 <= true <= high + 1e-9)
                        widths.setdefault(name, []).append(high - low)
            row: dict[str, Any] = {"judge": kind, "orders": orders, "members": members}
            row |= {name: round(fmean(held), 4) for name, held in covered.items()}
            row |= {f"width, {name}": round(fmean(of), 4) for name, of in widths.items()}
            row["of width 0, naive"] = round(fmean(float(width < 1e-9) for width in widths["naive"]), 4)
            row["prior df"] = round(prior.df, 1) if prior else None
            rows.append(row | {"seconds": round(time.monotonic() - started, 1)})
    return rows


def missed_bars(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [
        f"{row['judge']}, {row['orders']} orders: {name} holds {row[name]:.1%}, not {LOW:.0%} to {HIGH:.0%}"
        for row in rows
        for name in ("group", "prior")
        if not LOW <= row[name] <= HIGH
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=300)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--truth", type=int, default=512, help="orders that stand for all orders")
    parser.add_argument("--prior", type=int, default=32, help="groups that the prior is fitted on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = asyncio.run(report(arguments.groups, arguments.members, arguments.truth, arguments.prior, arguments.seed))
    missed = missed_bars(rows)
    if arguments.json:
        print(json.dumps({"rows": rows, "missed_bars": missed}, indent=1, ensure_ascii=False))
    else:
        for row in rows:
            held = "  ".join(f"{name} {row[name]:.3f}" for name in ("naive", "naive t", "group", "prior"))
            print(
                f"{row['judge']:11} {row['orders']} orders  {held}  width {row['width, group']:.3f}, with prior"
                f" {row['width, prior']:.3f}"
            )
        print("\n".join(missed) or "Every bar is met.")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
