"""Trains over recorded groups, in processes that are killed."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.config import LoraSettings, TrainConfig
from tests.forkserver import forking
from tests.limits import HANG_SECONDS
from tests.trainer.conftest import a_model, registered

CHANGES = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate"}
OF_THE_WHOLE = 40
"""Steps that the schedule is made for, wherever a life ends."""


async def train(groups: Path, runs: Path, name: str, steps: int) -> None:
    recorded = list(TrajectoryStore(groups))
    config = TrainConfig(
        learning_rate=1e-3, warmup_steps=2, total_steps=OF_THE_WHOLE, decay="cosine", epochs=2, mini_batches=2
    )
    async with registered(runs, a_model(name, lora=LoraSettings(rank=4)), slots=4, max_context=512) as (model, backend):
        while True:
            step = await model.get_step()
            if not any(row["step"] == step for row in backend.history(model, "val")):
                await model.log([recorded[step % len(recorded)]], "val")
            if step >= steps:
                return
            await model.train([recorded[(2 * step + at) % len(recorded)] for at in range(2)], config)
            await model.delete_checkpoints(keep_last=2)


def die_at(count: int, below: Path) -> None:
    """Ends this process like a SIGKILL from outside, in front of its `count`-th change to a file of the run."""
    left = count

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        inside = str(arguments[0]).startswith(str(below)) if arguments else False
        if event == "open":
            _, _, flags = arguments
            changes = inside and isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))
        else:
            changes = event in CHANGES and (inside or not str(arguments[0]).startswith("/"))  # relative: to a folder
        if changes:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def live(groups: Path, runs: Path, name: str, steps: int, life: str) -> int:
    """The status that one life of a run ended with, negative for a signal.

    Each goes on from where the last one was killed. `whole` lets it finish,
    `file 12` lets it die in front of its 12th change to a file of the run.
    """
    kind, _, when = life.partition(" ")
    changes = int(when) if kind == "file" else 0
    process = forking().Process(target=_live, args=(groups, runs, name, steps, changes), daemon=True)
    process.start()
    process.join(HANG_SECONDS)
    assert process.exitcode is not None, "a run does not end"
    return process.exitcode


def _live(groups: Path, runs: Path, name: str, steps: int, changes: int) -> None:
    if changes:
        die_at(changes, runs / "tests" / name)
    asyncio.run(train(groups, runs, name, steps))
    os._exit(0)
