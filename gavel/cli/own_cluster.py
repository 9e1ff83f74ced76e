"""A cluster that is this machine, for the time of one command."""

import contextlib
import os
from collections.abc import AsyncGenerator
from pathlib import Path

from gavel.trainer.backends.remote.client import RemoteBackend
from gavel.trainer.backends.skypilot.backend import SkyPilotBackend
from gavel.trainer.backends.skypilot.this_machine import ThisMachine


@contextlib.asynccontextmanager
async def own_cluster(runs: Path, *, slots: int, max_context: int) -> AsyncGenerator[RemoteBackend]:
    """Starts what a cluster runs, and ends it. Raises `ClusterError` when it does not start."""
    backend = await SkyPilotBackend.launch(
        f"demo-{os.getpid()}",
        None,
        host=ThisMachine(),
        runs=str(runs),
        slots=slots,
        max_context=max_context,
        say=lambda _: None,
    )
    try:
        yield backend
    finally:
        await backend.down()
