"""Small training runs in processes of their own, for tests that kill them."""

import asyncio
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from gavel.judge.judge import Judge
from gavel.scenarios.scenario import find_scenario
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.config import LoopConfig, TrainConfig
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.loop.evaluation import Evaluation
from gavel.trainer.loop.train_loop import Observer, StepReport, train_scenario
from gavel.trainer.model import TrainableModel
from tests.forkserver import forking
from tests.limits import HANG_SECONDS


def live(runs: Path, steps: int, max_staleness: int = 0, until: str | None = None) -> list[str]:
    """What a run told and, last, how it ended; it is killed when it tells `until` after a step."""
    context = forking()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_live, args=(sender, runs, steps, max_staleness), daemon=True)
    process.start()
    sender.close()
    lines = list[str]()
    try:
        while True:
            assert receiver.poll(HANG_SECONDS), f"the run hangs: {lines}"
            lines.append(receiver.recv())
            if lines[-1] == until and "stepped 1" in lines:
                process.kill()
    except EOFError:
        process.join(HANG_SECONDS)
    finally:
        process.kill()
    return [*lines, f"ended {process.exitcode}"]


def _live(sender: Connection, runs: Path, steps: int, max_staleness: int) -> None:
    asyncio.run(_run(sender.send, runs, steps, max_staleness))


class Telling(Observer):
    """Tells what happens, for the parent to act on."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def doing(self, what: str) -> None:
        self._tell(f"doing {what}")

    def stepped(self, report: StepReport) -> None:
        self._tell(f"stepped {report.result.step}")

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        self._tell(f"evaluated {step}")


async def _run(tell: Callable[[str], None], runs: Path, steps: int, max_staleness: int) -> None:
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
        tell(f"start {await model.get_step()}")
        judge = Judge("stand-in", rubric=scenario.rubric)
        await train_scenario(model, scenario, judge, loop, TrainConfig(learning_rate=1e-3), Telling(tell))
