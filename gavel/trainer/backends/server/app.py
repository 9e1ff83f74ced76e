"""The HTTP application around a `LocalBackend`. `wire` lists the routes for jobs and uploads; besides them there are

GET  /healthz
GET  /v1/models/{project}/{name}/history?split=…   rows of metrics
GET  /v1/models/{project}/{name}/files/{path}      of a checkpoint or an export, with Range
*    /v1/models/{project}/{name}/openai/v1/…       the model's OpenAI-compatible endpoint
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, JSONResponse, StreamingResponse

from gavel.base.errors import GavelError
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.protocol import NotRegisteredError
from gavel.trainer.backends.remote.wire import (
    HEARTBEAT_SECONDS,
    LENGTH_HEADER,
    OFFSET_HEADER,
    PROTOCOL,
    Job,
    KeptRun,
)
from gavel.trainer.backends.server.activity import Activity, CountedRequests
from gavel.trainer.backends.server.guard import HEALTH, Guard, refused
from gavel.trainer.backends.server.jobs import Jobs, RunningJob, unknown_settings
from gavel.trainer.backends.server.passthrough import UNBUFFERED, Passthrough
from gavel.trainer.backends.server.served_files import served_file
from gavel.trainer.backends.server.uploads import UploadError, Uploads
from gavel.trainer.runs.metrics import whole_rows
from gavel.trainer.serving.errors import CLIENT_GONE

logger = logging.getLogger(__name__)

_METHODS = ["GET", "POST", "DELETE", "PUT", "PATCH", "HEAD"]


def create_app(
    backend: LocalBackend,
    *,
    key: str,
    root: Path,
    most_upload_bytes: int = 4 << 30,
    activity: Activity | None = None,
) -> FastAPI:
    """`root`: the runs' directory, that of the backend. `activity` hears of requests. Closes the backend at the end."""
    uploads = Uploads(root / ".backend" / "uploads", most_bytes=most_upload_bytes)
    jobs = Jobs(backend, root, uploads)
    passthrough = Passthrough(backend, jobs, key)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        yield
        await passthrough.close()
        await jobs.close()

    app = FastAPI(title="Gavel backend", version=version("gavel-rl"), lifespan=lifespan, redoc_url=None)

    if activity is not None:
        activity.busy = jobs.running
        app.add_middleware(CountedRequests, activity=activity, uncounted=HEALTH)
    app.add_middleware(Guard, key=key, admits=passthrough.admits)

    @app.get(HEALTH)
    async def health() -> dict[str, object]:
        return {"status": "ok", "version": app.version, "protocol": PROTOCOL}

    @app.get("/v1/models/{project}/{name}")
    async def kept(project: str, name: str) -> KeptRun:
        return await asyncio.to_thread(jobs.kept((project, name)).kept_run)

    @app.post("/v1/models/{project}/{name}/jobs")
    async def submit(project: str, name: str, job: Job) -> Response:
        return _answer(jobs.submit((project, name), job))

    @app.get("/v1/models/{project}/{name}/jobs/{job}")
    async def follow(project: str, name: str, job: str, now: bool = False) -> Response:
        running = jobs.find((project, name), job)
        if running is None:
            return refused(404, GavelError("this server does not know the job", "Send it again."))
        if now:
            return _answer(running)
        return StreamingResponse(_events(running), media_type="text/event-stream", headers=UNBUFFERED)

    @app.get("/v1/models/{project}/{name}/history")
    async def history(project: str, name: str, split: str | None = None) -> Response:
        metrics = await asyncio.to_thread(whole_rows, jobs.kept((project, name)).directory / "metrics.jsonl")
        if metrics.damage:
            logger.warning("%s", metrics.damage)
        return JSONResponse([row for row in metrics.rows if split in (None, row["split"])])

    @app.get("/v1/models/{project}/{name}/files/{path:path}")
    async def file(project: str, name: str, path: str) -> Response:
        found = await asyncio.to_thread(served_file, jobs.kept((project, name)).directory, path)
        if found is None:
            return refused(
                404,
                GavelError(
                    f"there is no file {path} to fetch", "Checkpoints, exports and trajectories can be fetched."
                ),
            )
        return FileResponse(found)

    @app.get("/v1/uploads/{sha256}")
    async def offset(sha256: str) -> Response:
        return Response(headers={OFFSET_HEADER: str(uploads.offset(sha256))})

    @app.patch("/v1/uploads/{sha256}")
    async def upload(sha256: str, request: Request) -> Response:
        try:
            start, length = (int(request.headers[name]) for name in (OFFSET_HEADER, LENGTH_HEADER))
        except (KeyError, ValueError) as error:
            raise UploadError(f"{OFFSET_HEADER} and {LENGTH_HEADER} are whole numbers", "Send both.") from error
        try:
            there = await uploads.add(sha256, start, length, request.stream())
        except ClientDisconnect:  # it goes on later
            return Response(status_code=CLIENT_GONE)
        return Response(headers={OFFSET_HEADER: str(there)})

    @app.api_route("/v1/models/{project}/{name}/openai/v1/{path:path}", methods=_METHODS, include_in_schema=False)
    async def endpoint(project: str, name: str, path: str, request: Request) -> Response:
        return await passthrough.answer(request, (project, name), path)

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

    return app


def _answer(running: RunningJob) -> Response:
    return Response(running.now().model_dump_json(), media_type="application/json")


async def _events(running: RunningJob) -> AsyncIterator[bytes]:
    while True:
        changed = running.changed
        yield f"data: {running.now().model_dump_json()}\n\n".encode()
        if running.ended:
            return
        try:
            await asyncio.wait_for(changed.wait(), HEARTBEAT_SECONDS)
        except TimeoutError:
            continue
