"""What was deleted is nowhere: not in the database's files, not in its log, not in what the service prints."""

import asyncio
import json
import logging
import re
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard

from gavel.judge.service.config import ServiceConfig, ServiceLimits
from gavel.judge.service.engine import engine as engine_module
from gavel.judge.service.store.database import Database
from gavel.judge.service.store.reply_store import delete_replies
from tests.endpoint import Answer, Endpoint, Request, labels_in, says
from tests.judge.service.in_process import config_of, group, messages, serving
from tests.judge.service.processes import served
from tests.limits import HANG_SECONDS, wait_until

pytestmark = pytest.mark.slow
MARKER = "zq8marker5w"
_FRAME = b"\x28\xb5\x2f\xfd"
_HOW = ("plainly", "slowly", "calmly", "gladly", "kindly", "loudly")


def traces_in(folder: Path) -> list[str]:
    """Files that have the marker, as it is or within a compressed value."""
    return [path.name for path in sorted(folder.iterdir()) if path.is_file() and _has_marker(path.read_bytes())]


def _has_marker(data: bytes) -> bool:
    found = [data]
    for frame in re.finditer(re.escape(_FRAME), data):
        with suppress(zstandard.ZstdError):
            value = data[frame.start() : frame.start() + 65536]
            found.append(zstandard.ZstdDecompressor().decompressobj().decompress(value))
    return any(MARKER.encode() in each for each in found)


def telling(request: Request) -> Answer:
    """A judge model that quotes what it has read."""
    word = MARKER if MARKER in str(request["messages"]) else "nothing"
    entries = [
        {"trajectory_id": label, "explanation": f"It says {word} {_HOW[position]}.", "score": 0.5 + position / 10}
        for position, label in enumerate(labels_in(request))
    ]
    return says(json.dumps({"scores": entries}), {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18})


async def until_nothing_is_left(folder: Path) -> None:
    await asyncio.to_thread(wait_until, lambda: not traces_in(folder))


OPTIONS: dict[str, Any] = {"rubric": f"Knows {MARKER}.", "reference": f"{MARKER} is right."}


async def whole(client: httpx.AsyncClient) -> httpx.Response:
    members = [
        {"messages": messages(f"{MARKER} {n}"), "metadata": {"own": MARKER}, "status_reason": MARKER} for n in (1, 2)
    ]
    return await client.post("/v1/score", json={**OPTIONS, "trajectories": members})


async def by_members(client: httpx.AsyncClient) -> httpx.Response:
    sent = [{"expected": 2, "id": f"m{n}", "messages": messages(f"{MARKER} {n}"), **OPTIONS} for n in (1, 2)]
    return (await asyncio.gather(*(client.post("/v1/groups/g/members", json=each) for each in sent)))[0]


@pytest.fixture
def config(tmp_path: Path, endpoint: Endpoint) -> ServiceConfig:
    endpoint.script = [telling]
    (tmp_path / "data").mkdir()
    return config_of(tmp_path / "data", endpoint, {"orders": 2}, limits=ServiceLimits(shutdown_seconds=1))


async def test_nothing_of_what_was_deleted_is_left_in_the_files_or_the_log(
    config: ServiceConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG, logger="gavel")
    monkeypatch.setattr(engine_module, "_OVERWRITE_SECONDS", 0.1)
    folder = Path(config.database).parent
    async with serving(config) as client:
        await client.post("/v1/score", json=group("kept", "too"))
        for way in (whole, by_members):
            answer = await way(client)
            assert (answer.status_code, MARKER in answer.text) == (200, True)
        for one in (await client.get("/v1/judgements?limit=2")).json()["judgements"]:
            assert (await client.delete(f"/v1/judgements/{one['id']}")).status_code == 204
        await until_nothing_is_left(folder)
        assert len((await client.get("/v1/judgements")).json()["judgements"]) == 1
    assert traces_in(folder) == []
    assert MARKER not in "".join(record.getMessage() for record in caplog.records if record.name.startswith("gavel"))


async def test_nothing_is_left_after_a_kill_and_a_restart(config: ServiceConfig, monkeypatch: pytest.MonkeyPatch):
    folder = Path(config.database).parent
    served_config = config.model_copy(update={"port": 0})
    async with served(served_config) as service, httpx.AsyncClient(base_url=service.url, timeout=HANG_SECONDS) as one:
        answer = await whole(one)
        assert (await one.delete(answer.headers["location"])).status_code == 204
        await asyncio.to_thread(service.kill)
    monkeypatch.setattr(engine_module, "_OVERWRITE_SECONDS", 0.1)
    async with serving(config):
        await until_nothing_is_left(folder)


async def test_old_judgements_leave_while_they_are_paged_through_and_read(config: ServiceConfig):
    async with serving(config.model_copy(update={"retention_days": 1e-9})) as client:
        engine = client._transport.app.state.engine  # type: ignore[attr-defined]
        places = [
            (await client.post("/v1/score", json=group(f"a {n}", f"{MARKER} {n}"))).headers["location"]
            for n in range(6)
        ]
        first = (await client.get("/v1/judgements?limit=2")).json()
        reading = [client.get(place) for place in places for _ in range(5)]
        expiring = engine.store.delete_before(2**40)
        *answers, deleted = await asyncio.gather(*reading, expiring)
        assert deleted == 6
        assert {answer.status_code for answer in answers} <= {200, 404}
        rest = await client.get(f"/v1/judgements?limit=2&before={first['next']}")
        assert rest.json() == {"judgements": [], "next": None}
        for place in places:
            assert (await client.get(place)).status_code == 404
            assert (await client.get(place.removeprefix("/v1"))).status_code == 404
        await engine.store.overwrite_erased()
        assert traces_in(Path(config.database).parent) == []


async def test_a_judgement_with_very_many_replies_can_be_deleted(config: ServiceConfig):
    keys = {f"{number:x}" for number in range(70_000)}
    with closing(Database.open(config.database)) as database:
        await database.write(lambda connection: delete_replies(connection, keys))
