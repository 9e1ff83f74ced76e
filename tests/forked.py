"""Commands and scripts in processes of their own, forked from one that has imported everything: each starts at once.

What depends on how an interpreter starts (import paths, what `import gavel` loads) is tested with `subprocess`.
"""

import os
import runpy
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import CompletedProcess

from tests.forkserver import forking
from tests.limits import HANG_SECONDS


class Running:
    """A process that was started, and what it has printed so far."""

    def __init__(self, arguments: list[str], cwd: Path, environment: Mapping[str, str], program: Path | None) -> None:
        self.arguments = arguments
        self._printed = tempfile.TemporaryDirectory(prefix="forked-")
        folder = Path(self._printed.name)
        self._out, self._error = folder / "stdout", folder / "stderr"
        given = (program, arguments, cwd, dict(environment), self._out, self._error)
        self.process: BaseProcess = forking().Process(target=_run, args=given, daemon=True)
        self.process.start()

    @property
    def stdout(self) -> str:
        return self._out.read_text() if self._out.exists() else ""

    @property
    def stderr(self) -> str:
        return self._error.read_text() if self._error.exists() else ""

    def wait_for(self, text: str) -> None:
        """Returns when it has printed this."""
        deadline = time.monotonic() + HANG_SECONDS
        while text not in self.stdout:
            assert self.process.is_alive(), self.stderr
            assert time.monotonic() < deadline, f"it never printed {text!r}: {self.stdout}{self.stderr}"
            time.sleep(0.05)

    def send(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def end(self) -> "CompletedProcess[str]":
        """Waits for its end."""
        self.process.join(HANG_SECONDS)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
            raise AssertionError(f"it does not end: {self.stdout}{self.stderr}")
        done = CompletedProcess(self.arguments, code, self.stdout, self.stderr)
        self._printed.cleanup()
        return done


def start_gavel(*arguments: str, cwd: Path, **environment: str) -> Running:
    """`gavel ARGUMENTS`, with none of the caller's settings in its environment."""
    return Running(["gavel", *arguments], cwd, _environment() | environment, None)


def gavel(*arguments: str, cwd: Path, **environment: str) -> "CompletedProcess[str]":
    """Runs `gavel ARGUMENTS` to its end."""
    return start_gavel(*arguments, cwd=cwd, **environment).end()


def succeed(*arguments: str, cwd: Path, **environment: str) -> "CompletedProcess[str]":
    """Runs `gavel ARGUMENTS` to its end, which is a success."""
    done = gavel(*arguments, cwd=cwd, **environment)
    assert done.returncode == 0, done.stderr
    return done


def script(path: Path, *arguments: str, cwd: Path) -> "CompletedProcess[str]":
    """Runs `python PATH ARGUMENTS` to its end, with none of the caller's settings in its environment."""
    return Running([str(path), *arguments], cwd, _environment(), path).end()


def _environment() -> dict[str, str]:
    outside = ("GAVEL_", "OPENAI_", "WANDB_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(outside)}
    return kept | {"HF_HUB_OFFLINE": "1"}


def _run(
    program: Path | None, arguments: list[str], cwd: Path, environment: dict[str, str], out: Path, error: Path
) -> None:
    for file, number in ((out, 1), (error, 2)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    sys.stdout, sys.stderr = open(1, "w", buffering=1), open(2, "w", buffering=1)  # noqa: SIM115  the process's own
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    sys.argv = arguments
    if program is None:
        from gavel.cli import main

        main()
    else:
        sys.path.insert(0, str(program.parent))
        runpy.run_path(str(program), run_name="__main__")
