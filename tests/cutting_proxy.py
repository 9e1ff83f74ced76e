"""A proxy on loopback that delays what passes, and cuts lines after a random number of bytes in either direction."""

import contextlib
import random
import socket
import threading
import time
from types import TracebackType
from typing import Self

_MOST_DELAY = 0.02


class CuttingProxy:
    def __init__(self, port: int, seed: int, most_bytes: int = 6000) -> None:
        """`most_bytes`: that pass over a line, at most, before it is cut."""
        self._port, self._most = port, most_bytes
        self._random = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cuts = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                client.close()
                continue
            left = [self._random.randrange(1, self._most)]
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=(source, target, left), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, left: list[int]) -> None:
        try:
            while part := source.recv(4096):
                time.sleep(self._random.uniform(0, _MOST_DELAY))
                sent = part[: left[0]]
                target.sendall(sent)
                left[0] -= len(sent)
                if left[0] <= 0:
                    self.cuts += 1
                    break
        except OSError:
            pass
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
