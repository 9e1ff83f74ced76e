"""What every host keeps, over its own SDK: nothing is made twice, nothing is left behind, no key is shown."""

import contextlib
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from gavel.trainer.deploy import host as asking
from gavel.trainer.deploy.deploy import deploy, facts_of_run, look_up, undeploy
from gavel.trainer.deploy.host import Deployment
from gavel.trainer.deploy.record import DeployError, DeploymentRecord, read_records
from tests.fake_server import Answer
from tests.forked import Running
from tests.planted_secrets import Watcher, planted_files
from tests.trainer.deploy.targets import EVERY_HOST, Target, ask_at_once, plain_run, target_of

pytestmark = pytest.mark.parametrize("host", EVERY_HOST)
_MOST = 40
_WRONG = "PLANTED0wrong0key0that0its0host0repeats0000"
_PAGE = b"<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"


@dataclass
class Desk:
    target: Target
    run: Path
    said: list[str] = field(default_factory=list)

    async def deploy(self) -> Deployment:
        adapter = facts_of_run(self.run, 12)
        return await deploy(self.run, adapter, self.target.address, deadline=120.0, report=self.said.append)

    async def undeploy(self) -> None:
        await undeploy(self.record, report=self.said.append)

    @property
    def record(self) -> DeploymentRecord:
        (record,) = read_records(self.run)
        return record


Begin = Callable[[], Desk]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def begin(host: str, kept: Path, tmp_path, monkeypatch) -> Iterator[Begin]:
    with contextlib.ExitStack() as opened:

        def fresh() -> Desk:
            target = opened.enter_context(target_of(host))
            ask_at_once(monkeypatch, target.environment)
            run = kept / host / "desk" / "clerk"
            if not run.exists():
                plain_run(kept / host, target.base)
            here = tmp_path / str(len(list(tmp_path.iterdir()))) / "desk" / "clerk"
            return Desk(target, Path(shutil.copytree(run, here)))

        yield fresh


async def test_a_deployment_is_made_once_listed_and_removed(begin: Begin) -> None:
    desk = begin()
    served = await desk.deploy()
    assert (made := list(desk.target.made()))
    assert desk.record.state == "deployed"
    assert desk.record.deployed["model_id"] == served.model_id
    assert served.base_url.startswith("http")
    assert any(f"gavel undeploy {served.id}" in line for line in desk.said)
    assert await look_up(served.host, served.record) == "serving"
    for restored in (False, True):
        if restored:
            desk.record.path.unlink()  # as in a run directory that was restored from before it
        again = await desk.deploy()
        assert (again.id, again.model_id, desk.target.made()) == (served.id, served.model_id, made)
    await again.undeploy()
    assert (desk.target.left(), desk.record.state) == (0, "undeployed")
    await desk.undeploy()
    assert "removed already" in desk.said[-1]
    assert (await desk.deploy()).model_id == served.model_id


async def test_an_answer_that_is_lost_makes_nothing_twice_and_leaves_nothing_behind(begin: Begin, host: str) -> None:
    if host == "wandb":
        pytest.skip("its SDK repeats for minutes; the kills below lose every answer of it")
    for at in range(1, _MOST):
        desk, seen = begin(), []

        def is_lost(change: str, at: int = at, seen: list[str] = seen) -> bool:
            seen.append(change)
            return len(seen) == at

        desk.target.lose(is_lost)
        await _at_once_or_again(desk.deploy)
        made = desk.target.made()
        assert len(made) == len(set(made)), f"{seen}: {made}"
        await _at_once_or_again(desk.undeploy)
        assert (desk.target.left(), desk.record.state) == (0, "undeployed"), seen
        if len(seen) < at:
            assert at > 1
            return
    raise AssertionError(f"more than {_MOST} requests")


async def _at_once_or_again(command: Callable[[], Awaitable[object]]) -> None:
    try:
        await command()
    except DeployError as error:
        if "same command" not in error.remedy:
            raise
        await command()


async def test_a_wrong_or_missing_key_is_told_and_no_key_is_shown(begin, monkeypatch):
    desk = begin()
    variable = desk.target.key
    right = desk.target.environment[variable]
    watcher = Watcher(right, _WRONG)
    with watcher.watching():
        for wrong in (_WRONG, f"{_WRONG}\nmore", f"{_WRONG}é", ""):
            if variable == "VLLM_API_KEY" and not wrong:
                continue  # a server may have none
            monkeypatch.setenv(variable, wrong)
            with pytest.raises(DeployError) as refusal:
                await desk.deploy()
            assert _WRONG not in str(refusal.value)
            assert variable in str(refusal.value) or "API key" in refusal.value.remedy
        monkeypatch.setenv(variable, right)
        served = await desk.deploy()
        assert served.openai_client().api_key == right
        await desk.undeploy()
    assert planted_files(desk.run, [right, _WRONG]) == []
    assert watcher.found == set()
    assert not any(right in line or _WRONG in line for line in [*desk.said, repr(served)])


@pytest.mark.parametrize("instead", [502, 200, None], ids=["page of an error", "page", "nobody"])
async def test_a_page_of_a_proxy_or_nobody_in_the_host_s_place_is_told_in_a_sentence(begin, host, instead, monkeypatch):
    if host == "wandb":
        pytest.skip("its SDK repeats for longer than a test")
    desk = begin()
    monkeypatch.setattr(asking, "PATIENCE", 0.05)
    for server in desk.target.servers:
        if instead is None:
            server.close()
        else:
            server.respond = lambda call: Answer(_PAGE, instead or 0, {"Content-Type": "text/html"})
    with pytest.raises(DeployError) as refusal:
        await desk.deploy()
    assert "<html" not in str(refusal.value).lower()
    assert refusal.value.remedy


_PROGRAM = """
import os
from huggingface_hub import constants
from gavel.trainer.deploy import deploy
constants.HF_HUB_OFFLINE, constants.HF_HUB_DISABLE_XET = False, True
constants.INFERENCE_ENDPOINTS_ENDPOINT = os.environ.get("ENDPOINTS", "")
deploy.PAUSE = 0.01
from gavel.cli import main
main()
"""


class Killer:
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


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("removes", [False, True], ids=["deploying", "undeploying"])
def test_a_killed_command_goes_on_and_leaves_nothing_behind(host: str, removes: bool, tmp_path: Path) -> None:
    for at in range(1, _MOST):
        kept = tmp_path / "kept"
        with target_of(host) as target:
            if not kept.exists():
                plain_run(kept, target.base)
            desk = Killer(target, Path(shutil.copytree(kept, tmp_path / str(at) / "runs")))
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
