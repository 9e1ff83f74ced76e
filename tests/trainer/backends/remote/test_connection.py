"""What addresses, proxies, certificates and broken lines do to requests: they cost time alone, or are told."""

import asyncio
import hashlib
import json
import os
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.remote.client import RemoteBackend, fetch_directory
from gavel.trainer.backends.remote.connection import Connection, canonical
from gavel.trainer.backends.remote.wire import RemoteBackendError, checked_key, checked_url
from gavel.trainer.backends.server.app import create_app
from gavel.trainer.runs.checkpoints import ExportError
from tests.backend_server import KEY, serving
from tests.cutting_proxy import CuttingProxy
from tests.trainer.backends.remote.conftest import AT_ONCE, registered
from tests.trainer.backends.test_conformance import a_group
from tests.trainer.conftest import a_model

Asgi = Callable[[Any, Any, Any], Awaitable[None]]


async def two_steps(url: str, runs: Path) -> None:
    """Each is made once."""
    async with RemoteBackend(url, KEY, patience=60) as backend:
        model = a_model()
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


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 99])
async def test_an_upload_that_is_altered_on_the_way_is_sent_again_and_told_when_it_always_is(tmp_path, times):
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "headers", "body", "told"),
    [
        (200, [], b"<html>Welcome to nginx!</html>", r"(?s)answers what no server of `gavel backend` answers.*address"),
        (404, [], b"<html>Not Found</html>", r"(?s)status 404.*Is it a server of `gavel backend`"),
        (308, [(b"location", b"https://elsewhere/")], b"", "give the address that it redirects to"),
        (413, [], b"", "raise its limit"),
        (500, [], b'{"error": {"type": "GavelError", "message": "it broke", "remedy": "See its log."}}', "it broke"),
        (502, [], b"<html>Bad Gateway</html>", "has not answered"),
    ],
)
async def test_what_another_server_answers_is_told(status, headers, body, told):
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    patience = 0.5 if told == "has not answered" else 60
    with serving(app, lifespan="off") as url:
        model = a_model()
        with pytest.raises(Exception, match=told):
            await model.register(RemoteBackend(url, KEY, patience=patience))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (" http://127.0.0.1:8090/\n", "http://127.0.0.1:8090"),
        ("HTTP://Gpu-Box:8090", "http://gpu-box:8090"),
        ("http://[::1]:8090", "http://[::1]:8090"),
        ("https://gpu.example.com/gavel//", "https://gpu.example.com/gavel"),
    ],
)
def test_an_address_is_taken_as_it_is_meant(given: str, expected: str) -> None:
    assert checked_url(given) == expected


@pytest.mark.parametrize(
    "given",
    [
        *("", "gpu-box:8090", "http://[::1", "http://gpu-box:99999", "file:///tmp"),
        *("http://me:planted-secret@gpu box", "http://gpu-box?key=planted-secret"),
    ],
)
def test_what_is_no_address_is_told_without_a_password(given: str) -> None:
    with pytest.raises(RemoteBackendError, match="GAVEL_BACKEND_URL") as told:
        checked_url(given)
    assert "planted-secret" not in str(told.value)


@pytest.mark.parametrize("given", ["planted\nsecret", "密planted"])
def test_a_key_that_no_header_holds_is_told_without_it(given: str) -> None:
    with pytest.raises(RemoteBackendError, match="openssl rand") as told:
        checked_key(given)
    assert "planted" not in str(told.value)


CONTENT = {"a.bin": bytes(range(256)) * 400, "deep/b.bin": b"b" * 50_000, "empty": b""}
HASHES = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}


@pytest.fixture
def files(tmp_path: Path) -> Any:
    from starlette.applications import Starlette
    from starlette.staticfiles import StaticFiles

    served = tmp_path / "served"
    for name, content in CONTENT.items():
        (served / name).parent.mkdir(parents=True, exist_ok=True)
        (served / name).write_bytes(content)
    app = Starlette()
    app.mount("/files", StaticFiles(directory=served))
    return app


def assert_whole(directory: Path) -> None:
    found = {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }
    assert found == CONTENT
    assert not list(directory.parent.glob(".*.unfinished"))


def test_a_directory_arrives_over_a_line_that_is_cut(files: Any, tmp_path: Path) -> None:
    with serving(files) as url, CuttingProxy(int(url.rpartition(":")[2]), seed=1, most_bytes=60_000) as proxy:
        fetch_directory(Connection(proxy.url, "k", 60), "/files", HASHES, tmp_path / "made")
        assert proxy.cuts
    assert_whole(tmp_path / "made")


