"""Runs the service until it is told to stop: uvicorn in this process, or its supervisor with several processes."""

import asyncio
import os
import resource
import signal
import socket
import tempfile
from collections.abc import Callable
from functools import partial

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.supervisors import Multiprocess

from gavel.base.network import is_loopback
from gavel.judge.service.config import ServiceConfig
from gavel.judge.service.engine.admission import Admission
from gavel.judge.service.engine.telemetry import MULTIPROCESS_VARIABLE
from gavel.judge.service.errors import ServiceError
from gavel.judge.service.http.app import create_app, settle_process
from gavel.judge.service.store.database import Database

_IDLE_SECONDS = 75
"""Seconds that an idle connection is kept open."""
_CLOSING_SECONDS = 5.0
"""Grace period of open connections at shutdown, in seconds."""
_BACKLOG = 1024
_MAX_HEAD_BYTES = 64 * 2**10
"""Max bytes of a request's address and headers."""
_START_SECONDS = 120
"""Seconds in which a process must answer its supervisor, also while it loads libraries on a busy machine."""
_OTHER_FILES = 256
"""Files that a service has open besides client connections: the database, and connections to judges."""


def serve(config: ServiceConfig, announce: Callable[[str], None], prepare: Callable[[], None] = lambda: None) -> None:
    """Serves until SIGTERM or SIGINT; then finishes running judgements. Calls `announce` with the address once it
    answers.

    `prepare` is called in each further process; it must be picklable. Raises a `GavelError` if it cannot start.
    """
    place, has_keys = asyncio.run(_look(config))
    config.judge.build().check()
    _allow_open_files(config.limits.connections + _OTHER_FILES)
    with listen(config, has_keys) as listener:
        words = _words(config, listener, place, has_keys)
        for number in (signal.SIGTERM, signal.SIGINT):  # what uvicorn restores and raises again when it has stopped
            signal.signal(number, lambda number, frame: None)
        if config.processes > 1:
            _serve_in_processes(config, listener, lambda: announce(f"{words} · {config.processes} processes"), prepare)
        else:
            server = _Server(_configure_uvicorn(config, lambda: create_app(config)), lambda: announce(words))
            server.run([listener])
            if not server.started:
                raise ServiceError("the service did not start.", "Look at what it logged.")


async def _look(config: ServiceConfig) -> tuple[str, bool]:
    """The database's name, and whether there are keys."""
    database = await asyncio.to_thread(Database.open, config.database)
    try:
        admission = Admission(database, config.keys)
        await admission.refresh()
        return str(database.place), admission.is_required
    finally:
        await asyncio.to_thread(database.close)


def _configure_uvicorn(config: ServiceConfig, factory: Callable[[], object]) -> uvicorn.Config:
    limits = config.limits
    return uvicorn.Config(
        factory,  # pyright: ignore[reportArgumentType] - declared for applications alone
        factory=True,
        workers=config.processes,
        http=_BoundedHead,
        ws="none",
        log_config=None,
        log_level="error",  # requests of strangers must not fill the log
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=int(limits.shutdown_seconds + _CLOSING_SECONDS),
        timeout_worker_healthcheck=_START_SECONDS,
        limit_concurrency=limits.connections,
        backlog=_BACKLOG,
    )


class _BoundedHead(HttpToolsProtocol):
    """Refuses a request whose head is longer than `_MAX_HEAD_BYTES`: the parser holds all of a head until it ends."""

    _is_in_head, _head = False, 0

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._is_in_head = False

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._head = self._head + len(data) if self._is_in_head else 0
        if self._head > _MAX_HEAD_BYTES:
            self.send_400_response("The request's head is too long.")


class _Server(uvicorn.Server):
    """A uvicorn server that announces when it answers."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            settle_process()
            self._on_started()


class _Supervisor(Multiprocess):
    """A uvicorn supervisor that announces when all its processes answer."""

    def __init__(self, config: uvicorn.Config, listener: socket.socket, on_started: Callable[[], None]) -> None:
        super().__init__(config, [listener])
        self._on_started: Callable[[], None] | None = on_started

    def keep_subprocess_alive(self) -> None:
        super().keep_subprocess_alive()
        if self._on_started is not None and all(process.is_ready() for process in self.processes):
            self._on_started()
            self._on_started = None


def _serve_in_processes(
    config: ServiceConfig, listener: socket.socket, on_started: Callable[[], None], prepare: Callable[[], None]
) -> None:
    with tempfile.TemporaryDirectory(prefix="gavel-metrics-") as metrics:
        os.environ[MULTIPROCESS_VARIABLE] = metrics
        factory = partial(_prepared_app, config.share().model_dump_json(), os.getpid(), prepare)
        supervisor = _Supervisor(_configure_uvicorn(config, factory), listener, on_started)
        supervisor.run()
    if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
        raise ServiceError("a process of the service did not start.", "Look at what it logged.")


def _prepared_app(settings: str, parent: int, prepare: Callable[[], None]) -> object:
    prepare()
    return create_app(ServiceConfig.model_validate_json(settings), parent=parent)


def _allow_open_files(number: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number if hard == resource.RLIM_INFINITY else min(number, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _words(config: ServiceConfig, listener: socket.socket, place: str, has_keys: bool) -> str:
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    keys = "keys required" if has_keys else "no keys (loopback only)"
    judge = ", ".join(config.judge.build().names)
    return f"Gavel judge service · http://{host}:{port} · docs at /docs · {place} · {keys} · judge {judge}"


def listen(config: ServiceConfig, has_keys: bool) -> socket.socket:
    """Opens a socket at the service's address. Raises `ServiceError`, also for an address that needs keys."""
    if not (has_keys or is_loopback(config.host)):
        raise ServiceError(
            f"the service has no API keys, so it does not listen on {config.host}.",
            "Make a key first (gavel keys create), or leave --host out: 127.0.0.1.",
        )
    try:
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        is_any = config.host == "::" and socket.has_dualstack_ipv6()
        return socket.create_server((config.host, config.port), family=family, backlog=_BACKLOG, dualstack_ipv6=is_any)
    except OSError as error:
        raise ServiceError(
            f"the service cannot listen on {config.host}, port {config.port}: {error.strerror or error}.",
            "Stop what listens there, or choose another --port.",
        ) from error
