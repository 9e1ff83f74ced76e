"""The routes of Atropos' trajectory API, with its paths, bodies and responses.

Intended differences: a group is on disk before it is acknowledged; lengths are checked; batches are the oldest groups,
and an interrupted one is resent under the same `batch_id`; a group that is sent twice counts once; requests before a
trainer registers lose nothing.

Checks before the routes: the key, cross-site requests, and limits of bodies, gzip or plain.

A server without a key answers only on loopback and under this machine's own names: otherwise any page in a browser on
it could send groups. A client without support for keys, as Atropos' own, passes it in the address:
http://gavel:KEY@host:port.
"""

import asyncio
import base64
import binascii
import contextlib
import hmac
import json
import signal
import socket
import uuid
import zlib
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import uvicorn
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gavel.base.errors import GavelError
from gavel.base.network import is_loopback
from gavel.integrations.atropos.group import AtroposGroup, first_problem
from gavel.integrations.atropos.queue import (
    AtroposError,
    EnvIdentifier,
    EnvRegistration,
    GroupQueue,
    QueueState,
    RefusedRequest,
    TrainerRegistration,
    share,
)
from gavel.trainer.serving.listener import AnnouncedServer, address_of, listen

_BODY_SECONDS = 120.0
_GZIP = 31
"""zlib's window bits for gzip."""
HEALTH = "/healthz"


def _refused(error: AtroposError) -> Response:
    """The response to a rejected request; `detail` as in FastAPI's servers."""
    return JSONResponse({"detail": str(error)}, error.status, {"Retry-After": "5"} if error.status == 503 else {})


class Guard:
    """ASGI middleware around the routes."""

    def __init__(self, app: ASGIApp, key: str | None) -> None:
        self._app = app
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        error = None if scope["path"] == HEALTH else self._error(Headers(scope=scope))
        await (self._app if error is None else _refused(error))(scope, receive, send)

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
    """The decompressed body. `most_bytes`: limit before and after decompression. Raises `RefusedRequest`."""
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
    return await asyncio.to_thread(_unpack, body, most_bytes) if "gzip" in coding and body else body


def _unpack(body: bytes, most_bytes: int) -> bytes:
    stream = zlib.decompressobj(_GZIP)
    try:
        found = stream.decompress(body, most_bytes + 1)
    except zlib.error as error:
        raise RefusedRequest(
            400, f"the body is no gzip: {error}", "Send it again, or without Content-Encoding."
        ) from None
    if len(found) > most_bytes:
        raise _too_large(most_bytes)
    if not stream.eof:
        raise RefusedRequest(400, "the gzip body is cut off", "Send it again.")
    return found


def _too_large(most_bytes: int) -> RefusedRequest:
    return RefusedRequest(
        413, f"the body is larger than {most_bytes:,} bytes", "Send smaller groups, or raise --max-body-mb."
    )


_GROUPS = TypeAdapter(list[AtroposGroup])
_NO_EXAMPLE: dict[str, Any] = {
    name: []
    for name in (
        *("tokens", "masks", "scores", "advantages", "ref_logprobs", "generation_params", "inference_logprobs"),
        *("messages", "images"),
    )
}
_Body = TypeVar("_Body", bound=BaseModel)


def create_app(state: QueueState, *, key: str | None = None, most_bytes: int = 256 << 20) -> Starlette:
    """Creates the application. `key` None: none is required, on loopback. `most_bytes`: of a body, before and after
    decompression."""
    api = _Api(state, most_bytes)
    routes = [
        *(Route(path, _answering(answer)) for path, answer in _told(state).items()),
        Route("/register", api.register, methods=["POST"]),
        Route("/register-env", api.register_env, methods=["POST"]),
        Route("/disconnect-env", api.disconnect_env, methods=["POST"]),
        Route("/scored_data", api.scored_data, methods=["POST"]),
        Route("/scored_data_list", api.scored_data_list, methods=["POST"]),
        Route("/batch", api.batch),
        Route("/status-env", api.status_env),
        Route("/reset_data", api.reset_data),
    ]
    handlers = {AtroposError: _answered, ValidationError: _misunderstood}
    return Starlette(routes=routes, middleware=[Middleware(Guard, key=key)], exception_handlers=handlers)


async def _answered(_: Request, error: Exception) -> Response:
    assert isinstance(error, AtroposError)
    return _refused(error)


async def _misunderstood(_: Request, error: Exception) -> Response:
    assert isinstance(error, ValidationError)
    is_json = error.errors(include_url=False, include_input=False)[0]["type"] != "json_invalid"
    return JSONResponse({"detail": first_problem(error)}, 422 if is_json else 400)


def _told(state: QueueState) -> dict[str, Callable[[], Any]]:
    """Responses of the read-only routes, by path."""
    queue = state.queue

    def newest() -> dict[str, Any]:
        group = queue.newest()
        return _NO_EXAMPLE if group is None else group.model_dump(mode="json")

    def of_trainer(other: int | None, **fields: str) -> dict[str, Any]:
        return {name: getattr(state.registration, field, other) for name, field in fields.items()}

    return {
        "/": lambda: {"message": "AtroposLib API, served by Gavel"},
        HEALTH: lambda: {"status": "ok"},
        "/status": lambda: {"current_step": queue.step, "queue_size": len(queue.waiting)},
        "/latest_example": newest,
        "/wandb_info": lambda: of_trainer(None, group="wandb_group", project="wandb_project"),
        "/info": lambda: of_trainer(-1, batch_size="batch_size", max_token_len="max_token_len"),
    }


