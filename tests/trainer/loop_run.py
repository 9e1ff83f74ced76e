"""A small training run in a process of its own, for tests that kill it: `python loop_run.py RUNS STEPS STALENESS`."""

import asyncio
import sys

from gavel.judge.judge import Judge
from gavel.scenarios.scenario import find_scenario
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.config import LoopConfig, TrainConfig
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.loop.evaluation import Evaluation
from gavel.trainer.loop.train_loop import Observer, StepReport, train_scenario
from gavel.trainer.model import TrainableModel


class Telling(Observer):
    """Prints what happens, for the parent to act on."""

    def doing(self, what: str) -> None:
        print(f"doing {what}", flush=True)

    def stepped(self, report: StepReport) -> None:
        print(f"stepped {report.result.step}", flush=True)

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        print(f"evaluated {step}", flush=True)


async def run(runs: str, steps: int, max_staleness: int) -> None:
    scenario = find_scenario("returns_desk")
    model = TrainableModel(name="small", project="tests", base_model=EMBEDDED_POLICY)
    loop = LoopConfig(
        steps=steps,
        tasks_per_step=3,
        group_size=4,
        max_tokens=48,
        max_staleness=max_staleness,
        evaluate_every=2,
        evaluation_tasks=6,
        final_tasks=6,
    )
    async with LocalBackend(runs, versions=max_staleness + 1) as backend:
        await model.register(backend)
        print(f"start {await model.get_step()}", flush=True)
        judge = Judge("stand-in", rubric=scenario.rubric)
        await train_scenario(model, scenario, judge, loop, TrainConfig(learning_rate=1e-3), Telling())


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
