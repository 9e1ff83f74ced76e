"""Addresses, proxies and certificates as they are: each leads to the model, or to a sentence that says what to do."""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.remote.client import RemoteBackend
from gavel.trainer.backends.remote.wire import RemoteBackendError
from gavel.trainer.backends.server.app import create_app
from tests.backend_server import KEY, serving
from tests.limits import HANG_SECONDS
from tests.trainer.backends.remote.hostile_machine import AT_ONCE, a_model, registered
from tests.trainer.backends.test_conformance import a_group

pytestmark = pytest.mark.slow


async def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with registered(url.replace("127.0.0.1", "localhost"), "proxied") as (_, model):
        assert (await model.train([await a_group(model, 0.0, 1.0)])).step == 1


async def test_an_address_of_ipv6_and_one_with_a_prefix_are_served(tmp_path: Path) -> None:
    app = create_app(LocalBackend(tmp_path), key=KEY, root=tmp_path)

    async def prefixed(scope: Any, receive: Any, send: Any) -> None:  # as a proxy strips its own prefix
        if scope["type"] == "http":
            scope = {**scope, "path": scope["path"].removeprefix("/a/b")}
            scope["raw_path"] = scope["path"].encode()
        await app(scope, receive, send)

    with _served(prefixed, host="::1") as port:
        async with registered(f"http://[::1]:{port}/a/b/", "clerk") as (_, model):
            assert (await model.train([await a_group(model, 0.0, 1.0)])).step == 1


async def test_a_certificate_that_signed_itself_is_told_and_is_trusted_when_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = _self_signed(tmp_path)
    app = create_app(LocalBackend(tmp_path / "runs"), key=KEY, root=tmp_path / "runs")
    with _served(app, ssl_keyfile=str(key), ssl_certfile=str(certificate)) as port:
        secured, plain = f"https://127.0.0.1:{port}", f"http://127.0.0.1:{port}"
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


@pytest.mark.parametrize("hours", [1, -48])
async def test_a_certificate_of_another_time_is_told_with_the_clock(
    hours: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = _self_signed(tmp_path, datetime.now(UTC) + timedelta(hours=hours))
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    app = create_app(LocalBackend(tmp_path / "runs"), key=KEY, root=tmp_path / "runs")
    told = pytest.raises(RemoteBackendError, match=r"(?s)certificate.*clocks of both machines")
    with _served(app, ssl_keyfile=str(key), ssl_certfile=str(certificate)) as port, told:
        await a_model().register(RemoteBackend(f"https://127.0.0.1:{port}", KEY, patience=AT_ONCE))


async def test_tls_to_a_server_without_it_is_told(url: str) -> None:
    with pytest.raises(RemoteBackendError, match=r"(?s)does not speak TLS.*http://"):
        await a_model().register(RemoteBackend(url.replace("http:", "https:"), KEY, patience=AT_ONCE))


async def test_a_server_on_another_port_after_a_restart_is_given_by_its_new_address(tmp_path: Path) -> None:
    with serving(create_app(LocalBackend(tmp_path), key=KEY, root=tmp_path)) as url:
        async with registered(url, "clerk") as (_, model):
            await model.train([await a_group(model, 0.0, 1.0)])
            client = RemoteBackend(url, KEY, patience=0.5)
    with pytest.raises(RemoteBackendError, match=r"(?s)has not answered.*does a line lead to it"):
        await a_model().register(client)
    with serving(create_app(LocalBackend(tmp_path), key=KEY, root=tmp_path)) as url:
        async with registered(url, "clerk") as (_, model):
            assert await model.get_step() == 1
            assert (await model.train([await a_group(model, 0.0, 1.0)])).step == 2


@contextlib.contextmanager
def _served(app: Any, host: str = "127.0.0.1", **options: Any) -> Generator[int]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.bind((host, 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=5, **options))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(HANG_SECONDS)
        listener.close()


def _self_signed(directory: Path, begins: datetime | None = None) -> tuple[Path, Path]:
    """The key and a certificate, which holds for a day from `begins` on (default: since an hour)."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpu-box")])
    begins = begins or datetime.now(UTC) - timedelta(hours=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(secret, hashes.SHA256())
    )
    key, file = directory / "key.pem", directory / "certificate.pem"
    form = serialization.PrivateFormat.PKCS8
    key.write_bytes(secret.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    assert ssl.create_default_context(cafile=str(file))
    return key, file