def _answering(answer: Callable[[], Any]) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        return Response(json.dumps(await asyncio.to_thread(answer)), media_type="application/json")

    return handle


class _BatchResponse(Response):
    """A response that records whether the client received the whole batch."""

    media_type = "application/json"

    def __init__(self, text: str, settle: Callable[[bool], Awaitable[None]]) -> None:
        super().__init__(text)
        self._settle = settle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        delivered = False
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self.body, "more_body": True})
            delivered = not await Request(scope, receive).is_disconnected()  # before the end: then always True
        finally:
            await self._settle(delivered)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Api:
    def __init__(self, state: QueueState, most_bytes: int) -> None:
        self._state = state
        self._most_bytes = most_bytes

    async def register(self, request: Request) -> Response:
        self._state.check_no_own("POST /register")
        registration = await self._body(request, TrainerRegistration)
        await asyncio.to_thread(self._state.queue.register, registration)
        return JSONResponse({"uuid": uuid.uuid4().int})

    async def register_env(self, request: Request) -> Response:
        body = await self._body(request, EnvRegistration)
        trainer = self._state.registration
        if trainer is None or not self._state.started:
            return JSONResponse({"status": "wait for trainer to start"})
        env = await asyncio.to_thread(self._state.queue.register_env, body)
        return JSONResponse(
            {
                "status": "success",
                "env_id": env.env_id,
                "wandb_name": env.real_name,
                "checkpoint_dir": trainer.checkpoint_dir,
                "starting_step": self._state.queue.step,
                "checkpoint_interval": trainer.save_checkpoint_interval,
                "num_steps": trainer.num_steps,
            }
        )

    async def disconnect_env(self, request: Request) -> Response:
        body = await self._body(request, EnvIdentifier)
        if await asyncio.to_thread(self._state.queue.disconnect_env, body.env_id):
            return JSONResponse({"status": "success"})
        return JSONResponse({"status": "failure", "error": f"there is no environment {body.env_id}"})

    async def scored_data(self, request: Request) -> Response:
        (is_new,) = await self._state.accept([await self._body(request, AtroposGroup)])
        return JSONResponse({"status": "received", **({} if is_new else {"duplicate": True})})

    async def scored_data_list(self, request: Request) -> Response:
        body = await read_body(request, self._most_bytes)
        groups = await asyncio.to_thread(_GROUPS.validate_json, body)
        is_new = await self._state.accept(groups)
        again = is_new.count(False)
        told = {"status": "received", "groups_processed": len(groups)}
        return JSONResponse({**told, **({"duplicates": again} if again else {})})

    async def batch(self, request: Request) -> Response:
        lent = await self._state.lend()
        if self._state.registration is None:
            message = "Trainer not registered. Call /register first."
            return JSONResponse({"status": "error", "message": message, "batch": []})
        if lent is None:
            return JSONResponse({"batch": None})

        bodies = await asyncio.to_thread(lambda: ",".join(group.model_dump_json() for group in lent.groups))
        text = f'{{"batch": [{bodies}], "batch_id": {lent.number}}}'
        return _BatchResponse(text, partial(self._state.settle, lent))

    async def status_env(self, request: Request) -> Response:
        body = await self._body(request, EnvIdentifier)
        return JSONResponse(await asyncio.to_thread(_env_status, self._state.queue, body.env_id))

    async def reset_data(self, request: Request) -> Response:
        self._state.check_no_own("GET /reset_data")
        await asyncio.to_thread(self._state.queue.reset)
        return PlainTextResponse("Reset successful")

    async def _body(self, request: Request, model: type[_Body]) -> _Body:
        body = await read_body(request, self._most_bytes)
        return await asyncio.to_thread(model.model_validate_json, body)


def _env_status(queue: GroupQueue, env_id: int) -> dict[str, Any]:
    """Sizes in groups of this environment's size: an environment pauses if several batches wait.

    Raises `RefusedRequest` for an unknown environment.
    """
    envs = queue.envs
    env = next((each for each in envs if each.env_id == env_id), None)
    if env is None:
        raise RefusedRequest(404, f"there is no environment {env_id}", "Register it: POST /register-env")
    step, waiting = queue.step, queue.waiting
    own = [group.size for group in waiting if group.env_id == env.env_id]
    size = max([env.registration.group_size, *own])
    return {
        "current_step": step,
        "queue_size": sum(group.size for group in waiting) // size,
        "self_queue_size": sum(own) // size,
        "max_group_size": max((group.size for group in waiting), default=1),
        "unallocated_fraction": 1.0,
        "env_weight": share(env, envs),
    }


_CLOSING_SECONDS = 5
_CONNECTIONS = 1024
KEY_VARIABLE = "GAVEL_ATROPOS_KEY"


class ServeError(GavelError):
    """The server cannot be started as asked."""


def checked_listener(host: str, port: int, key: str | None) -> socket.socket:
    """The listening socket. Raises `ServeError` for a public address without a key, `EndpointError` for one that is
    taken."""
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
    """Serves until SIGTERM or SIGINT, or until `work` ends; raises its errors. Calls `announce` with the address.

    When stopped, it finishes the current training step first.
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
