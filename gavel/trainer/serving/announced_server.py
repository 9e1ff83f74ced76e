"""A uvicorn server that tells when it listens, and leaves signals to whoever runs it."""

import contextlib
import socket
from collections.abc import Callable, Generator

import uvicorn


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
