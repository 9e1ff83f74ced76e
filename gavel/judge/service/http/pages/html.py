"""Renders the pages, and gives each its headers."""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import Response

from gavel.judge.service.http.pages.assets import asset_path
from gavel.judge.service.http.pages.wording import FILTERS

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; base-uri 'none'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
        "img-src 'self'; script-src 'self'; style-src 'self'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
}
"""With `no-referrer`, which other answers have, browsers hide from the service that its own forms are its own."""


def page(
    request: Request, template: str, *, status: int = 200, headers: Mapping[str, str] | None = None, **values: object
) -> Response:
    """The rendered template; 304 without a body when the browser names the same content as what it has."""
    text = _environment().get_template(template).render({"viewer": None, **values})
    content = text.encode("utf-8", "replace")  # a lone surrogate cannot be encoded
    tag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
    sent = {**HEADERS, "ETag": tag, **(headers or {})}
    if status == 200 and request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=sent)
    return Response(content, status, sent, "text/html; charset=utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update({**FILTERS, "asset": asset_path})  # pyright: ignore[reportUnknownMemberType]
    return environment
