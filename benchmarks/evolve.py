"""Does a policy improve by imitating its own best attempts? `gavel.evolve` on the returns desk, by both filters.

    OMP_NUM_THREADS=1 python benchmarks/evolve.py --runs runs/evolve            success and judge, 3 iterations each
    python benchmarks/evolve.py --filter judge --seeds 0 1 --runs runs/evolve   two seeds of one

success: attempts that succeed are imitated (AgentEvol, arXiv 2406.04151). judge: the attempt at each task that the
judge `stand-in` ranks highest, whatever it came to. Every iteration learns from the embedded base model. Held-out
success is a share of `--tasks` tasks; its standard error is sqrt(p(1 - p) / tasks). The same command goes on after a
kill. Exits with 1 when a run ends less than 3 standard errors of the difference above its beginning.
"""

import argparse
import asyncio
import math
import sys
import time
from pathlib import Path

from gavel.judge.judge import Judge
from gavel.scenarios.library.returns_desk import scenario
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.config import EvolveConfig, RewardName, SftConfig
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.loop.evolve import EVALUATION, Iteration, evolve
from gavel.trainer.model import TrainableModel

FILTERS: tuple[RewardName, ...] = ("success", "judge")
BAR = 3.0


async def run(
    runs: Path, chosen: RewardName, seed: int, tasks: int, iterations: int, train: SftConfig
) -> tuple[float, list[Iteration]]:
    """Success before the first iteration, and all iterations."""
    model = TrainableModel(name=f"{chosen}-{seed}", project=scenario.name, base_model=EMBEDDED_POLICY)
    config = EvolveConfig(iterations=iterations, reward={chosen: 1.0}, max_tokens=48, seed=seed, evaluation_tasks=tasks)
    judge = Judge("stand-in", rubric=scenario.rubric, seed=seed) if chosen == "judge" else None
    async with LocalBackend(str(runs), max_context=1024) as backend:
        await model.register(backend)
        found = await evolve(model, scenario, judge=judge, config=config, train=train)
        first = next(row["success"] for row in backend.history(model, EVALUATION) if row["step"] == 0)
    return first, found


def standard_error(share: float, tasks: int) -> float:
    return math.sqrt(share * (1 - share) / tasks)


def gain(before: float, after: float, tasks: int) -> float:
    """The difference in its standard errors."""
    error = math.hypot(standard_error(before, tasks), standard_error(after, tasks))
    return (after - before) / error if error else math.inf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", choices=FILTERS, help="only one of the two")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=256, help="held-out tasks")
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--runs", type=Path, default=Path("runs/evolve"))
    options = parser.parse_args()
    train = SftConfig(learning_rate=options.learning_rate, epochs=options.epochs, batch_size=options.batch_size)
    missed = False
    for chosen in [options.filter] if options.filter else FILTERS:
        for seed in options.seeds:
            started, wall = time.process_time(), time.monotonic()
            before, found = asyncio.run(run(options.runs, chosen, seed, options.tasks, options.iterations, train))
            for each in found[1:]:
                share = each.success or 0.0
                print(
                    f"{chosen} seed {seed} iteration {each.number}: {each.explored} attempts, {each.kept} imitated, "
                    f"step {each.last_step}, held-out success {share:.3f} ± {standard_error(share, options.tasks):.3f}"
                )
            after = found[-1].success or 0.0
            errors = gain(before, after, options.tasks)
            missed = missed or errors < BAR
            print(
                f"{chosen} seed {seed}: {before:.3f} ± {standard_error(before, options.tasks):.3f} → {after:.3f} ± "
                f"{standard_error(after, options.tasks):.3f} of {options.tasks}: {errors:.1f} standard errors of the "
                f"difference; {time.process_time() - started:.0f} CPU s, {time.monotonic() - wall:.0f} s",
                flush=True,
            )
    sys.exit(missed)


if __name__ == "__main__":
    main()
