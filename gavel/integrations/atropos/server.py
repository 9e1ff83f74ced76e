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
from collections.abc import Callable, Coroutine
from typing import Any
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
    EnvRegistration,
    GroupQueue,
    QueueError,
    RefusedRequest,
    TrainerRegistration,
)
from gavel.trainer.serving.listener import AnnouncedServer, address_of, listen

_BODY_SECONDS = 120.0
_GZIP = 31
"""zlib's window bits for gzip."""
HEALTH = "/healthz"


def _refused(_: Any, error: RefusedRequest) -> Response:
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
        error = None if scope["path"] == HEALTH else self._find_refusal(Headers(scope=scope))
        await (self._app if error is None else _refused(scope, error))(scope, receive, send)

    def _find_refusal(self, headers: Headers) -> RefusedRequest | None:
        host = headers.get("host", "")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return RefusedRequest(403, f"pages of {origin:.100} may not use this server", "Ask it from a program.")
        if self._key is None and host and not is_loopback(urlsplit(f"//{host}").hostname or ""):
            return RefusedRequest(
                421,
                f"this server has no key and answers to this machine alone, not to {host:.100}",
                "Ask 127.0.0.1, or set GAVEL_ATROPOS_KEY and start it again.",
            )
        if self._key is not None and not hmac.compare_digest(_given_key(headers).encode(), self._key):
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
    """The decompressed body. `most_bytes`: limit after decompression. Raises `RefusedRequest`."""
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity", "gzip", "x-gzip"):
        raise RefusedRequest(415, f"the body is encoded as {coding:.40}", "Send it as it is, or with gzip.")
    unpacker = zlib.decompressobj(_GZIP) if "gzip" in coding else None
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in request.stream():
                body += part if unpacker is None else unpacker.decompress(part, most_bytes + 1 - len(body))
                if len(body) > most_bytes:
                    raise RefusedRequest(
                        413,
                        f"the body is larger than {most_bytes:,} bytes",
                        "Send smaller groups, or raise --max-body-mb.",
                    )
                if unpacker is not None and unpacker.unused_data:
                    raise zlib.error("something follows it")
        if unpacker is not None and not unpacker.eof:
            raise zlib.error("it is cut off")
    except TimeoutError:
        raise RefusedRequest(408, f"the body did not arrive within {_BODY_SECONDS:g} s", "Send it again.") from None
    except ClientDisconnect:
        raise RefusedRequest(400, "the connection was closed before the body was complete") from None
    except zlib.error as error:
        told = f"the body is no whole gzip: {error}"
        raise RefusedRequest(400, told, "Send it again, or without Content-Encoding.") from None
    return bytes(body)


_EXAMPLE = ("tokens", "masks", "scores", "advantages", "ref_logprobs", "generation_params", "inference_logprobs")


class _Environment(BaseModel):
    """The body of `POST /disconnect-env` and of `GET /status-env`."""

    env_id: int


def create_app(queue: GroupQueue, *, key: str | None = None, most_bytes: int = 256 << 20) -> Starlette:
    """Creates the application. `key` None: none is required, on loopback. `most_bytes`: of a body, decompressed."""
    api = _Api(queue)

    def route(method: str, path: str, answer: Callable[..., Any], body: Any = None) -> Route:
        """A route that answers with what `answer`, called in a thread, makes of its body."""
        adapter = TypeAdapter[Any](body)

        async def handle(request: Request) -> Response:
            given = None if body is None else await read_body(request, most_bytes)
            told = await asyncio.to_thread(lambda: answer() if given is None else answer(adapter.validate_json(given)))
            if path.startswith("/scored_data"):
                queue.changed.set()
            return PlainTextResponse(told) if isinstance(told, str) else _json_response(json.dumps(told))

        return Route(path, handle, methods=[method])

    routes = [
        route("GET", "/", lambda: {"message": "AtroposLib API, served by Gavel"}),
        route("GET", HEALTH, lambda: {"status": "ok"}),
        route("GET", "/status", lambda: {"current_step": queue.step, "queue_size": len(queue.waiting)}),
        route("GET", "/latest_example", api.latest_example),
        route("GET", "/wandb_info", lambda: api.of_trainer(None, group="wandb_group", project="wandb_project")),
        route("GET", "/info", lambda: api.of_trainer(-1, batch_size="batch_size", max_token_len="max_token_len")),
        route("POST", "/register", api.register, TrainerRegistration),
        route("POST", "/register-env", api.register_env, EnvRegistration),
        route("POST", "/disconnect-env", api.disconnect_env, _Environment),
        route("POST", "/scored_data", api.scored_data, AtroposGroup),
        route("POST", "/scored_data_list", api.scored_data_list, list[AtroposGroup]),
        route("GET", "/status-env", api.status_env, _Environment),
        route("GET", "/reset_data", api.reset_data),
        Route("/batch", _Batch(queue), methods=["GET"]),
    ]
    handlers: Any = {RefusedRequest: _refused, QueueError: _refused, ValidationError: _misunderstood}
    return Starlette(routes=routes, middleware=[Middleware(Guard, key=key)], exception_handlers=handlers)


