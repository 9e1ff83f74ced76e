"""`gavel serve` in processes of their own, asked over loopback and killed without warning."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.limits import HANG_SECONDS

ROOT = Path(__file__).parents[3]


@dataclass
class Served:
    """A running `gavel serve`."""

    process: "subprocess.Popen[str]"
    url: str

    def kill(self) -> None:
        """Ends it at once: nothing is written, nothing is closed."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(HANG_SECONDS)

    def stop(self) -> int:
        """Ends it as a supervisor does; gives its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(HANG_SECONDS)


def settings_file(folder: Path, judge: dict[str, Any], **settings: Any) -> Path:
    """A gavel.toml of these settings; inline tables hold what is nested."""
    path = folder / "gavel.toml"
    tables = {"port": 0, "database": str(folder / "service.sqlite"), "judge": judge, **settings}
    path.write_text("".join(f"{name} = {_toml(value)}\n" for name, value in tables.items()))
    return path


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(item)}" for name, item in value.items()) + "}"
    return json.dumps(value)


@contextmanager
def served(settings: Path, **environment: str) -> Iterator[Served]:
    """Starts the service of a settings file; kills it at the end of the block, if it still runs."""
    log = settings.with_suffix(".log")
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "gavel", "serve", "--config", str(settings)],
            cwd=settings.parent,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        yield Served(process, _url(process, log))
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(HANG_SECONDS)


def _url(process: "subprocess.Popen[str]", log: Path) -> str:
    deadline = time.monotonic() + HANG_SECONDS
    while time.monotonic() < deadline:
        if found := re.search(r"http://\S+", log.read_text()):
            return found[0]
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise AssertionError(f"the service did not start: {log.read_text()}")
