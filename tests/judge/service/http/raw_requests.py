"""Requests byte by byte, for what no client library sends."""

import contextlib
import re
import socket
from dataclasses import dataclass

from tests.limits import HANG_SECONDS

_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True)
class RawAnswer:
    """What came back; `status` is 0 where the connection was closed without an answer."""

    status: int
    kind: str
    """Of the problem; empty where it is none."""
    text: str


def request(method: str, target: str, *headers: str, body: bytes = b"", host: str = "127.0.0.1") -> bytes:
    """The bytes of a request. A body gets its Content-Length, unless the headers say how it is sent."""
    lines = [f"{method} {target} HTTP/1.1", *([f"Host: {host}"] if host else []), *headers]
    if body and not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + _HEAD_END + body


def chunked(*parts: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    """A body in chunks."""
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + end


def ask(port: int, data: bytes) -> RawAnswer:
    """The first answer to these bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=HANG_SECONDS) as connection:
        with contextlib.suppress(OSError):  # the service closes the connection of a sender who goes on for ever
            connection.sendall(data)
        return answer_on(connection)


def answer_on(connection: socket.socket) -> RawAnswer:
    """The next answer on a connection."""
    got = b""
    while not _is_complete(got):
        try:
            part = connection.recv(65536)
        except ConnectionResetError:
            part = b""
        if not part:
            break
        got += part
    head, _, text = got.partition(_HEAD_END)
    status = re.match(rb"HTTP/1\.1 (\d+)", head)
    kind = re.search(rb'urn:gavel:problem:([\w-]+)"', text)
    return RawAnswer(int(status[1]) if status else 0, kind[1].decode() if kind else "", text.decode(errors="replace"))


def _is_complete(got: bytes) -> bool:
    head, end, text = got.partition(_HEAD_END)
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    return bool(end) and (len(text) >= int(length[1]) if length else text.endswith(b"0\r\n\r\n"))
