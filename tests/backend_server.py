"""`gavel backend`: its application in a thread, or as a process that can be killed and started again on its port."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from gavel.base.network import free_port

KEY = "a-key-of-the-tests"
_START_SECONDS = 240.0


@contextmanager
def serving(app: Any, host: str = "127.0.0.1", **options: Any) -> Generator[str]:
    """The address at which it answers."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.bind((host, 0))
    listener.listen()  # a request may come before the server runs
    config = uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=5, **options)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=_START_SECONDS)
        listener.close()
    assert not thread.is_alive()


class BackendServer:
    def __init__(self, runs: Path, log: Path, environment: Mapping[str, str] | None = None) -> None:
        """`environment`: of the process, in place of this one's with `KEY`."""
        self._runs, self._log = runs, log
        self._environment = environment or {**os.environ, "GAVEL_BACKEND_KEY": KEY}
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        command = [sys.executable, "-m", "gavel", "backend", "--port", str(self.port), "--runs", str(self._runs)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self._log.read_text()
            try:
                if httpx.get(f"{self.url}/healthz", timeout=5.0).is_success:
                    return
            except httpx.TransportError:
                time.sleep(0.05)
        raise AssertionError(f"the server did not start: {self._log.read_text()}")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """As a user ends it. Raises for a server that does not end."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=120)
