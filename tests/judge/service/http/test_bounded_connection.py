"""Hostile bytes on a connection: each is answered with a problem or ended in time, and none takes memory or the log."""

import asyncio
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from gavel.judge.config import JudgeConfig
from gavel.judge.service.config import ServiceConfig, ServiceLimits
from gavel.judge.service.http import bounded_connection
from gavel.judge.service.http.server import serve
from tests.judge.service.http.raw_requests import answer_on, ask, chunked, request
from tests.judge.service.in_process import group
from tests.judge.service.processes import served
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow
BODY = json.dumps(group("good", "bad")).encode()
BODY_BYTES = 200_000
SCORE = "/v1/score"
MANY = 30_000_000
H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA")


@dataclass(frozen=True)
class Attacked:
    port: int
    process: int

    @property
    def peak_bytes(self) -> int:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.process}/status").read_text())
        assert found is not None
        return int(found[1]) * 1024


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    limits = ServiceLimits(body_bytes=BODY_BYTES, body_seconds=1.0, header_seconds=1.0, waiting_groups=500)
    database = tmp_path_factory.mktemp("service") / "service.sqlite"
    config = ServiceConfig(port=0, database=str(database), judge=JudgeConfig(models="stand-in"), limits=limits)
    with asyncio.Runner() as runner:
        context = served(config)
        running = runner.run(context.__aenter__())
        port, process = httpx.URL(running.url).port, running.process.pid
        assert port is not None
        assert process is not None
        yield Attacked(port, process)
        runner.run(context.__aexit__(None, None, None))


def post(*headers: str, body: bytes = BODY, path: str = SCORE) -> bytes:
    return request("POST", path, *headers, body=body)


