"""What addresses, proxies, certificates and broken lines do to requests: they cost time alone, or are told."""

import asyncio
import hashlib
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.remote.client import RemoteBackend, canonical, fetch_directory
from gavel.trainer.backends.remote.connection import Connection
from gavel.trainer.backends.remote.wire import RemoteBackendError, RemoteError, checked_key, checked_url
from gavel.trainer.backends.server.app import create_app
from gavel.trainer.runs.checkpoints import ExportError
from tests.backend_server import KEY, serving
from tests.cutting_proxy import CuttingProxy
from tests.trainer.backends.remote.conftest import AT_ONCE, registered, served
from tests.trainer.backends.test_conformance import a_group
from tests.trainer.conftest import a_model

Asgi = Callable[[Any, Any, Any], Awaitable[None]]


def behind(runs: Path, between: Callable[[Asgi, Any, Any, Any], Awaitable[None]], **options: Any) -> Any:
    """The server, whose requests pass through something first."""
    app = create_app(LocalBackend(runs), key=KEY, root=runs)

    async def asked(scope: Any, receive: Any, send: Any) -> None:
        await (app(scope, receive, send) if scope["type"] == "lifespan" else between(app, scope, receive, send))

    return serving(asked, **options)


@pytest.mark.slow
async def test_groups_that_are_altered_on_the_way_are_not_trained(tmp_path):
    async def altering(app: Asgi, scope: Any, receive: Any, send: Any) -> None:
        async def received() -> Any:
            message = await receive()
            if b'"kind":"train"' in message.get("body", b""):
                message = {**message, "body": message["body"][:-1] + bytes([message["body"][-1] ^ 1])}
            return message

        await app(scope, received, send)

    with behind(tmp_path, altering) as url:
        async with registered(url) as (_, model):
            with pytest.raises(RemoteError, match="another SHA-256"):
                await model.train([await a_group(model, 0.0, 1.0)])
            assert await model.get_step() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "headers", "body", "told"),
    [
        (200, [], b"<html>Welcome to nginx!</html>", r"(?s)answers what no server of `gavel backend` answers.*address"),
        (404, [], b"<html>Not Found</html>", r"(?s)status 404.*Is it a server of `gavel backend`"),
        (308, [(b"location", b"https://elsewhere/")], b"", "not one that redirects"),
        (413, [], b"", "client_max_body_size"),
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
    ("check", "given", "remedy"),
    [
        *((checked_url, url, "GAVEL_BACKEND_URL") for url in ("", "gpu-box:8090", "http://gpu-box?key=planted")),
        (checked_url, "http://me:planted@gpu box", "GAVEL_BACKEND_URL"),
        *((checked_key, key, "openssl rand") for key in ("planted\nsecret", "密planted")),
    ],
)
def test_an_address_is_taken_as_it_is_meant_and_what_is_none_or_no_key_is_told_without_a_secret(check, given, remedy):
    assert checked_url(" http://127.0.0.1:8090/\n") == "http://127.0.0.1:8090"
    assert checked_url("https://gpu.example.com/gavel//") == "https://gpu.example.com/gavel"
    with pytest.raises(RemoteBackendError, match=remedy) as told:
        check(given)
    assert "planted" not in str(told.value)


CONTENT = {"a.bin": bytes(range(256)) * 400, "deep/b.bin": b"b" * 50_000, "empty": b""}
HASHES = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}


@pytest.fixture
def files(tmp_path: Path) -> Iterator[str]:
    from starlette.applications import Starlette
    from starlette.routing import Mount
    from starlette.staticfiles import StaticFiles

    for name, content in CONTENT.items():
        (tmp_path / "served" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "served" / name).write_bytes(content)
    with serving(Starlette(routes=[Mount("/files", StaticFiles(directory=tmp_path / "served"))])) as url:
        yield url


def fetch(url: str, made: Path, hashes: dict[str, str] = HASHES) -> None:
    fetch_directory(Connection(url, "k", 60), "/files", hashes, made)
    whole = {path.relative_to(made).as_posix(): path.read_bytes() for path in made.rglob("*") if path.is_file()}
    assert whole == CONTENT
    assert not list(made.parent.glob(".*.unfinished"))


def test_a_directory_arrives_over_a_line_that_is_cut_once_and_a_file_that_is_another_one_is_refused(files, tmp_path):
    for name, told in (("a.bin", "another SHA-256"), ("../a.bin", "outside the export")):
        with pytest.raises(RemoteBackendError, match=told):
            fetch(files, tmp_path / "made", {name: "0" * 64})
        assert not (tmp_path / "made").exists()
    with CuttingProxy(int(files.rpartition(":")[2]), seed=1, most_bytes=60_000) as proxy:
        fetch(proxy.url, tmp_path / "made")
        assert proxy.cuts
    fetch(files, tmp_path / "made")
    with pytest.raises(ExportError, match="is there already"):
        fetch(files, tmp_path / "made", {**HASHES, "a.bin": "0" * 64})


@pytest.mark.slow
async def test_an_address_of_ipv6_and_one_with_a_prefix_are_served_past_a_proxy(tmp_path, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)

    async def prefixed(app: Asgi, scope: Any, receive: Any, send: Any) -> None:  # as a proxy strips its own prefix
        path = scope["path"].removeprefix("/a/b")
        await app({**scope, "path": path, "raw_path": path.encode()}, receive, send)

    with behind(tmp_path, prefixed, host="::1") as url:
        async with registered(f"{url}/a/b/") as (_, model):
            assert (await model.train([await a_group(model, 0.0, 1.0)])).step == 1


@pytest.mark.slow
async def test_a_certificate_that_signed_itself_is_told_and_is_trusted_when_it_is_named(tmp_path, monkeypatch):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=gpu-box -addext subjectAltName=IP:127.0.0.1"
    command = [*command.split(), "-keyout", key, "-out", certificate]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    with served(tmp_path / "runs", ssl_keyfile=str(key), ssl_certfile=str(certificate)) as plain:
        secured = plain.replace("http:", "https:")
        began = time.monotonic()
        with pytest.raises(RemoteBackendError, match=r"(?s)certificate.*not trusted.*SSL_CERT_FILE"):
            await a_model().register(RemoteBackend(secured, KEY, patience=AT_ONCE))
        assert time.monotonic() - began < AT_ONCE
        with pytest.raises(RemoteBackendError):
            await a_model().register(RemoteBackend(plain, KEY, patience=0.5))
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with registered(secured) as (_, model):
            assert (await model.train([await a_group(model, 0.0, 1.0)])).step == 1


@pytest.mark.slow
def test_arguments_are_what_json_holds() -> None:
    given = {"a": [1, float("nan")], "b": {"c": float("inf"), "d": "text", "e": None, "f": True}}
    assert canonical(given) == {"a": [1, None], "b": {"c": None, "d": "text", "e": None, "f": True}}
    with pytest.raises(RemoteBackendError, match="cannot be sent"):
        canonical({"a": {1, 2}})
