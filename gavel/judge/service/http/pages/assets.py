"""`/assets/…`: the style, the script and the icon of the pages. They are the same for all, and need no key."""

import hashlib
from functools import cache
from pathlib import Path

from fastapi import APIRouter
from starlette.responses import Response

from gavel.judge.service.errors import NotFoundError

_FOLDER = Path(__file__).parent / "assets"
_TYPES = {
    "style.css": "text/css; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_A_YEAR = 31_536_000

router = APIRouter(include_in_schema=False)


@router.get("/assets/{version}/{name}")
async def asset(version: str, name: str) -> Response:
    """A file of the pages. Raises `NotFoundError`."""
    if name not in _TYPES:
        raise NotFoundError("there is no such file.", "Reload the page.")
    kept = f"public, max-age={_A_YEAR}, immutable" if version == _version(name) else "no-store"
    return Response(_read(name), 200, {"Cache-Control": kept}, _TYPES[name])


def asset_path(name: str) -> str:
    """Where a page finds the file; the path changes with the content, so that browsers may keep it."""
    return f"/assets/{_version(name)}/{name}"


@cache
def _read(name: str) -> bytes:
    return (_FOLDER / name).read_bytes()


@cache
def _version(name: str) -> str:
    return hashlib.sha256(_read(name)).hexdigest()[:12]
