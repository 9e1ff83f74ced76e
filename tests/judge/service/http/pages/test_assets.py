"""The files of the pages."""

from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

import gavel.judge.service.http.pages.routes as assets

NAMES = [path.name for path in (Path(assets.__file__).parent / "assets").iterdir()]


@pytest.mark.parametrize("name", NAMES)
async def test_a_file_may_be_kept_under_the_address_that_pages_name(name: str):
    app = FastAPI()
    app.include_router(assets.router)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        found = await client.get(assets.asset_path(name))
        other = await client.get(f"/assets/0/{name}")
    assert (found.status_code, "immutable" in found.headers["cache-control"]) == (200, True)
    assert (other.content, other.headers["cache-control"]) == (found.content, "no-store")
    assert b"http:" not in found.content.replace(b"http://www.w3.org/2000/svg", b"")
    assert b"https:" not in found.content
