"""Who may look: this machine's own browser, or whoever has the token of the address.

A page of another site cannot read the viewer by a name of its own that leads to this machine: requests must name the
host that is served. With a token, its first use puts it into a cookie, and takes it out of the address.
"""

import hmac
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "gavel-view"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; base-uri 'none'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
        "img-src 'self'; script-src 'self'; style-src 'self'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


class Guard:
    """Stands before all pages, and gives their answers the headers."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        """`token`: None for a viewer that listens on loopback alone."""
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                named = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *named]}
            await send(message)

        answer = self._refusal(Request(scope))
        await (answer or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        if request.method == "POST" and not _is_own_page(request):
            return PlainTextResponse("Pages of other sites may not send anything here.", 403)
        if self._token is None:
            if request.url.hostname not in LOOPBACK:
                return PlainTextResponse("This viewer answers to 127.0.0.1 and localhost alone.", 421)
            return None
        if hmac.compare_digest(request.query_params.get("token", "").encode(), self._token.encode()):
            rest = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
            answer = RedirectResponse(request.url.path + (f"?{urlencode(rest)}" if rest else ""), 303)
            answer.set_cookie(COOKIE, self._token, httponly=True, samesite="strict")
            return answer
        if hmac.compare_digest(request.cookies.get(COOKIE, "").encode(), self._token.encode()):
            return None
        return PlainTextResponse("Open the address that `gavel view` printed: it has the token.", 403)


def _is_own_page(request: Request) -> bool:
    """Whether a form was sent by a page of the viewer: browsers name the site that it comes from."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin")
    return origin is None or origin.partition("://")[2] == request.headers.get("host")
