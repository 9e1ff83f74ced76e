"""A server knows when it was last used, and ends itself when it was told to."""

import asyncio
from pathlib import Path

import httpx
import pytest

from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.remote.wire import PROTOCOL, PROTOCOL_HEADER
from gavel.trainer.backends.server.app import Activity, create_app
from gavel.trainer.backends.server.serve import serve
from tests.backend_server import KEY
from tests.limits import HANG_SECONDS

HEADERS = {"Authorization": f"Bearer {KEY}", PROTOCOL_HEADER: str(PROTOCOL)}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("gavel.trainer.backends.server.app.time.monotonic", lambda: now[0])
    return now


def test_requests_and_jobs_are_work_until_they_end(clock: list[float]) -> None:
    activity = Activity()
    clock[0] = 110.0
    assert activity.idle_seconds() == 10.0
    with activity.request():
        clock[0] = 500.0
        assert activity.idle_seconds() == 0.0
    clock[0] = 505.0
    assert activity.idle_seconds() == 5.0
    activity.busy = lambda: True
    assert activity.idle_seconds() == 0.0
    activity.busy = lambda: False
    clock[0] = 508.0
    assert activity.idle_seconds() == 3.0


@pytest.mark.slow
async def test_questions_for_health_and_requests_without_the_key_are_no_use(clock: list[float], tmp_path: Path) -> None:
    activity = Activity()
    app = create_app(LocalBackend(tmp_path), key=KEY, root=tmp_path, activity=activity)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
        clock[0] = 110.0
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/v1/models/a/b/history")).status_code == 401
        assert activity.idle_seconds() == 10.0
        assert (await client.get("/v1/models/a/b/history", headers=HEADERS)).status_code == 404
        assert activity.idle_seconds() == 0.0


@pytest.mark.slow
async def test_a_server_ends_when_nobody_has_used_it(tmp_path: Path) -> None:
    told: list[str] = []
    backend = LocalBackend(tmp_path)
    serving = serve(backend, key=KEY, root=tmp_path, host="127.0.0.1", port=0, announce=told.append, idle_seconds=0.3)
    await asyncio.wait_for(serving, HANG_SECONDS)
    assert told[0].startswith("http://127.0.0.1:")
