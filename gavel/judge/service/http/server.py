"""Runs the service in this process until it is told to stop."""

import asyncio
import contextlib
import gc
import linecache
import resource
import signal
import socket
import sys
from collections.abc import Callable, Generator
from typing import Any

import uvicorn

from gavel.base.network import is_loopback
from gavel.judge.service.config import ServiceConfig
from gavel.judge.service.engine.engine import Engine
from gavel.judge.service.errors import ServiceError
from gavel.judge.service.http.app import create_app
from gavel.judge.service.http.bounded_connection import BoundedConnection, bounded_connection
from gavel.judge.service.http.handover import Handover
from gavel.judge.service.store.database import Database
from gavel.llm.loop_turns import work_without_turns

_IDLE_SECONDS = 75
"""That a connection is kept open between two requests."""
CLOSING_SECONDS = 5.0
"""That open connections get to send their last answers."""
_BACKLOG = 1024
_GC_THRESHOLDS = 5_000, 10, 20
"""A search for cycles stops the event loop. With these it lasts milliseconds, and with those of the command line, which
are for throughput, 0.1 s now and then; both take 4 % of the time."""
_SWITCH_SECONDS = 0.001
"""After which a thread that computes lets another one run. The database's thread needs the interpreter some ten times
for a transaction, and each time waits as long for a busy event loop."""
_FULL = 0.9
"""The part of the connections that it may have with which a process takes none from others."""
_OTHER_FILES = 256
"""Files that a service has open besides its connections: the database, and connections to judges."""


async def serve(
    config: ServiceConfig,
    announce: Callable[[str], None],
    listener: socket.socket | None = None,
    handover: Handover | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT; then finishes what is being judged. `announce` is told where, once it answers.

    `listener`: a socket to use instead of one of its own, with `handover` where other processes serve on it too. Raises
    a `GavelError` when the service cannot start.
    """
    _allow_open_files(config.limits.connections + _OTHER_FILES)
    database = await asyncio.to_thread(Database.open, config.database)
    try:
        engine = Engine(config, database)
        await engine.admission.refresh()
        with contextlib.closing(listener or listen(config, engine.admission.is_required)) as listener:
            await engine.start()
            linecache.clearcache()  # two megabytes of sources that models' docstrings were read from
            gc.collect()
            gc.freeze()  # the libraries' 400,000 objects are not searched again
            gc.set_threshold(*_GC_THRESHOLDS)
            sys.setswitchinterval(_SWITCH_SECONDS)
            work_without_turns()
            try:
                await _serve(engine, listener, announce, handover)
            finally:
                await engine.stop()
    finally:
        await asyncio.to_thread(database.close)


def _allow_open_files(number: int) -> None:
    """Raises the limit of open files, which is often 1,024, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number if hard == resource.RLIM_INFINITY else min(number, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(
    engine: Engine, listener: socket.socket, announce: Callable[[str], None], handover: Handover | None
) -> None:
    limits = engine.config.limits

    def started() -> None:
        announce(_words(engine, listener))

    server = _Server(
        uvicorn.Config(
            create_app(engine.config, engine),
            http=bounded_connection(limits.header_seconds, handover),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # what strangers send fills no log
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=int(limits.shutdown_seconds + CLOSING_SECONDS),
            limit_concurrency=limits.connections,
            backlog=_BACKLOG,
        ),
        started,
    )
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.should_exit = True
        if handover is not None:
            handover.stop_taking()
        engine.begin_stopping()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        with _sharing(engine, server, handover):
            await server.serve(sockets=[listener])
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _sharing(engine: Engine, server: "_Server", handover: Handover | None) -> Generator[None]:
    """Shares requests with the other processes of the port, if there are any."""
    if handover is None:
        yield
        return
    worker, connections = engine.worker, server.server_state.connections
    most = int(engine.config.limits.connections * _FULL)
    with handover.taking(server.adopt, lambda: worker.groups, lambda: len(connections) < most):
        worker.on_change = handover.update
        yield


class _Server(uvicorn.Server):
    """Leaves signals to `_serve`: uvicorn's own handlers end the process before the engine has stopped."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started
        self._adopting = set[asyncio.Task[Any]]()

    def adopt(self, connection: socket.socket, data: bytes) -> None:
        """Goes on with a connection that another process has accepted, and read this data of."""

        def protocol() -> BoundedConnection:
            adopted: Any = self.config.http_protocol_class
            return adopted(self.config, self.server_state, self.lifespan.state, first=data)

        adopting = asyncio.create_task(_connected(protocol, connection))
        self._adopting.add(adopting)
        adopting.add_done_callback(self._adopting.discard)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def _connected(protocol: Callable[[], BoundedConnection], connection: socket.socket) -> None:
    await asyncio.get_running_loop().connect_accepted_socket(protocol, connection)


def _words(engine: Engine, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    keys = "keys required" if engine.admission.is_required else "no keys (loopback only)"
    return (
        f"Gavel judge service · http://{host}:{port} · docs at /docs · {engine.database.place} · "
        f"{keys} · judge {', '.join(engine.judges.default.names)}"
    )


def listen(config: ServiceConfig, has_keys: bool) -> socket.socket:
    """A socket of the service's address. Raises `ServiceError`, also for an address that needs keys."""
    if not (has_keys or is_loopback(config.host)):
        raise ServiceError(
            f"the service has no API keys, so it does not listen on {config.host}.",
            "Make a key first (gavel keys create), or leave --host out: 127.0.0.1.",
        )
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        return listener
    except OSError as error:
        raise ServiceError(
            f"the service cannot listen on {config.host}, port {config.port}: {error.strerror or error}.",
            "Stop what listens there, or choose another --port.",
        ) from error
