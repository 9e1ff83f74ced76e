"""Small training runs in processes of their own, for tests that kill them: `python loop_run.py`.

What is slow to import is imported once. Each line of standard input, `RUNS STEPS STALENESS`, is one run, in a fork of
this process: the first line of output is its process id, then it prints what happens, and `ended STATUS` (negative for
a signal) is the last line.
"""
# ruff: noqa: E402

import asyncio
import gc
import os
import sys
import traceback

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # a fork has one thread

gc.disable()  # searching for cycles takes half of the time that imports take

import torch
import uvicorn.lifespan.on
import uvicorn.protocols.http.httptools_impl
import uvicorn.server  # noqa: F401
from openai import AsyncOpenAI

from gavel.judge.judge import Judge
from gavel.llm.providers import load_litellm
from gavel.scenarios.scenario import find_scenario
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.config import LoopConfig, LoraSettings, TrainConfig
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.loop.evaluation import Evaluation
from gavel.trainer.loop.train_loop import Observer, StepReport, train_scenario
from gavel.trainer.model import TrainableModel
from gavel.trainer.policy.policy import Policy


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
        tasks_per_step=2,
        group_size=4,
        max_tokens=24,
        max_staleness=max_staleness,
        evaluate_every=2,
        evaluation_tasks=2,
        final_tasks=2,
    )
    async with LocalBackend(runs, versions=max_staleness + 1) as backend:
        await model.register(backend)
        print(f"start {await model.get_step()}", flush=True)
        judge = Judge("stand-in", rubric=scenario.rubric)
        await train_scenario(model, scenario, judge, loop, TrainConfig(learning_rate=1e-3), Telling())


def fork(runs: str, steps: int, max_staleness: int) -> int:
    """The status that the run ended with, negative for a signal."""
    child = os.fork()
    if not child:
        print(os.getpid(), flush=True)
        try:
            asyncio.run(run(runs, steps, max_staleness))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    load_litellm()
    AsyncOpenAI(api_key="none").chat.completions  # noqa: B018  libraries import parts of themselves when first used
    Policy(EMBEDDED_POLICY, LoraSettings(rank=4))
    list(find_scenario("returns_desk").tasks())
    gc.freeze()
    gc.enable()
    for line in sys.stdin:
        runs, steps, max_staleness = line.rsplit(" ", 2)
        print(f"ended {fork(runs, int(steps), int(max_staleness))}", flush=True)