def test_a_fetch_that_was_killed_is_gone_on_with_and_what_is_stale_is_not_kept(files: Any, tmp_path: Path) -> None:
    unfinished = tmp_path / ".made.unfinished"
    (unfinished / "deep").mkdir(parents=True)
    (unfinished / "a.bin").write_bytes(CONTENT["a.bin"][:1000])
    (unfinished / "deep/b.bin").write_bytes(b"of another export, and longer" * 5000)
    (unfinished / "old.bin").write_bytes(b"old")
    with serving(files) as url:
        fetch_directory(Connection(url, "k", 60), "/files", HASHES, tmp_path / "made")
        assert_whole(tmp_path / "made")
        fetch_directory(Connection(url, "k", 60), "/files", HASHES, tmp_path / "made")  # it is there
        with pytest.raises(ExportError, match="is there already"):
            fetch_directory(Connection(url, "k", 60), "/files", {**HASHES, "a.bin": "0" * 64}, tmp_path / "made")


def test_a_file_that_is_another_one_or_outside_is_refused(files: Any, tmp_path: Path) -> None:
    with serving(files) as url:
        with pytest.raises(RemoteBackendError, match="another SHA-256"):
            fetch_directory(Connection(url, "k", 60), "/files", {"a.bin": "0" * 64}, tmp_path / "made")
        with pytest.raises(RemoteBackendError, match="outside the export"):
            fetch_directory(Connection(url, "k", 60), "/files", {"../a.bin": "0" * 64}, tmp_path / "made")
    assert not (tmp_path / "made").exists()


@pytest.mark.slow
async def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(url, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with registered(url.replace("127.0.0.1", "localhost"), "proxied") as (_, model):
        assert (await model.train([await a_group(model, 0.0, 1.0)])).step == 1


@pytest.mark.slow
async def test_an_address_of_ipv6_and_one_with_a_prefix_are_served(tmp_path: Path) -> None:
    app = create_app(LocalBackend(tmp_path), key=KEY, root=tmp_path)

    async def prefixed(scope: Any, receive: Any, send: Any) -> None:  # as a proxy strips its own prefix
        if scope["type"] == "http":
            scope = {**scope, "path": scope["path"].removeprefix("/a/b")}
            scope["raw_path"] = scope["path"].encode()
        await app(scope, receive, send)

    with serving(prefixed, host="::1") as url:
        async with registered(f"{url}/a/b/", "clerk") as (_, model):
            assert (await model.train([await a_group(model, 0.0, 1.0)])).step == 1


@pytest.mark.slow
async def test_a_certificate_that_signed_itself_is_told_and_is_trusted_when_it_is_named(tmp_path, monkeypatch):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=gpu-box -addext subjectAltName=IP:127.0.0.1"
    command = [*command.split(), "-keyout", key, "-out", certificate]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    app = create_app(LocalBackend(tmp_path / "runs"), key=KEY, root=tmp_path / "runs")
    with serving(app, ssl_keyfile=str(key), ssl_certfile=str(certificate)) as plain:
        secured = plain.replace("http:", "https:")
        began = time.monotonic()
        with pytest.raises(RemoteBackendError, match=r"(?s)certificate.*not trusted.*SSL_CERT_FILE"):
            await a_model().register(RemoteBackend(secured, KEY, patience=AT_ONCE))
        assert time.monotonic() - began < AT_ONCE
        with pytest.raises(RemoteBackendError):
            await a_model().register(RemoteBackend(plain, KEY, patience=0.5))
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with RemoteBackend(secured, KEY, patience=AT_ONCE) as backend:
            model = a_model()
            await model.register(backend)
            assert (await model.train([await a_group(model, 0.0, 1.0)])).step == 1


@pytest.mark.slow
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
            model = a_model()
            await model.register(backend)
            await model.log([noise], "val")
            (kept,) = await backend.logged(model, "val", 0)
    assert [member.logs for member in kept] == [member.logs for member in noise]
    assert len(sizes) > 1
    assert max(sizes) <= 1_000_000


@pytest.mark.slow
def test_arguments_are_what_json_holds() -> None:
    given = {"a": [1, float("nan")], "b": {"c": float("inf"), "d": "text", "e": None, "f": True}}
    assert canonical(given) == {"a": [1, None], "b": {"c": None, "d": "text", "e": None, "f": True}}
    for value in (object(), {1, 2}, "\ud800"[:0].encode()):
        with pytest.raises(RemoteBackendError, match="cannot be sent"):
            canonical({"a": value})
