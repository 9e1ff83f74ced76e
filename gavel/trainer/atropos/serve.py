"""Runs the API in this process, beside a learner or without one, until it is told to stop or the learner is done."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import uvicorn

from gavel.base.errors import GavelError
from gavel.base.network import is_loopback
from gavel.trainer.atropos.app import create_app
from gavel.trainer.atropos.queue_state import QueueState
from gavel.trainer.serving.listener import AnnouncedServer, address_of, listen

_CLOSING_SECONDS = 5
_CONNECTIONS = 1024
KEY_VARIABLE = "GAVEL_ATROPOS_KEY"


class ServeError(GavelError):
    """The server cannot be started as asked."""


def checked_listener(host: str, port: int, key: str | None) -> socket.socket:
    """The socket to listen on. Raises `ServeError` for an address beyond this machine without a key, `EndpointError`
    for one that is taken."""
    if key is None and not is_loopback(host):
        raise ServeError(
            f"a server without a key does not listen on {host}", f"Set {KEY_VARIABLE}, or leave --host out: 127.0.0.1."
        )
    return listen(host, port)


async def serve(
    state: QueueState,
    listener: socket.socket,
    *,
    host: str,
    key: str | None,
    most_bytes: int,
    announce: Callable[[str], None],
    work: Coroutine[Any, Any, None] | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT, or until `work` ends; raises what `work` raises. `announce` is told the address.

    Told to stop, a training step that runs is finished first.
    """
    config = uvicorn.Config(
        create_app(state, key=key, most_bytes=most_bytes),
        log_level="error",
        access_log=False,
        server_header=False,
        lifespan="off",
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_CLOSING_SECONDS,
    )
    server = AnnouncedServer(config, lambda: announce(address_of(listener, host)))
    working = None if work is None else asyncio.create_task(work)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.should_exit = True
        if working is not None:
            working.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    if working is not None:
        working.add_done_callback(lambda _: stop())
    try:
        await server.serve(sockets=[listener])
        if working is not None:
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
