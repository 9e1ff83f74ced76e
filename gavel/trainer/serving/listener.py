"""The socket that a server listens on, taken before it starts: its port is known, and a taken one is told at once."""

import contextlib
import errno
import socket
from collections.abc import Callable, Generator

import uvicorn

from gavel.trainer.serving.answers import EndpointError


class AnnouncedServer(uvicorn.Server):
    """Calls `on_started` once requests are answered."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """`port` 0 takes a free one. Raises `EndpointError`."""
    listener: socket.socket | None = None
    try:
        family, _, _, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # With its protocol named: only then asyncio turns Nagle's algorithm off, which holds tokens back for 40 ms.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address[0], port, *address[2:]))
        listener.listen()
    except (OSError, OverflowError) as error:
        if listener is not None:
            listener.close()
        remedy = "Stop what listens there, or choose another port; 0 takes a free one."
        if isinstance(error, socket.gaierror) or getattr(error, "errno", None) == errno.EADDRNOTAVAIL:
            remedy = "Name an address of this machine: 127.0.0.1 for it alone, 0.0.0.0 for all of its networks."
        elif isinstance(error, PermissionError):
            remedy = "Choose a port above 1023; 0 takes a free one."
        told = getattr(error, "strerror", None) or error
        raise EndpointError(f"cannot listen on {host}:{port}: {told}", remedy) from error
    return listener


def address_of(listener: socket.socket, host: str) -> str:
    """`http://host:port`, with an IPv6 address in brackets."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
