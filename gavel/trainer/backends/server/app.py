"""The HTTP application around a `LocalBackend`. `wire` lists the routes for jobs; besides them there are

    GET  /healthz
    GET  /v1/models/{project}/{name}/history?split=…   rows of metrics
    GET  /v1/models/{project}/{name}/files/{path}      of a checkpoint or an export, with Range
    *    /v1/models/{project}/{name}/openai/v1/…       the model's OpenAI-compatible endpoint, on loopback alone

A request has the server's key, or that of a capture which was opened through here.

`serve` runs it until it is told to stop, one server for a directory of runs: two would each forget what clients have
registered with the other. The lock is the file's (flock), so a server that is killed leaves none behind.
"""

import asyncio
import contextlib
import hmac
import logging
import os
import re
import signal
import time
from collections.abc import AsyncGenerator, Callable, Generator
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import uvicorn
from fastapi import FastAPI, Query
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gavel.base.errors import GavelError
from gavel.base.files import is_inside, locked
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.protocol import NotRegisteredError
from gavel.trainer.backends.remote.wire import (
    KEY_VARIABLE,
    PROTOCOL,
    PROTOCOL_HEADER,
    Fault,
    Job,
    JobState,
    RemoteError,
)
from gavel.trainer.backends.server.jobs import Jobs, unknown_settings
from gavel.trainer.model_spec import TrainableSpec
from gavel.trainer.runs.checkpoints import Checkpoints
from gavel.trainer.runs.metrics import read_rows
from gavel.trainer.runs.run_directory import RunDirectoryError, read_description
from gavel.trainer.serving.answers import CLIENT_GONE
from gavel.trainer.serving.capture import given_key
from gavel.trainer.serving.in_process import Served, endpoints
from gavel.trainer.serving.listener import AnnouncedServer, address_of, listen

logger = logging.getLogger(__name__)
HEALTH = "/healthz"
"""Open to all."""
_OTHER_KEY = (
    f"Set {KEY_VARIABLE} to the one that it was started with. A run that had begun goes on from its last step with the "
    "same command."
)
_ENDPOINT = re.compile(r"/v1/models/[^/]+/[^/]+/openai/v1/")


class Guard:
    """An application for those who have the key, and how long they have not used it."""

    def __init__(self, app: ASGIApp, key: str, busy: Callable[[], object]) -> None:
        """`busy`: true while a job runs, which is use too."""
        self._app = app
        self._key = key.encode()
        self._busy = busy
        self._requests = 0
        self._last = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == HEALTH:
            return await self._app(scope, receive, send)
        if (refusal := self._refusal(Request(scope))) is not None:
            return await refusal(scope, receive, send)
        self._requests += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._requests -= 1
            self._last = time.monotonic()

    def idle_seconds(self) -> float:
        """Since anything was done; 0 while something is."""
        if self._requests or self._busy():
            self._last = time.monotonic()
        return time.monotonic() - self._last

    def _refusal(self, request: Request) -> Response | None:
        given = given_key(request.headers)
        is_ours = hmac.compare_digest(given.encode(), self._key)
        if _ENDPOINT.match(request.scope["path"]):
            if is_ours or any(served.holds(given) for served in endpoints().values()):
                return None
            return _error(401, "the key is not that of this server", "authentication_error")
        if not is_ours:
            return refused(401, RemoteError("the key is not that of the server", _OTHER_KEY))
        spoken = request.headers.get(PROTOCOL_HEADER)
        if spoken != str(PROTOCOL):
            why = f"the server speaks protocol {PROTOCOL}, and the client {spoken or 'none'}"
            return refused(426, RemoteError(why, "Install the same version of Gavel on both sides."))
        return None


def refused(status: int, error: GavelError) -> Response:
    return JSONResponse({"error": Fault.of(error).model_dump()}, status)


_SCOPE = ("type", "asgi", "http_version", "method", "scheme", "query_string", "headers", "client", "server")