CHUNKED = "Transfer-Encoding: chunked"
REFUSED: dict[str, tuple[bytes, int, str]] = {
    "another protocol": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 5, 400, "not-http"),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "not-http"),
    "a header without a colon": (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nfoo\r\n\r\n", 400, "not-http"),
    "an unknown method": (request("FROB", "/healthz"), 400, "not-http"),
    "CONNECT": (request("CONNECT", "example.com:443"), 400, "not-http"),
    "bytes in the path": (request("GET", "/v1/judgements/\xff"), 400, "not-http"),
    "two lengths": (post("Content-Length: 5", "Content-Length: 6", body=b"abcde"), 400, "not-http"),
    "a negative length": (post("Content-Length: -5", body=b"abcde"), 400, "not-http"),
    "a length that overflows": (post(f"Content-Length: {'9' * 20}"), 400, "not-http"),
    "a length and chunks": (post("Content-Length: 5", CHUNKED, body=chunked(BODY)), 400, "not-http"),
    "chunks that are none": (post(CHUNKED, body=b"zz\r\n"), 400, "not-http"),
    "a coding that is none": (post("Transfer-Encoding: xchunked", body=chunked(BODY)), 400, "not-http"),
    "no host": (request("GET", "/healthz", host=""), 421, "host"),
    "another host": (request("GET", "/healthz", host="example.com"), 421, "host"),
    "a host behind a user": (request("GET", "/healthz", host="127.0.0.1@example.com"), 421, "host"),
    "a host that begins alike": (request("GET", "/healthz", host="127.0.0.1.example.com"), 421, "host"),
    "two hosts": (request("GET", "/healthz", "Host: example.com"), 400, "host"),
    "another origin": (post("Origin: http://example.com"), 403, "origin"),
    "a hidden origin": (post("Origin: null"), 403, "origin"),
    "a preflight": (request("OPTIONS", SCORE, "Origin: http://example.com"), 403, "origin"),
    "compressed on the way": (post("Transfer-Encoding: gzip, chunked", body=chunked(BODY)), 415, "content-encoding"),
    "compressed": (post("Content-Encoding: gzip"), 415, "content-encoding"),
    "compressed twice": (post("Content-Encoding: identity, br"), 415, "content-encoding"),
    "a type that is none": (post("Content-Type: \xff\xfe"), 415, "media-type"),
    "a form": (post("Content-Type: multipart/form-data; boundary=x"), 415, "media-type"),
    "UTF-16": (post("Content-Type: application/json; charset=utf-16"), 415, "media-type"),
    "a header a little too long": (request("GET", "/healthz", f"X: {'a' * 70_000}"), 431, "headers-too-large"),
    "a path a little too long": (request("GET", f"/healthz?{'a' * 70_000}"), 431, "headers-too-large"),
    "a long header": (request("GET", "/healthz", f"X: {'a' * 200_000}"), 431, "headers-too-large"),
    "many headers": (request("GET", "/healthz", *(f"X{n}: y" for n in range(20_000))), 431, "headers-too-large"),
    "a long path": (request("GET", f"/healthz?{'a' * 300_000}"), 431, "headers-too-large"),
    "an endless header": (request("GET", "/healthz", f"X: {'a' * MANY}"), 431, "headers-too-large"),
    "an endless trailer": (
        post(CHUNKED, body=chunked(BODY, end=b"0\r\nX: " + b"t" * MANY)),
        431,
        "headers-too-large",
    ),
    "an endless size of a chunk": (post(CHUNKED, body=b"5;" + b"e" * MANY), 431, "headers-too-large"),
    "a large body": (post(body=b"x" * 20_000_000), 413, "too-large"),
    "a large body in chunks": (post(CHUNKED, body=chunked(*[b"x" * 60_000] * 6)), 413, "too-large"),
    "a long line of a batch": (post(body=b"x" * (BODY_BYTES + 1), path="/v1/score/batch"), 413, "too-large"),
    "too many lines of a batch": (post(body=b"\n" * 10_000, path="/v1/score/batch"), 413, "too-many-lines"),
    "a body that does not come": (post("Content-Length: 100", body=b"{"), 408, "too-slow"),
    "a path with a slash more": (post(path=f"{SCORE}/"), 404, "no-such-route"),
    "a path upwards": (request("GET", "/v1/judgements/../../etc/passwd"), 404, "no-such-route"),
    "an id of bytes": (request("GET", "/v1/judgements/%ff%00"), 404, "not-found"),
    "a group with a NUL": (request("GET", "/v1/groups/a%00/members/b"), 422, "invalid-request"),
    "a number that is none": (request("GET", "/v1/judgements/x?wait=nan"), 422, "invalid-request"),
    "a number without end": (request("GET", f"/v1/judgements?limit={'9' * 5000}"), 422, "invalid-request"),
    "a long key of a request": (post(f"Idempotency-Key: {'x' * 3000}"), 422, "invalid-request"),
}


@pytest.mark.parametrize("attack", REFUSED)
def test_what_no_client_sends_is_refused_with_a_problem(attack: str, service: Attacked):
    data, status, kind = REFUSED[attack]
    before = service.peak_bytes
    answer = ask(service.port, data)
    assert (answer.status, answer.kind) == (status, kind)
    assert json.loads(answer.text)["remedy"]
    assert service.peak_bytes - before < MANY


@pytest.mark.parametrize(
    "data",
    [
        post(*H2C),
        post("Connection: upgrade", "Upgrade: websocket"),
        post("Content-Encoding:"),
        post('Content-Type: application/json; charset="UTF-8"; version=1'),
        post(CHUNKED, body=chunked(*(BODY[n : n + 1] for n in range(len(BODY))))),
        post("Idempotency-Key: \xe9\xff"),
        post("Authorization: Basic \xff\xff"),
        post().replace(b"HTTP/1.1", b"HTTP/1.0"),
        b"GET /healthz HTTP/1.0\r\n\r\n",
    ],
    ids=[
        "h2c",
        "websocket",
        "no coding",
        "charset",
        "small chunks",
        "latin-1 key",
        "latin-1 password",
        "HTTP/1.0",
        "a health check of HTTP/1.0",
    ],
)
def test_what_is_odd_and_means_no_harm_is_answered(data: bytes, service: Attacked):
    assert ask(service.port, data).status == 200


def test_a_connection_goes_on_after_an_offer_of_another_protocol_and_after_a_refused_body(service: Attacked):
    with socket.create_connection(("127.0.0.1", service.port), timeout=HANG_SECONDS) as connection:
        for data, status in ((post(*H2C), 200), (post(body=b"x" * 1_000_000), 413), (post(), 200)):
            connection.sendall(data)
            assert answer_on(connection).status == status


