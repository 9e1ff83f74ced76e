"""`gavel serve-atropos` as a process that can be killed, and started again on its port."""

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx

from gavel.base.network import free_port

_START_SECONDS = 540.0
_END_SECONDS = 540.0


class AtroposServer:
    """One server and its directory."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        self.port, self.policy_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.policy_url = f"http://127.0.0.1:{self.policy_port}/v1"
        self.log = directory / "server.log"
        self._options = options
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers, or has ended."""
        self.begin()
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self.has_ended:
                return
            try:
                if httpx.get(f"{self.url}/healthz", timeout=5.0, trust_env=False).is_success:
                    return
            except httpx.TransportError:
                time.sleep(0.05)
        raise AssertionError(f"the server did not start: {self.log.read_text()}")

    def begin(self) -> None:
        ports = ["--port", str(self.port), "--policy-port", str(self.policy_port)]
        command = [sys.executable, "-m", "gavel", "serve-atropos", *ports, *self._options]
        environment = {**os.environ, "GAVEL_RUNS": str(self.directory / "runs"), "OMP_NUM_THREADS": "1"}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, cwd=self.directory, env=environment, stdout=log, stderr=log)

    @property
    def has_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def wait(self) -> int:
        """Its exit status when it ends by itself."""
        assert self.process is not None
        return self.process.wait(timeout=_END_SECONDS)
