"""What servers of other systems' protocols share: who may ask, and how long they serve."""

import asyncio
import base64
import binascii
import contextlib
import hmac
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from aiohttp import web

from gavel.base.errors import GavelError
from gavel.base.network import is_loopback
from gavel.trainer.serving.listener import address_of, listen

_CLOSING_SECONDS = 5.0


def listen_safely(host: str, port: int, key: str | None, variable: str) -> socket.socket:
    """The listening socket. Raises `GavelError` for a public address without the key that `variable` names, and for
    one that is taken."""
    if key is None and not is_loopback(host):
        raise GavelError(
            f"a server without a key does not listen on {host}: {variable} is not set.",
            f"Leave --host out, or set a long secret, here and there: export {variable}=$(openssl rand -hex 24)",
        )
    return listen(host, port)


def guard(key: str | None, field: str, *open_paths: str) -> Any:
    """A middleware that requires the key, or without a key refuses all but programs on this machine.

    The key is given as `Authorization: Bearer`, as `X-API-Key`, or in the address: `http://gavel:KEY@host:port`.
    `field` holds the reason in a refusal; `open_paths` need no key.
    """

    @web.middleware
    async def check(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        # an Origin is that of a cross-site page in a browser on this machine
        if key is None and (not is_loopback(request.url.host or "") or "Origin" in request.headers):
            return web.json_response({field: "this server answers programs on its own machine alone"}, status=403)
        given = _given_key(request).encode(errors="surrogateescape")
        if key is not None and request.path not in open_paths and not hmac.compare_digest(given, key.encode()):
            told = "the key is missing or another one: send Authorization: Bearer KEY, or http://gavel:KEY@host:port"
            return web.json_response({field: told}, status=401)
        return await handler(request)

    return check


def _given_key(request: web.Request) -> str:
    kind, _, value = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() != "basic":
        return request.headers.get("X-API-Key") or value.strip()
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


async def serve(
    application: web.Application,
    listener: socket.socket,
    *,
    host: str,
    announce: Callable[[str], None],
    work: Coroutine[Any, Any, None] | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT, or until `work` ends; raises its errors. Calls `announce` with the address.

    When stopped, `work` is cancelled, and awaited.
    """
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    working = None if work is None else asyncio.create_task(work)
    if working is not None:
        working.add_done_callback(lambda _: ended.set())
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=_CLOSING_SECONDS)
    await runner.setup()
    try:
        try:
            await web.SockSite(runner, listener).start()
            announce(address_of(listener, host))
            await ended.wait()
        finally:
            if working is not None:
                working.cancel()
            await runner.cleanup()
        if working is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await working
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