def test_an_offer_that_comes_in_pieces_is_refused_and_not_misread(service: Attacked):
    first, second = post(*H2C).split(b"Upgrade: h2c")
    with socket.create_connection(("127.0.0.1", service.port), timeout=HANG_SECONDS) as connection:
        connection.sendall(first + b"Upg")
        time.sleep(0.2)
        connection.sendall(b"rade: h2c" + second)
        assert answer_on(connection).kind in ("not-http", "")


@pytest.mark.parametrize(
    "drip",
    [b"GET /healthz HTTP/1.1\r\nX: ", b"", post("Content-Length: 100000", "X-API-Key: x", path="/nowhere", body=b"{")],
    ids=["headers", "nothing", "the body of a refused request"],
)
def test_a_connection_on_which_bytes_drip_is_ended(drip: bytes, service: Attacked):
    with socket.create_connection(("127.0.0.1", service.port), timeout=HANG_SECONDS) as connection:
        connection.sendall(drip)
        deadline = time.monotonic() + HANG_SECONDS
        while time.monotonic() < deadline:
            time.sleep(0.1)
            try:
                connection.sendall(b"a" if drip else b"")
                connection.settimeout(0.01)
                if not connection.recv(65536):
                    return
            except TimeoutError:
                continue
            except OSError:
                return
        pytest.fail("it is still open")


async def test_a_client_that_does_not_read_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bounded_connection, "_STALLED_SECONDS", 0.5)
    many = request("GET", "/openapi.json") * 200  # more bytes of answers than the buffers between both hold

    def ask_and_not_read(port: int) -> bool:
        with socket.create_connection(("127.0.0.1", port), timeout=HANG_SECONDS) as connection:
            connection.sendall(many)
            deadline = time.monotonic() + HANG_SECONDS
            while time.monotonic() < deadline:
                time.sleep(0.1)
                try:
                    connection.sendall(b"G")
                except OSError:
                    return True
        return False

    async with serving_here(tmp_path, ServiceLimits()) as port:
        assert await asyncio.to_thread(ask_and_not_read, port)


async def test_a_connection_too_many_is_told_to_come_again(tmp_path: Path):
    async with serving_here(tmp_path, ServiceLimits(connections=2)) as port:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=HANG_SECONDS),
            socket.create_connection(("127.0.0.1", port), timeout=HANG_SECONDS),
        ):
            answer = await asyncio.to_thread(ask, port, request("GET", "/healthz"))
    assert (answer.status, answer.kind) == (503, "too-many-connections")


@asynccontextmanager
async def serving_here(folder: Path, limits: ServiceLimits) -> AsyncIterator[int]:
    """The port of a service in this event loop."""
    place: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    judge = JudgeConfig(models="constant")
    config = ServiceConfig(port=0, database=str(folder / "service.sqlite"), judge=judge, limits=limits)
    running = asyncio.create_task(serve(config, place.set_result))
    try:
        announced = await place
        yield int(announced.partition("http://127.0.0.1:")[2].split()[0])
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
def test_who_ends_the_connection_after_a_request_reads_why_it_was_refused(service: Attacked, version: bytes):
    data = post("Connection: close", body=b"x" * 20_000_000).replace(b"HTTP/1.1", version, 1)
    with socket.create_connection(("127.0.0.1", service.port), timeout=HANG_SECONDS) as connection:
        connection.sendall(data)
        answer = answer_on(connection)
        assert (answer.status, answer.kind) == (413, "too-large")
        assert connection.recv(1) == b""


def test_a_batch_whose_line_drips_is_refused(service: Attacked):
    with socket.create_connection(("127.0.0.1", service.port), timeout=HANG_SECONDS) as connection:
        connection.sendall(request("POST", "/v1/score/batch", CHUNKED))
        deadline = time.monotonic() + HANG_SECONDS
        connection.settimeout(0.2)
        while time.monotonic() < deadline:
            try:
                connection.sendall(chunked(b"{", end=b""))
                answer = connection.recv(65536)
                break
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408")
