"""Captures over HTTP: every request belongs to the capture whose key it has; two routes open and close captures.

`POST /v1/captures` -> {"api_key"}; `DELETE /v1/captures/{api_key}?patience=SECONDS` -> {"trajectory", "unfinished"}.
"""

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gavel.llm.types import Message
from gavel.trainer.serving.capture_book import KEY_PREFIX, CaptureBook, UnknownCapture, current_capture
from gavel.trainer.serving.captured_trajectory import captured_trajectory
from gavel.trainer.serving.errors import BadRequest, shown
from gavel.trainer.serving.sse import refused

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
            capture = self._captures.of(_key(Headers(scope=scope)))
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


class CaptureApi:
    """The routes that open and close captures."""

    def __init__(self, captures: CaptureBook) -> None:
        self._captures = captures
        self.routes = [
            Route("/v1/captures", self._open, methods=["POST"]),
            Route("/v1/captures/{key}", self._close, methods=["DELETE"]),
        ]

    async def _open(self, request: Request) -> Response:
        return JSONResponse({"api_key": self._captures.open()})

    async def _close(self, request: Request) -> Response:
        try:
            patience = _patience(request.query_params.get("patience", "0"))
            capture = await self._captures.close(request.path_params["key"], patience)
        except UnknownCapture as error:
            return _unauthorized(error)
        except BadRequest as error:
            return refused(error)
        trajectory = captured_trajectory(capture.turns)
        if capture.abandoned:
            trajectory.metrics["turns_abandoned"] = capture.abandoned
        content = f'{{"trajectory": {trajectory.to_json()}, "unfinished": {capture.in_flight}}}'
        return Response(content, media_type="application/json")


def _patience(given: str) -> float:
    """In seconds. Raises `BadRequest`."""
    try:
        return min(max(float(given), 0.0), _MAX_PATIENCE)
    except ValueError:
        raise BadRequest(f"patience={shown(given)} is no number", "Give seconds.") from None


def _key(headers: Headers) -> str:
    """Of a capture wherever it stands, as OpenAI's, Anthropic's and Azure's clients write it; else any."""
    given = [headers.get(name, "").split() for name in ("x-api-key", "authorization", "api-key")]
    keys = [words[-1] for words in given if words]
    return next((key for key in keys if key.startswith(KEY_PREFIX)), keys[0] if keys else "")


def _unauthorized(error: UnknownCapture) -> Response:
    """In the form of OpenAI's API and of Anthropic's at once."""
    fault: Message = {"type": "authentication_error", "message": str(error), "code": "invalid_api_key"}
    return JSONResponse({"type": "error", "error": fault}, 401)
