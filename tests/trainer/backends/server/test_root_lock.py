"""One server for a directory of runs: a second one is refused by the name of the first, and a killed one is no bar."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gavel.trainer.backends.server.serve import held_root
from gavel.trainer.runs.run_directory import RunDirectoryError
from tests.backend_server import BackendServer


def test_a_second_server_is_told_who_holds_the_runs(tmp_path: Path) -> None:
    with held_root(tmp_path) as note:
        with pytest.raises(RunDirectoryError, match=rf"starting, process {os.getpid()}"), held_root(tmp_path):
            pass
        note("http://127.0.0.1:8090")
        with pytest.raises(RunDirectoryError, match=r"http://127.0.0.1:8090, process") as refusal, held_root(tmp_path):
            pass
        assert "--runs" in refusal.value.remedy
        with held_root(tmp_path / "other"):
            pass
    with held_root(tmp_path):
        pass


def test_a_place_that_cannot_be_used_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="cannot be written"), held_root(tmp_path / "file"):
        pass

    def cannot(*_: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", cannot)
    with pytest.raises(RunDirectoryError, match="cannot lock a file: Operation not supported"), held_root(tmp_path):
        pass


@pytest.mark.thorough
def test_two_commands_on_the_same_runs(tmp_path: Path) -> None:
    server = BackendServer(tmp_path / "runs", tmp_path / "log")
    server.start()
    try:
        second = [sys.executable, "-m", "gavel", "backend", "--port", "0", "--runs", str(tmp_path / "runs")]
        done = subprocess.run(second, capture_output=True, text=True, timeout=300)
        assert done.returncode == 1, done.stdout
        assert f"another `gavel backend` serves the runs in {tmp_path / 'runs'} ({server.url}" in done.stderr
        assert "Traceback" not in done.stderr
    finally:
        server.kill()
    server.start()  # a lock of a dead process is none
    server.stop()
