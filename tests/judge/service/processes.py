"""The service in processes of their own, asked over loopback and killed without warning.

They are forked from one that has imported everything, so that a start takes no seconds.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from gavel.judge.service.config import ServiceConfig
from gavel.judge.service.http.server import serve
from tests.forkserver import forking
from tests.limits import HANG_SECONDS


@dataclass
class Served:
    """A running service."""

    process: BaseProcess
    url: str

    def kill(self) -> None:
        """Ends it at once: nothing is written, nothing is closed."""
        self.process.kill()
        self.process.join(HANG_SECONDS)

    def stop(self) -> int | None:
        """Ends it as a supervisor does; gives its exit status."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGTERM)
        self.process.join(HANG_SECONDS)
        return self.process.exitcode


@asynccontextmanager
async def served(config: ServiceConfig) -> AsyncIterator[Served]:
    """The service; it is killed at the end of the block, if it still runs. Give it the port 0."""
    context = forking()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(config.model_dump_json(), sender), daemon=True)
    process.start()
    sender.close()
    try:
        if not await asyncio.to_thread(receiver.poll, HANG_SECONDS):
            raise AssertionError("the service did not start")
        yield Served(process, receiver.recv())
    finally:
        receiver.close()
        if process.is_alive():
            process.kill()
        await asyncio.to_thread(process.join, HANG_SECONDS)


def _run(config: str, sender: Connection) -> None:
    def announce(line: str) -> None:
        sender.send(next(word for word in line.split() if word.startswith("http://")))

    serve(ServiceConfig.model_validate_json(config), announce)
