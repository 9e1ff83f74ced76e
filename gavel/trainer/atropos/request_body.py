"""What stands before the routes: the key, other sites' pages, and bodies within limits, gzip or plain.

A server without a key answers on loopback alone and to this machine's own names: a browser on it would otherwise let
any page send groups. A client that knows no keys, as Atropos' own, gives it in the address: http://gavel:KEY@host:port.
"""

import asyncio
import base64
import binascii
import hmac
import zlib
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from gavel.base.errors import GavelError
from gavel.base.network import is_loopback

_BODY_SECONDS = 120.0
_GZIP = 31
"""For zlib: with the header of gzip."""
HEALTH = "/healthz"


class RefusedRequest(GavelError):
    """A request that is answered with `status`."""

    def __init__(self, status: int, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.status = status


def refusal(error: GavelError, status: int) -> JSONResponse:
    """The answer to a request that is refused; `detail` as FastAPI's servers have it."""
    again = {"Retry-After": "5"} if status == 503 else {}
    return JSONResponse({"detail": str(error)}, status, again)


class Guard:
    """ASGI middleware around the routes."""

    def __init__(self, app: ASGIApp, key: str | None) -> None:
        self._app = app
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        error = None if scope["path"] == HEALTH else self._error(Headers(scope=scope))
        answer = self._app if error is None else refusal(error, error.status)
        await answer(scope, receive, send)

    def _error(self, headers: Headers) -> RefusedRequest | None:
        host = headers.get("host", "")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return RefusedRequest(403, f"pages of {origin:.100} may not use this server", "Ask it from a program.")
        if self._key is None:
            name = urlsplit(f"//{host}").hostname or ""
            if host and not is_loopback(name):
                return RefusedRequest(
                    421,
                    f"this server has no key and answers to this machine alone, not to {host:.100}",
                    "Ask 127.0.0.1, or set GAVEL_ATROPOS_KEY and start it again.",
                )
            return None
        if not hmac.compare_digest(_given_key(headers).encode(), self._key):
            return RefusedRequest(
                401,
                "the key is not that of the server",
                "Send Authorization: Bearer KEY, or give it in the address: http://gavel:KEY@host:port",
            )
        return None


def _given_key(headers: Headers) -> str:
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() != "basic":
        return headers.get("x-api-key") or value.strip()
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


async def read_body(request: Request, most_bytes: int) -> bytes:
    """The body, unpacked. `most_bytes`: as it comes and unpacked. Raises `RefusedRequest`."""
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity", "gzip", "x-gzip"):
        raise RefusedRequest(415, f"the body is encoded as {coding:.40}", "Send it as it is, or with gzip.")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > most_bytes:
                    raise _too_large(most_bytes)
                parts.append(part)
    except TimeoutError:
        raise RefusedRequest(408, f"the body did not arrive within {_BODY_SECONDS:g} s", "Send it again.") from None
    except ClientDisconnect:
        raise RefusedRequest(400, "the connection was closed before the body was complete") from None
    body = b"".join(parts)
    return await asyncio.to_thread(_unpacked, body, most_bytes) if "gzip" in coding and body else body


def _unpacked(body: bytes, most_bytes: int) -> bytes:
    """Of one gzip member or several."""
    found: list[bytes] = []
    size = 0
    try:
        while body:
            stream = zlib.decompressobj(_GZIP)
            found.append(stream.decompress(body, most_bytes - size + 1))
            size += len(found[-1])
            if size > most_bytes:
                raise _too_large(most_bytes)
            if not stream.eof:
                raise RefusedRequest(400, "the gzip body is cut off", "Send it again.")
            body = stream.unused_data.lstrip(b"\0")
    except zlib.error as error:
        raise RefusedRequest(
            400, f"the body is no gzip: {error}", "Send it again, or without Content-Encoding."
        ) from None
    return b"".join(found)


def _too_large(most_bytes: int) -> RefusedRequest:
    return RefusedRequest(
        413, f"the body is larger than {most_bytes:,} bytes", "Send smaller groups, or raise --max-body-mb."
    )
