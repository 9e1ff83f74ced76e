"""A training run through a `RemoteBackend`, in a process that can be killed and started again."""

import asyncio
import os
import uuid
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from gavel.judge.judge import Judge
from gavel.judge.panel.judgements import Progress
from gavel.judge.panel.standard_errors import NoisePrior
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.scenario import find_scenario
from gavel.trainer.backends.remote.client import RemoteBackend
from gavel.trainer.config import LoopConfig, TrainConfig
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.loop.train_loop import Observer, StepReport, train_scenario
from gavel.trainer.model import TrainableModel
from tests.backend_server import KEY
from tests.forkserver import forking

STEPS, TASKS, MEMBERS = 6, 2, 4


class LiveRun:
    """The client of one run; `judged` gets a line for every group that was judged, `stepped` for every step."""

    def __init__(self, url: str, directory: Path) -> None:
        self._url = url
        self.judged, self.stepped, self.log = (directory / name for name in ("judged", "stepped", "client.log"))
        for file in (self.judged, self.stepped):
            file.touch()

    def start(self) -> BaseProcess:
        """Returns when the model is registered, or the process has ended."""
        context = forking()
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=self._live, args=(sender,), daemon=True)
        process.start()
        sender.close()
        try:
            receiver.recv()
        except EOFError:
            process.join()
        return process

    def _live(self, sender: Connection) -> None:
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 2)
        asyncio.run(self._train(sender))

    async def _train(self, sender: Connection) -> None:
        scenario = find_scenario("returns_desk")
        model = TrainableModel(name="clerk", project="tests", base_model=EMBEDDED_POLICY)
        loop = LoopConfig(
            steps=STEPS,
            tasks_per_step=TASKS,
            group_size=MEMBERS,
            max_tokens=24,
            evaluate_every=2,
            evaluation_tasks=2,
            final_tasks=2,
            keep_checkpoints=STEPS,
        )
        async with RemoteBackend(self._url, KEY) as backend:
            await model.register(backend)
            sender.send("registered")
            judge = _MarkingJudge("stand-in", rubric=scenario.rubric)
            judge.file = self.judged
            await train_scenario(model, scenario, judge, loop, TrainConfig(learning_rate=1e-3), _Steps(self.stepped))


class _MarkingJudge(Judge):
    """Gives each group a mark, and notes it."""

    file: Path

    async def score(
        self, group: TrajectoryGroup, *, noise_prior: NoisePrior | None = None, progress: Progress | None = None
    ) -> TrajectoryGroup:
        judged = await super().score(group, noise_prior=noise_prior, progress=progress)
        mark = uuid.uuid4().hex
        judged.metadata["mark"] = mark
        _append(self.file, mark)
        return judged


class _Steps(Observer):
    def __init__(self, file: Path) -> None:
        self._file = file

    def stepped(self, report: StepReport) -> None:
        _append(self._file, str(report.result.step))


def _append(file: Path, line: str) -> None:
    with file.open("a") as out:
        out.write(line + "\n")
