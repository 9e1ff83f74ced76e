"""A server as a child process: it is ready when its `/health` answers, and ends at the latest with this process.

It leads a process group, so its workers end with it. A watcher in that group reads a pipe whose other end only this
process holds: however this process ends, the pipe closes and the watcher kills the group.
"""

import atexit
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from gavel.trainer.engines.protocol import EngineError

_KEEPER = """
exec 3<&0
(trap '' TERM; cat <&3 >/dev/null; kill -TERM 0; sleep 10; kill -KILL 0) &
"$@" </dev/null 3<&- &
wait $!
"""
_POLL = 0.2
_ANSWER_SECONDS = 5.0
_END_SECONDS = 10.0
_TAIL_LINES = 15


class ServerProcess:
    """Starts a command and waits until it serves."""

    def __init__(
        self,
        command: Sequence[str],
        url: str,
        log: Path,
        environment: Mapping[str, str],
        *,
        start_seconds: float,
    ) -> None:
        """`url` is where `command` will listen, `log` receives its output.

        Raises `EngineError` with the end of the log when it ends early or is not ready after `start_seconds`.
        """
        self.url = url
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _KEEPER, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        atexit.register(self.close)
        try:
            self._wait_until_ready(time.monotonic() + start_seconds, start_seconds)
        except BaseException:
            self.close()
            raise

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def log_tail(self) -> str:
        """The path of the log and its last lines."""
        lines = self._log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return f"Its log {self._log} ends:\n" + "\n".join(lines)

    def close(self) -> None:
        """Terminates the process group, and kills it after 10 s."""
        atexit.unregister(self.close)
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdin.close()

    def _wait_until_ready(self, deadline: float, seconds: float) -> None:
        while not self._answers():
            if not self.running:
                raise EngineError(f"the server ended before it was ready. {self.log_tail()}")
            if time.monotonic() > deadline:
                raise EngineError(f"the server was not ready after {seconds:.0f} s. {self.log_tail()}")
            time.sleep(_POLL)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=_ANSWER_SECONDS, trust_env=False).is_success
        except httpx.HTTPError:
            return False
