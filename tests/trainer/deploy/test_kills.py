"""`gavel deploy` and `gavel undeploy` in a process that is killed (SIGKILL) at every request that changes something."""

import os
import shutil
import signal
from multiprocessing.connection import wait
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from gavel.trainer.deploy.record import read_records
from tests.forked import Running
from tests.trainer.deploy.targets import EVERY_HOST, HOSTS, Target

pytestmark = [pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(1800)]
_MOST = 40
_PROGRAM = """
import os
from huggingface_hub import constants
from gavel.trainer.deploy import host
constants.HF_HUB_OFFLINE, constants.HF_HUB_DISABLE_XET = False, True
constants.INFERENCE_ENDPOINTS_ENDPOINT = os.environ.get("ENDPOINTS", "")
host.PAUSE = 0.01
host._backoff = lambda state: 0.01
from gavel.cli import main
main()
"""


class Desk:
    def __init__(self, target: Target, runs: Path) -> None:
        self.target, self.runs, self.program = target, runs, runs.parent / "typed.py"
        self.program.write_text(_PROGRAM)
        self.process: Running | None = None
        """That is killed when its `kill_at`th request that changes something has been carried out."""
        self.kill_at, self.seen = 0, list[str]()
        target.lose(self._kill)

    def _kill(self, change: str) -> bool:
        if self.process is None:
            return False
        self.seen.append(change)
        if len(self.seen) == self.kill_at:
            self.process.send(signal.SIGKILL)
            wait([self.process.process.sentinel], timeout=60)  # its status is for the test's own thread alone to read
        return False

    def start(self, *arguments: str) -> Running:
        environment = {**os.environ, **self.target.environment, "GAVEL_RUNS": str(self.runs)}
        environment["HOME"] = str(self.runs.parent)
        return Running([str(self.program), *arguments], self.runs.parent, environment, self.program)

    def typed(self, *arguments: str) -> "CompletedProcess[str]":
        done = self.start(*arguments).end()
        assert done.returncode == 0, f"killed after {self.seen[-1:]}: {done.stderr}"
        return done

    def killed(self, at: int, *arguments: str) -> bool:
        """Whether the command was killed; it was not when it made fewer than `at` requests."""
        self.kill_at, self.process = at, self.start(*arguments)
        done = self.process.end()
        self.process = None
        if done.returncode == 0:
            assert at > 1, self.seen
            assert len(self.seen) == at - 1, "the same requests as before, none of them the one to be killed at"
            return False
        assert done.returncode == -signal.SIGKILL, f"{self.seen}: {done.stderr}"
        return True

    def state(self) -> str:
        (record,) = read_records(self.runs / "desk" / "clerk")
        return record.state


@pytest.mark.parametrize("host", EVERY_HOST)
@pytest.mark.parametrize("removes", [False, True], ids=["deploying", "undeploying"])
def test_a_killed_command_goes_on_and_leaves_nothing_behind(host: str, removes: bool, tmp_path: Path) -> None:
    for at in range(1, _MOST):
        kept = tmp_path / "kept"
        with HOSTS[host]() as target:
            if not kept.exists():
                target.run(kept, target.base)
            desk = Desk(target, Path(shutil.copytree(kept, tmp_path / str(at) / "runs")))
            command = "deploy", "desk/clerk@12", desk.target.address, "--no-smoke-test"
            if removes:
                desk.typed(*command)
                command = "undeploy", "desk/clerk"
            if not desk.killed(at, *command):
                assert not removes or (desk.target.left(), desk.state()) == (0, "undeployed")
                return
            listed = desk.typed("deployments", "desk/clerk").stdout
            assert ("undeploying" if removes else "deploying") in listed, desk.seen
            if not removes:
                desk.typed(*command)
                made = desk.target.made()
                assert len(made) == len(set(made)), f"{desk.seen}: {made}"
                assert desk.state() == "deployed", desk.seen
            desk.typed("undeploy", "desk/clerk")
            assert (desk.target.left(), desk.state()) == (0, "undeployed"), desk.seen
    raise AssertionError(f"more than {_MOST} requests")