class Forwarded(Response):
    """The answer of an endpoint, which is made on that endpoint's event loop and sent by this one."""

    def __init__(self, served: Served, path: str, body: bytes) -> None:
        super().__init__()
        self._served = served
        self._path = path
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        here, messages, unread = asyncio.get_running_loop(), asyncio.Queue[Message | None](), [self._body]
        asked = {name: scope[name] for name in _SCOPE if name in scope}
        asked |= {"path": self._path, "raw_path": self._path.encode(), "root_path": ""}

        async def received() -> Message:
            return dict(await receive())

        async def heard() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop()}
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(received(), here))

        async def told(message: Message) -> None:
            here.call_soon_threadsafe(messages.put_nowait, message)

        answering = asyncio.run_coroutine_threadsafe(self._served.app(asked, heard, told), self._served.loop)
        answer, begun = asyncio.wrap_future(answering), False
        answer.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            while (message := await messages.get()) is not None:
                begun = True
                if message.get("status") == 500:  # clients repeat what a restart mends, for as long as they are patient
                    message = {**message, "headers": [*message["headers"], (b"x-should-retry", b"false")]}
                await send(message)
        finally:
            answer.cancel()  # no effect on one that is done
        if not begun:
            await _error(503, "the model's endpoint is closing")(scope, receive, send)
        elif not answer.cancelled() and (error := answer.exception()) is not None:
            logger.error("a model's endpoint failed", exc_info=error)


def _error(status: int, message: str, kind: str = "server_error") -> Response:
    """An error as OpenAI's API has it."""
    return JSONResponse({"error": {"message": message, "type": kind, "param": None, "code": None}}, status)


_FETCHED = "checkpoints", "exports", "trajectories"
_METHODS = ["GET", "POST", "DELETE", "PUT", "PATCH", "HEAD"]


def create_app(backend: LocalBackend, *, key: str, root: Path) -> Guard:
    """`root`: the runs' directory, that of the backend. Closes the backend at the end."""
    jobs = Jobs(backend, root)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        yield
        await jobs.close()

    app = FastAPI(title="Gavel backend", version=version("gavel-rl"), lifespan=lifespan, redoc_url=None)

    @app.get(HEALTH)
    async def health() -> dict[str, object]:
        return {"status": "ok", "version": app.version, "protocol": PROTOCOL}

    @app.get("/v1/models/{project}/{name}")
    async def kept(project: str, name: str) -> dict[str, object]:
        run = jobs.model((project, name)).directory
        return {**read_description(run / "model.json"), "checkpoints": Checkpoints(run / "checkpoints").steps()}

    @app.post("/v1/models/{project}/{name}/jobs")
    async def submit(project: str, name: str, request: Request) -> Response:
        try:
            head, _, groups = (await request.body()).partition(b"\n")
        except ClientDisconnect:  # it is sent again
            return Response(status_code=CLIENT_GONE)
        job = Job.model_validate_json(head)
        return _answer(job.id, jobs.submit((project, name), job, groups))

    @app.get("/v1/models/{project}/{name}/jobs/{job}")
    async def follow(project: str, name: str, job: str, wait: Annotated[float, Query(ge=0, le=60)] = 0) -> Response:
        running = jobs.find((project, name), job)
        if running is None:
            return refused(404, GavelError("this server does not know the job", "Send it again."))
        await asyncio.wait({running}, timeout=wait)
        return _answer(job, running)

    @app.get("/v1/models/{project}/{name}/history")
    async def history(project: str, name: str, split: str | None = None) -> Response:
        rows = await asyncio.to_thread(read_rows, jobs.model((project, name)).directory / "metrics.jsonl")
        return JSONResponse([row for row in rows if split in (None, row["split"])])

    @app.get("/v1/models/{project}/{name}/files/{path:path}")
    async def file(project: str, name: str, path: str) -> Response:
        run = jobs.model((project, name)).directory
        if not (run / path).is_file() or not any(is_inside(run / part, run / path) for part in _FETCHED):
            why = f"there is no file {path} to fetch"
            return refused(404, GavelError(why, "Checkpoints, exports and trajectories can be fetched."))
        return FileResponse(run / path)

    @app.api_route("/v1/models/{project}/{name}/openai/v1/{path:path}", methods=_METHODS, include_in_schema=False)
    async def endpoint(project: str, name: str, path: str, request: Request) -> Response:
        try:
            spec = (await jobs.loaded((project, name))).spec
            if not isinstance(spec, TrainableSpec):
                return _error(404, f"the model {name} is prompted elsewhere: call it where it is served")
            served = endpoints().get(backend.endpoint(spec).base_url)
        except NotRegisteredError as error:
            return _error(404, error.message)
        except GavelError as error:  # it cannot be loaded at this moment
            return _error(503, f"{error.message} {error.remedy}".strip())
        if served is None:  # it restarts after an error, or ends
            return _error(503, "the model's endpoint is closing")
        return Forwarded(served, f"/v1/{path}", await request.body())

    @app.exception_handler(GavelError)
    async def told(_: Request, error: Exception) -> Response:
        assert isinstance(error, GavelError)
        return refused(404 if isinstance(error, NotRegisteredError) else 409, error)

    @app.exception_handler(ValidationError)
    @app.exception_handler(RequestValidationError)
    async def misunderstood(_: Request, error: Exception) -> Response:
        assert isinstance(error, ValidationError | RequestValidationError)
        return refused(422, unknown_settings(error))

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> Response:
        return refused(500, GavelError(f"the server failed: {type(error).__name__}: {error}", "See its log."))

    return Guard(app, key, jobs.running)


