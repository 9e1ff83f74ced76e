"""Several processes that serve on one port, for as many cores: `gavel serve --processes 4`.

    await serve_in_processes(config, print, silence_libraries)

This process listens, answers nothing itself, and starts another one for each that ends. They are forked from one that
has loaded the libraries, so that they share its memory and start at once. They spread the requests among themselves
(handover.py), and end when this process does, however it ends.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext

from prometheus_client import multiprocess

from gavel.base.errors import GavelError
from gavel.judge.service.config import ServiceConfig
from gavel.judge.service.engine.admission import Admission
from gavel.judge.service.engine.metrics import MULTIPROCESS_VARIABLE
from gavel.judge.service.errors import ServiceError
from gavel.judge.service.http.handover import Handover, Handovers
from gavel.judge.service.http.server import CLOSING_SECONDS, listen, serve
from gavel.judge.service.store.database import Database

_LOG = logging.getLogger(__name__)
_START_SECONDS = 300.0
_SIGNALS = signal.SIGTERM, signal.SIGINT
_KILL_SECONDS = 10.0
"""That a process gets to end, beyond what its groups and connections get."""
_PAUSES = 0.5, 30.0
"""First and longest pause in seconds before another process is started."""


async def serve_in_processes(
    config: ServiceConfig, announce: Callable[[str], None], prepare: Callable[[], None]
) -> None:
    """Serves until SIGTERM or SIGINT, in `config.processes` processes, each of which calls `prepare` first.

    Raises a `GavelError` when the service cannot start.
    """
    database = await asyncio.to_thread(Database.open, config.database)  # brings the tables up to date, once
    try:
        admission = Admission(database, config.keys)
        await admission.refresh()
        listener = listen(config, admission.is_required)
    finally:
        await asyncio.to_thread(database.close)
    with contextlib.closing(listener), tempfile.TemporaryDirectory(prefix="gavel-metrics-") as metrics:
        os.environ[MULTIPROCESS_VARIABLE] = metrics
        await ProcessGroup(config, listener, prepare).run(announce)


class ProcessGroup:
    """The processes of one service. Made and used in one event loop."""

    def __init__(self, config: ServiceConfig, listener: socket.socket, prepare: Callable[[], None]) -> None:
        self._number = config.processes
        self._ending_seconds = config.limits.shutdown_seconds + CLOSING_SECONDS + _KILL_SECONDS
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(["gavel.judge.service.http.preload"])
        self._handovers = Handovers(self._number, self._context)
        self._work = partial(_work, config.share().model_dump_json(), listener, prepare)
        self._children: list[_Child] = []

    async def run(self, announce: Callable[[str], None]) -> None:
        """Until SIGTERM or SIGINT. Raises a `GavelError` when one of the processes cannot start."""
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()
        for number in _SIGNALS:
            loop.add_signal_handler(number, stopping.set)
        serving = asyncio.create_task(self._serve(announce))
        stopped = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
        finally:
            serving.cancel()
            stopped.cancel()
            await asyncio.gather(*(child.end(self._ending_seconds) for child in self._children))
            self._handovers.close()
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    async def _serve(self, announce: Callable[[str], None]) -> None:
        self._children = [self._child(place) for place in range(self._number)]
        words = await asyncio.gather(*(child.started() for child in self._children))
        announce(f"{words[0]} · {self._number} processes")
        await asyncio.gather(*(self._keep(place) for place in range(self._number)))

    def _child(self, place: int) -> "_Child":
        return _Child(self._context, partial(self._work, self._handovers.of(place)))

    async def _keep(self, place: int) -> None:
        """Starts another process whenever the one at this place has ended."""
        first, longest = _PAUSES
        pause = first
        while True:
            status = await self._children[place].ended()
            self._handovers.load.close(place)
            _LOG.warning("a process of the service ended (status %s); another one is started", status)
            await asyncio.sleep(pause)
            child = self._children[place] = self._child(place)
            try:
                await child.started()
                pause = first
            except GavelError as error:
                _LOG.warning("it could not start: %s", error.message)
                pause = min(2 * pause, longest)


class _Child:
    """One process that serves, and what it tells."""

    def __init__(self, context: ForkServerContext, work: Callable[[Connection], None]) -> None:
        self._pipe, end = context.Pipe()
        with end:
            self._process = context.Process(target=work, args=(end,))
            self._process.start()

    async def started(self) -> str:
        """What it announces once it serves. Raises a `GavelError` when it cannot."""
        try:
            async with asyncio.timeout(_START_SECONDS):
                await _readable(self._pipe.fileno())
            told = self._pipe.recv()
        except (EOFError, OSError, TimeoutError) as error:
            raise ServiceError("a process of the service did not start.", "Look at what it logged.") from error
        if isinstance(told, GavelError):
            raise told
        return told

    async def ended(self) -> int | None:
        """Its exit status, negative for a signal, once it has ended."""
        await _readable(self._process.sentinel)
        self._process.join()
        if (pid := self._process.pid) is not None:
            multiprocess.mark_process_dead(pid)  # pyright: ignore[reportUnknownMemberType]
        return self._process.exitcode

    async def end(self, seconds: float) -> None:
        """Asks it to stop, and ends it when it has not within so many seconds."""
        if self._process.is_alive():
            self._process.terminate()
        try:
            async with asyncio.timeout(seconds):
                await self.ended()
        except TimeoutError:
            _LOG.warning("a process of the service did not stop, and is killed")
            self._process.kill()
            await self.ended()
        self._pipe.close()


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    seen = asyncio.Event()
    loop.add_reader(descriptor, seen.set)
    try:
        await seen.wait()
    finally:
        loop.remove_reader(descriptor)


def _work(
    config: str, listener: socket.socket, prepare: Callable[[], None], handover: Handover, pipe: Connection
) -> None:
    """What a process does: it serves until it is told to stop, or the process that started it has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; they are told to stop by the one
    prepare()
    threading.Thread(target=_stop_when_alone, args=(pipe,), daemon=True).start()
    try:
        asyncio.run(serve(ServiceConfig.model_validate_json(config), pipe.send, listener, handover))
    except GavelError as error:
        pipe.send(error)


def _stop_when_alone(pipe: Connection) -> None:
    with contextlib.suppress(OSError):
        pipe.poll(None)  # nothing is ever sent to it: it is at its end
    os.kill(os.getpid(), signal.SIGTERM)
