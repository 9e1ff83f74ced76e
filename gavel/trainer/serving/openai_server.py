"""An OpenAI-compatible endpoint over any engine, on loopback, with the routes of Anthropic's API and of vLLM's own.

The model `name@step` is sampled with that step's adapter, `name` with the live one. Every request belongs to the
capture whose key it has: `POST /v1/captures` -> {"api_key"}; `DELETE /v1/captures/{api_key}?patience=SECONDS` ->
{"trajectory", "unfinished"}.
"""

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gavel.llm.types import Message
from gavel.trainer.engines.protocol import Engine
from gavel.trainer.policy.policy import Policy
from gavel.trainer.serving import completions_api, messages_api, responses_api
from gavel.trainer.serving.answers import (
    ANSWERED,
    EndpointError,
    error_answer,
    error_body,
    event,
    json_answer,
    object_of,
    streamed_answer,
    unknown_model,
)
from gavel.trainer.serving.capture import CaptureBook, UnknownCapture, captured_trajectory, current_capture, given_key
from gavel.trainer.serving.chat import ChatCompletions
from gavel.trainer.serving.in_process import Served, no_longer_serve, serve_in_process
from gavel.trainer.serving.listener import AnnouncedServer, address_of, listen
from gavel.trainer.serving.messages_api import error_object

_MAX_PATIENCE = 3600.0


class CaptureMiddleware:
    """Sets `current_capture`; a request with the key of no open capture is answered with 401."""

    def __init__(self, app: ASGIApp, captures: CaptureBook) -> None:
        self._app = app
        self._captures = captures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        try:
            capture = self._captures.of(given_key(Headers(scope=scope)))
        except UnknownCapture as error:
            return await _unauthorized(error)(scope, receive, send)
        if capture is None:
            return await self._app(scope, receive, send)
        with capture.request():
            before = current_capture.set(capture)
            try:
                await self._app(scope, receive, send)
            finally:
                current_capture.reset(before)


def _unauthorized(error: UnknownCapture) -> Response:
    """The error in the form of OpenAI's API and of Anthropic's at once."""
    fault: Message = {"type": "authentication_error", "message": str(error), "code": "invalid_api_key"}
    return JSONResponse({"type": "error", "error": fault}, 401)


_START_DEADLINE = 30.0


class EndpointServer:
    """Serves one model in a thread of its own, so that it answers while the caller's event loop is busy."""

    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        *,
        model: str,
        max_reply: int | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        base_model: str | None = None,
    ) -> None:
        """The arguments are those of `ChatCompletions`; `port` 0 takes a free one. Raises `EndpointError`."""
        self.chat = ChatCompletions(engine, policy, model=model, max_reply=max_reply, base_model=base_model)
        listener = listen(host, port)
        self.base_url = f"{address_of(listener, host)}/v1"
        self._captures = CaptureBook()
        self._app = Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/v1/models", self._models),  # Anthropic's client, given OpenAI's base URL
                Route("/v1/models/{name:path}", self._one_model),
                Route("/v1/chat/completions", self._chat_completions, methods=["POST"]),
                *responses_api.routes(self.chat),
                *messages_api.routes(self.chat),
                *completions_api.routes(self.chat),
                Route("/v1/captures", self._open_capture, methods=["POST"]),
                Route("/v1/captures/{key}", self._close_capture, methods=["DELETE"]),
            ],
            middleware=[Middleware(CaptureMiddleware, captures=self._captures)],
            exception_handlers={404: _not_served, 405: _not_served, **dict.fromkeys(ANSWERED, _refused)},
        )
        config = uvicorn.Config(
            self._app, log_level="warning", lifespan="off", access_log=False, timeout_keep_alive=600
        )
        started = threading.Event()
        self._server = AnnouncedServer(config, started.set)
        self._thread = threading.Thread(target=self._run, args=(listener,), name="gavel-endpoint", daemon=True)
        self._thread.start()
        if not started.wait(_START_DEADLINE):
            raise EndpointError(f"the endpoint at {self.base_url} did not start")

    def close(self) -> None:
        no_longer_serve(self.base_url)
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(timeout=_START_DEADLINE)

    def _run(self, listener: socket.socket) -> None:
        with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
            runner.run(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        serve_in_process(self.base_url, Served(loop, self.chat.complete, self._app, self._captures.holds))
        try:
            await self._server.serve(sockets=[listener])
        finally:
            no_longer_serve(self.base_url)

    async def _models(self, request: Request) -> Response:
        names = self.chat.names
        listed = {"object": "list", "data": [self._model(name) for name in names]}
        return JSONResponse(listed | {"first_id": names[0], "last_id": names[-1], "has_more": False})

    async def _one_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self.chat.names:
            return JSONResponse(error_answer(unknown_model(name, self.chat.names))[1], 404)
        return JSONResponse(self._model(name))

    def _model(self, name: str) -> dict[str, Any]:
        """The model in the form of OpenAI's API and of Anthropic's at once."""
        return {
            "id": name,
            "object": "model",
            "type": "model",
            "display_name": name,
            "created": 0,
            "created_at": "1970-01-01T00:00:00Z",
            "owned_by": "gavel",
            "max_model_len": self.chat.max_context,
        }

    async def _chat_completions(self, request: Request) -> Response:
        body = await object_of(request)
        if body.get("stream"):
            return await streamed_answer(request, _events(self.chat.stream(body)))
        return await json_answer(request, self.chat.complete(body))

    async def _open_capture(self, request: Request) -> Response:
        return JSONResponse({"api_key": self._captures.open()})

    async def _close_capture(self, request: Request) -> Response:
        try:
            patience = min(max(float(request.query_params.get("patience", "0")), 0.0), _MAX_PATIENCE)
            capture = await self._captures.close(request.path_params["key"], patience)
        except UnknownCapture as error:
            return _unauthorized(error)
        trajectory = captured_trajectory(capture.turns)
        if capture.abandoned:
            trajectory.metrics["turns_abandoned"] = capture.abandoned
        content = f'{{"trajectory": {trajectory.to_json()}, "unfinished": {capture.in_flight}}}'
        return Response(content, media_type="application/json")


async def _not_served(request: Request, error: Exception) -> Response:
    served = [f"{','.join(sorted(each.methods or ()))} {each.path}" for each in request.app.routes]
    told = f"{request.method} {request.url.path} is not served here; served: {'; '.join(dict.fromkeys(served))}"
    status = error.status_code if isinstance(error, HTTPException) else 404
    return JSONResponse(_as_asked(request, error_body(told, "not_served")), status, getattr(error, "headers", None))


async def _refused(request: Request, error: Exception) -> Response:
    status, body = error_answer(error)
    return JSONResponse(_as_asked(request, body), status)


def _as_asked(request: Request, body: Message) -> Message:
    """An error in the form of the API that is asked, whose clients show it."""
    return error_object(body) if "/v1/messages" in request.url.path else body


async def _events(chunks: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(chunks):
        async for chunk in chunks:
            yield event(chunk)
        yield event("[DONE]")