def _answer(job: str, running: "asyncio.Task[JobState]") -> Response:
    state = running.result() if running.done() else JobState(id=job, state="running")
    return Response(state.model_dump_json(), media_type="application/json")


@contextlib.contextmanager
def hold_root(root: Path, address: str) -> Generator[None]:
    """Holds the directory of runs for the server at this address.

    Raises `RunDirectoryError` where another server holds it, and where files cannot be locked or written.
    """
    path = root / ".backend" / "server.lock"
    with contextlib.ExitStack() as held:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            held.enter_context(locked(path))
            path.write_text(f"{address}, process {os.getpid()} on {os.uname().nodename}", encoding="utf-8")
        except BlockingIOError as error:
            raise RunDirectoryError(
                f"another `gavel backend` serves the runs in {root} ({path.read_text(encoding='utf-8')})",
                "Use that one, or stop it first; for a server of its own choose another place: --runs.",
            ) from error
        except OSError as error:
            raise RunDirectoryError(
                f"{root} cannot hold runs, whose files are written and locked: {error.strerror}",
                "Choose another place: --runs or GAVEL_RUNS. A mounted bucket often cannot lock files: keep runs on a "
                "disk, and copy checkpoints to the bucket.",
            ) from error
        yield


_IDLE_SECONDS = 600
_CLOSING_SECONDS = 3
"""Shutdown grace period for answers, seconds; whoever waits for a job asks the next server."""


async def serve(
    backend: LocalBackend,
    *,
    key: str,
    root: Path,
    host: str,
    port: int,
    announce: Callable[[str], None],
    idle_seconds: float | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT; then finishes the steps in progress. `announce` is told the address.

    With `idle_seconds` it also ends when no request and no job was there for so long.

    Raises `EndpointError`, and `RunDirectoryError` where another server has these runs.
    """
    with contextlib.ExitStack() as held:
        listener = held.enter_context(contextlib.closing(listen(host, port)))
        address = address_of(listener, host)
        held.enter_context(hold_root(root, address))
        app = create_app(backend, key=key, root=root)
        config = uvicorn.Config(
            app,
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=_CLOSING_SECONDS,
        )
        server = AnnouncedServer(config, lambda: announce(address))
        loop = asyncio.get_running_loop()

        def stop() -> None:
            server.should_exit = True

        async def stop_when_idle(seconds: float) -> None:
            while (left := seconds - app.idle_seconds()) > 0:  # noqa: ASYNC110 - time itself is waited for
                await asyncio.sleep(min(left, max(seconds / 10, 0.05)))
            stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
            held.callback(loop.remove_signal_handler, number)
        if idle_seconds is not None:
            held.callback(asyncio.create_task(stop_when_idle(idle_seconds)).cancel)
        await server.serve(sockets=[listener])
