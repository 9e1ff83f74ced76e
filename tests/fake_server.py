"""The HTTP part of every fake: a server on loopback that answers each request in a thread of its own."""

import json
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class Answer:
    body: Any
    """Sent as JSON; bytes as they are."""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    breaks_off: bool = False
    """Whether the connection is closed in the middle of the body."""
    drip: float = 0.0
    """Seconds between two bytes of the body."""


@dataclass(frozen=True)
class Call:
    """A request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    """By name in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class FakeServer:
    """Answers what `respond` returns."""

    def __init__(self) -> None:
        self.closing = threading.Event()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                headers = {name.lower(): value for name, value in self.headers.items()}
                body = self.rfile.read(int(headers.get("content-length", 0)))
                answer = fake.respond(Call(self.command, url.path, query, headers, body))
                with suppress(OSError):  # the client has gone
                    fake._send(self, answer)

            do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def respond(self, call: Call) -> Answer:
        raise NotImplementedError

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    def _send(self, handler: BaseHTTPRequestHandler, answer: Answer) -> None:
        is_raw = isinstance(answer.body, bytes)
        data = answer.body if is_raw else json.dumps(answer.body).encode()
        kind = "application/octet-stream" if is_raw else "application/json"
        handler.send_response(answer.status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **answer.headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command == "HEAD":
            return
        if answer.drip:
            self._drip(handler, data, answer.drip)
        elif answer.breaks_off:
            handler.wfile.write(data[: len(data) // 2])
            handler.close_connection = True
        else:
            handler.wfile.write(data)

    def _drip(self, handler: BaseHTTPRequestHandler, data: bytes, seconds: float) -> None:
        for byte in data:
            if self.closing.wait(seconds):
                return
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()
