"""Who may ask a server of scenarios."""

import hmac
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from gavel.base.network import is_loopback


def guard(key: str | None, field: str, *open_paths: str) -> Any:
    """A middleware that requires the key as `Authorization: Bearer`, or without a key refuses all but this machine.

    `field` holds the reason in a refusal; `open_paths` need no key.
    """

    @web.middleware
    async def check(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if key is None and (not is_loopback(request.url.host or "") or "Origin" in request.headers):
            # a cross-site page in a browser on this machine
            return web.json_response({field: "this server answers programs on its own machine alone"}, status=403)
        is_open = key is None or request.path in open_paths
        if not is_open and not hmac.compare_digest(given, f"Bearer {key}".encode()):
            return web.json_response({field: "the bearer key is missing or another one"}, status=401)
        return await handler(request)

    return check
