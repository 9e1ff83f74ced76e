"""Refuses requests without the server's key, and those of a client that speaks another protocol."""

import hmac
import re
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gavel.base.errors import GavelError
from gavel.trainer.backends.remote.faults import ProtocolError, WrongKeyError
from gavel.trainer.backends.remote.wire import KEY_VARIABLE, PROTOCOL, PROTOCOL_HEADER, Fault

HEALTH = "/healthz"
"""Open to all."""
_OTHER_KEY = (
    f"Set {KEY_VARIABLE} to the one that it was started with. A run that had begun goes on from its last step with the "
    "same command."
)
_ENDPOINT = re.compile(r"/v1/models/[^/]+/[^/]+/openai/v1/")


class Guard:
    """Stands before all routes."""

    def __init__(self, app: ASGIApp, key: str, admits: Callable[[Request], bool]) -> None:
        """`admits`: whether a request may go to a model's endpoint."""
        self._app = app
        self._key = key.encode()
        self._admits = admits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == HEALTH:
            return await self._app(scope, receive, send)
        answer = self._refusal(Request(scope))
        await (answer or self._app)(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        if _ENDPOINT.match(request.scope["path"]):
            if self._admits(request):
                return None
            error = {"message": "the key is not that of this server", "type": "authentication_error", "code": None}
            return JSONResponse({"error": error}, 401)
        if not hmac.compare_digest(given_key(request).encode(), self._key):
            return refused(401, WrongKeyError("the key is not that of the server", _OTHER_KEY))
        spoken = request.headers.get(PROTOCOL_HEADER)
        if spoken != str(PROTOCOL):
            return refused(
                426,
                ProtocolError(
                    f"the server speaks protocol {PROTOCOL}, and the client {spoken or 'none'}",
                    "Install the same version of Gavel on both sides.",
                ),
            )
        return None


def given_key(request: Request) -> str:
    """As OpenAI's clients give it, or Anthropic's."""
    bearer = request.headers.get("authorization", "")
    return request.headers.get("x-api-key") or bearer.removeprefix("Bearer ").strip()


def refused(status: int, error: GavelError) -> Response:
    fault = Fault(type=type(error).__name__, message=error.message, remedy=error.remedy)
    return JSONResponse({"error": fault.model_dump()}, status)