def _json_response(text: str) -> Response:
    """The response of JSON in which numbers may be NaN."""
    return Response(text, media_type="application/json")


def _misunderstood(_: Any, error: ValidationError) -> Response:
    is_json = error.errors(include_url=False, include_input=False)[0]["type"] != "json_invalid"
    return JSONResponse({"detail": first_problem(error)}, 422 if is_json else 400)


def _check_no_own(queue: GroupQueue, request: str) -> None:
    """Raises `RefusedRequest` if the server has its own learner."""
    if queue.space is not None:
        raise RefusedRequest(
            409,
            f"{request} is refused: this server's own learner takes the batches",
            "Start `gavel serve-atropos` without --model to hand them to another trainer.",
        )


class _Batch:
    """`GET /batch`: lends a batch, and records whether the client received it; if not, the next request gets it
    again. One at a time, as an ASGI application, since a route's response is sent when the route is left."""

    def __init__(self, queue: GroupQueue) -> None:
        self._queue = queue
        self._lending = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _check_no_own(self._queue, "GET /batch")
        if self._queue.peers.trainer is None:
            message = "Trainer not registered. Call /register first."
            return await JSONResponse({"status": "error", "message": message, "batch": []})(scope, receive, send)
        async with self._lending:
            lent = await asyncio.to_thread(self._queue.lend)
            if lent is None:
                return await JSONResponse({"batch": None})(scope, receive, send)
            number, groups = lent
            bodies = await asyncio.to_thread(lambda: ",".join(group.model_dump_json() for group in groups))
            whole = _json_response(f'{{"batch": [{bodies}], "batch_id": {number}}}')
            await send({"type": "http.response.start", "status": 200, "headers": whole.raw_headers})
            await send({"type": "http.response.body", "body": whole.body, "more_body": True})
            if not await Request(scope, receive).is_disconnected():  # before the end: then always True
                await asyncio.to_thread(self._queue.delivered, number)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Api:
    """The other routes' answers."""

    def __init__(self, queue: GroupQueue) -> None:
        self._queue = queue

    def latest_example(self) -> dict[str, Any]:
        group = self._queue.newest()
        return (
            {name: [] for name in (*_EXAMPLE, "messages", "images")} if group is None else group.model_dump(mode="json")
        )

    def of_trainer(self, other: int | None, **fields: str) -> dict[str, Any]:
        return {name: getattr(self._queue.peers.trainer, field, other) for name, field in fields.items()}

    def register(self, body: TrainerRegistration) -> dict[str, Any]:
        _check_no_own(self._queue, "POST /register")
        self._queue.register(body)
        return {"uuid": uuid.uuid4().int}

    def register_env(self, body: EnvRegistration) -> dict[str, Any]:
        peers = self._queue.peers
        if peers.trainer is None or not peers.started:
            return {"status": "wait for trainer to start"}
        env = self._queue.register_env(body)
        return {
            "status": "success",
            "env_id": env.env_id,
            "wandb_name": env.real_name,
            "checkpoint_dir": peers.trainer.checkpoint_dir,
            "starting_step": peers.step,
            "checkpoint_interval": peers.trainer.save_checkpoint_interval,
            "num_steps": peers.trainer.num_steps,
        }

    def disconnect_env(self, body: _Environment) -> dict[str, Any]:
        if self._queue.disconnect_env(body.env_id):
            return {"status": "success"}
        return {"status": "failure", "error": f"there is no environment {body.env_id}"}

    def scored_data(self, body: AtroposGroup) -> dict[str, Any]:
        (is_new,) = self._queue.accept([body])
        return {"status": "received", **({} if is_new else {"duplicate": True})}

    def scored_data_list(self, body: list[AtroposGroup]) -> dict[str, Any]:
        again = self._queue.accept(body).count(False)
        return {"status": "received", "groups_processed": len(body), **({"duplicates": again} if again else {})}

    def status_env(self, body: _Environment) -> dict[str, Any]:
        """Sizes in groups of this environment's size: an environment pauses if several batches wait."""
        peers, waiting = self._queue.peers, self._queue.waiting
        env = next((each for each in peers.envs if each.env_id == body.env_id), None)
        if env is None:
            raise RefusedRequest(404, f"there is no environment {body.env_id}", "Register it: POST /register-env")
        own = [group.size for group in waiting if group.env_id == body.env_id]
        size = max([env.registration.group_size, *own])
        return {
            "current_step": peers.step,
            "queue_size": sum(group.size for group in waiting) // size,
            "self_queue_size": sum(own) // size,
            "max_group_size": max((group.size for group in waiting), default=1),
            "unallocated_fraction": 1.0,
            "env_weight": peers.share(env),
        }

    def reset_data(self) -> str:
        _check_no_own(self._queue, "GET /reset_data")
        self._queue.reset()
        return "Reset successful"


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
    queue: GroupQueue,
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
        create_app(queue, key=key, most_bytes=most_bytes),
        log_level="error",
        access_log=False,
        server_header=False,
        lifespan="off",
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_CLOSING_SECONDS,
    )
    server = AnnouncedServer(config, lambda: announce(address_of(listener, host)))
    loop, working = asyncio.get_running_loop(), None if work is None else asyncio.create_task(work)

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
