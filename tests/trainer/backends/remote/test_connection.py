"""What proxies and broken lines do to requests: they cost time alone, or are told with what to do."""

import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.remote.client import RemoteBackend
from gavel.trainer.backends.remote.connection import canonical
from gavel.trainer.backends.remote.wire import RemoteBackendError
from gavel.trainer.backends.server.app import create_app
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.model import TrainableModel
from tests.backend_server import KEY, serving
from tests.trainer.backends.test_conformance import a_group

pytestmark = pytest.mark.slow

Asgi = Callable[[Any, Any, Any], Awaitable[None]]


async def two_steps(url: str, runs: Path) -> None:
    """Each is made once."""
    async with RemoteBackend(url, KEY, patience=60) as backend:
        model = TrainableModel(name="clerk", project="tests", base_model=EMBEDDED_POLICY)
        await model.register(backend)
        for step in (1, 2):
            assert (await model.train([await a_group(model, 0.0, 1.0)])).step == step
        assert [row["step"] for row in backend.history(model, "train")] == [1, 2]
    done = [line for line in (runs / "tests/clerk/jobs.jsonl").read_text().splitlines() if "done" in json.loads(line)]
    assert len(done) == 2


def before(runs: Path, wrap: Callable[[Asgi], Asgi]) -> Asgi:
    """The server, behind something."""
    app = create_app(LocalBackend(runs), key=KEY, root=runs)
    wrapped = wrap(app)

    async def asked(scope: Any, receive: Any, send: Any) -> None:
        await (app if scope["type"] == "lifespan" else wrapped)(scope, receive, send)

    return asked


async def test_groups_are_sent_in_bodies_that_every_proxy_takes(tmp_path: Path) -> None:
    sizes: list[int] = []

    def wrap(app: Asgi) -> Asgi:
        async def measuring(scope: Any, receive: Any, send: Any) -> None:
            if scope["method"] == "PUT":
                sizes.append(int(dict(scope["headers"])[b"content-length"]))
            await app(scope, receive, send)

        return measuring

    noise = TrajectoryGroup([Trajectory(logs=[os.urandom(400_000).hex()], reward=reward) for reward in (0.0, 1.0, 2.0)])
    with serving(before(tmp_path, wrap)) as url:
        async with RemoteBackend(url, KEY, patience=60) as backend:
            model = TrainableModel(name="clerk", project="tests", base_model=EMBEDDED_POLICY)
            await model.register(backend)
            await model.log([noise], "val")
            (kept,) = await backend.logged(model, "val", 0)
    assert [member.logs for member in kept] == [member.logs for member in noise]
    assert len(sizes) > 1
    assert max(sizes) <= 1_000_000


@pytest.mark.parametrize("times", [1, 99])
async def test_an_upload_that_is_altered_on_the_way_is_sent_again_and_told_when_it_always_is(
    tmp_path: Path, times: int
) -> None:
    altered = 0

    def wrap(app: Asgi) -> Asgi:
        async def altering(scope: Any, receive: Any, send: Any) -> None:
            async def received() -> Any:
                nonlocal altered
                message = await receive()
                if scope["method"] == "PUT" and message.get("body") and altered < times:
                    altered += 1
                    message = {**message, "body": bytes([message["body"][0] ^ 1]) + message["body"][1:]}
                return message

            await app(scope, received, send)

        return altering

    with serving(before(tmp_path, wrap)) as url:
        if times == 1:
            await two_steps(url, tmp_path)
        else:
            with pytest.raises(Exception, match="another SHA-256"):
                await two_steps(url, tmp_path)
    assert altered in (1, 3)


@pytest.mark.parametrize(
    ("status", "headers", "body", "told"),
    [
        (200, [], b"<html>Welcome to nginx!</html>", r"(?s)answers what no server of `gavel backend` answers.*address"),
        (200, [], b"[]", "answers what no server"),
        (404, [], b"<html>Not Found</html>", r"(?s)status 404.*Is it a server of `gavel backend`"),
        (308, [(b"location", b"https://elsewhere/")], b"", "give the address that it redirects to"),
        (413, [], b"", "raise its limit"),
        (500, [], b'{"error": {"type": "GavelError", "message": "it broke", "remedy": "See its log."}}', "it broke"),
        (502, [], b"<html>Bad Gateway</html>", "has not answered"),
        (503, [], b"", "has not answered"),
    ],
)
async def test_what_another_server_answers_is_told(
    status: int, headers: list[tuple[bytes, bytes]], body: bytes, told: str
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            return await send({"type": "lifespan.shutdown.complete"})
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    patience = 0.5 if told == "has not answered" else 60
    with serving(app) as url:
        model = TrainableModel(name="clerk", project="tests", base_model=EMBEDDED_POLICY)
        with pytest.raises(Exception, match=told):
            await model.register(RemoteBackend(url, KEY, patience=patience))


def test_arguments_are_what_json_holds() -> None:
    given = {"a": [1, float("nan")], "b": {"c": float("inf"), "d": "text", "e": None, "f": True}}
    assert canonical(given) == {"a": [1, None], "b": {"c": None, "d": "text", "e": None, "f": True}}
    for value in (object(), {1, 2}, "\ud800"[:0].encode()):
        with pytest.raises(RemoteBackendError, match="cannot be sent"):
            canonical({"a": value})
