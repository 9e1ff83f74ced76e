"""Renders the viewer's pages; style and script are those of the judge service's pages, and a few lines of its own."""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import Response

import gavel.judge.service.http.pages as service_pages
from gavel.base.text import counted
from gavel.judge.service.http.pages.views import FILTERS
from gavel.reports.page import environment

_OWN = Path(__file__).parent
_SHARED = Path(service_pages.__path__[0], "assets")
_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_A_YEAR = 31_536_000


def page(
    request: Request, template: str, *, status: int = 200, headers: Mapping[str, str] | None = None, **values: object
) -> Response:
    """The rendered template; 304 without a body when the browser has this content."""
    text = _environment().get_template(template).render(path=request.url.path, **values)
    content = text.encode("utf-8", "replace")  # half a surrogate pair cannot be encoded
    tag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
    if status == 200 and request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"ETag": tag})
    sent = {"ETag": tag, "Cache-Control": "no-cache", **(headers or {})}
    return Response(content, status, sent, "text/html; charset=utf-8")


def asset(request: Request) -> Response:
    """A file of the pages, by its version and name."""
    name, version = request.path_params["name"], request.path_params["version"]
    file = _assets().get(name)
    if file is None:
        return Response(status_code=404)
    kept = f"public, max-age={_A_YEAR}, immutable" if version == _version(name) else "no-store"
    return Response(file.read_bytes(), 200, {"Cache-Control": kept}, _TYPES[file.suffix])


def group_address(path: str, number: int) -> str:
    """The page of a group."""
    return f"/group/{quote(path)}/{number}"


def _asset_path(name: str) -> str:
    return f"/assets/{_version(name)}/{name}"


@cache
def _assets() -> dict[str, Path]:
    files = {file.name: file for folder in (_SHARED, _OWN / "assets") for file in folder.iterdir()}
    return files | {"curves.css": _OWN.parent / "templates" / "curves.css"}


@cache
def _version(name: str) -> str:
    return hashlib.sha256(_assets()[name].read_bytes()).hexdigest()[:12]


@cache
def _environment() -> Environment:
    found = environment(_OWN / "templates")
    found.filters.update({**FILTERS, "asset": _asset_path, "counted": counted})  # pyright: ignore[reportUnknownMemberType]
    found.globals["group_address"] = group_address  # pyright: ignore[reportUnknownMemberType]
    return found
