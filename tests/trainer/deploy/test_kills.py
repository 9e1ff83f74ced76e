"""`gavel deploy` and `gavel undeploy` in a process that is killed (SIGKILL) at every request that changes something at
a host, and at a host that does what it was asked for and answers 500.

The answer is never read. The same command then goes on: nothing is there twice, and `gavel undeploy` leaves nothing
behind.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from gavel.trainer.deploy.record import read_records
from gavel.trainer.runs.checkpoints import Checkpoints
from tests.fake_hub import TOKEN, FakeHub
from tests.fake_server import Answer, Call
from tests.forked import Running
from tests.trainer.deploy.conftest import write_adapter
from tests.trainer.deploy.fakes import scripted
from tests.trainer.deploy.fakes import together as together_fake
from tests.trainer.deploy.fakes import wandb as wandb_fake
from tests.trainer.deploy.fakes.fireworks import ACCOUNT, FakeFireworks
from tests.trainer.deploy.fakes.huggingface import FakeEndpoints
from tests.trainer.deploy.fakes.ollama import FakeOllama
from tests.trainer.deploy.fakes.together import FakeTogether
from tests.trainer.deploy.fakes.wandb import FakeWandb
from tests.trainer.deploy.trained_run import make_run
from tests.trainer.engines.vllm_stand_in import BASE, StandIn

pytestmark = [pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(1800)]
_MOST = 40
"""Requests of a deployment, beyond which a test is wrong."""
_LOST = Answer({"error": "lost"}, 500)
_PROGRAM = """
import os
from huggingface_hub import constants
from gavel.trainer.deploy import retry, together, waiting
constants.HF_HUB_OFFLINE, constants.HF_HUB_DISABLE_XET = False, True
constants.INFERENCE_ENDPOINTS_ENDPOINT = os.environ.get("ENDPOINTS", "")
waiting.PAUSE = together._POLL = 0.01
retry._backoff = lambda state: 0.01
from gavel.cli import main
main()
"""


@dataclass
class Killer:
    """Kills a process when its `at`th request that changes something has been carried out."""

    process: Running | None = None
    at: int = 0
    spares: bool = False
    """Whether the process lives, and only the answer is lost."""
    seen: list[str] = field(default_factory=list)

    def carried_out(self, method: str, path: str) -> bool:
        """Whether the host is to answer 500."""
        if self.process is None or method not in ("POST", "PUT", "PATCH", "DELETE"):
            return False
        self.seen.append(f"{method} {path}")
        if len(self.seen) != self.at:
            return False
        if not self.spares:
            self.process.send(signal.SIGKILL)
            wait([self.process.process.sentinel], timeout=60)  # its status is for the test's own thread alone to read
        return self.spares


def a_run(root: Path, base: str) -> Path:
    run = root / "desk" / "clerk"

    def write(directory: Path) -> None:
        write_adapter(directory)

    Checkpoints(run / "checkpoints").save(12, write)
    (run / "model.json").write_text(f'{{"project": "desk", "name": "clerk", "base_model": "{base}"}}')
    return run


@dataclass
class Target:
    """A host, and what is to be said of it."""

    address: str
    options: tuple[str, ...]
    environment: dict[str, str]
    made: Callable[[], list[str]]
    """What was created there, each time that it was."""
    left: Callable[[], int]
    """Things that stand there."""
    base: str = together_fake.BASE
    run: Callable[[Path, str], Path] = a_run


def watched(fake: Any, killer: Killer) -> Any:
    respond = fake.respond

    def answered(call: Call) -> Answer:
        answer = respond(call)
        return _LOST if killer.carried_out(call.method, call.path) else answer

    fake.respond = answered
    return fake


@contextmanager
def together(killer: Killer) -> Generator[Target]:
    pytest.importorskip("together")
    fake = FakeTogether(looks=0)
    route = fake._route  # pyright: ignore[reportPrivateUsage]

    async def answered(request: Request, method: str, path: str) -> Response:
        answer = await route(request, method, path)
        return Response("lost", 500) if killer.carried_out(method, path) else answer

    fake._route = answered  # pyright: ignore[reportPrivateUsage]
    names = {"TOGETHER_BASE_URL": fake.url, "TOGETHER_API_KEY": together_fake.KEY}
    names["TOGETHER_PROJECT_ID"] = together_fake.PROJECT
    yield Target("together", ("--set", "poll=0.01"), names, lambda: fake.made, fake.left)
    fake.close()


@contextmanager
def fireworks(killer: Killer) -> Generator[Target]:
    pytest.importorskip("fireworks")
    fake: FakeFireworks = watched(FakeFireworks(looks=0), killer)

    def left() -> int:
        standing = [each for each in fake.deployments.values() if each["state"] != "DELETED"]
        return len(fake.models) + len(fake.loaded) + len(standing)

    names = {"FIREWORKS_BASE_URL": fake.url, "FIREWORKS_API_KEY": scripted.KEY}
    yield Target(f"fireworks:{ACCOUNT}", (), names, lambda: fake.made, left)
    fake.close()


@contextmanager
def huggingface(killer: Killer) -> Generator[Target]:
    hub: FakeHub = watched(FakeHub(), killer)
    fake: FakeEndpoints = watched(FakeEndpoints(hub, looks=0), killer)
    names = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "ENDPOINTS": f"{fake.url}/v2"}

    def made() -> list[str]:
        return [*fake.made, *(name for name, each in hub.repositories.items() for _ in range(max(each.commits, 1)))]

    yield Target("huggingface:desk", (), names, made, lambda: len(fake.endpoints) + len(hub.repositories))
    fake.close()
    hub.close()


class WatchedStandIn(StandIn):
    def __init__(self, killer: Killer) -> None:
        self._killer = killer
        super().__init__()

    async def _post(self, request: Request) -> Response:
        answer = await super()._post(request)
        return Response("lost", 500) if self._killer.carried_out("POST", request.url.path) else answer


@contextmanager
def vllm(killer: Killer) -> Generator[Target]:
    fake = WatchedStandIn(killer)
    yield Target(f"vllm:{fake.url}", (), {}, lambda: fake.every_name, lambda: len(fake.adapters), base=BASE)
    fake.close()


@contextmanager
def wandb(killer: Killer) -> Generator[Target]:
    pytest.importorskip("wandb")
    fake = FakeWandb()
    respond = fake.respond

    def answered(call: Call) -> Answer:
        answer = respond(call)
        changed = wandb_fake.change_of(call)  # the SDK asks all in one way, and sends events whenever it likes
        return _LOST if changed is not None and killer.carried_out("POST", changed) else answer

    fake.respond = answered
    with tempfile.TemporaryDirectory() as kept:
        names = {"WANDB_BASE_URL": fake.url, "WANDB_API_KEY": wandb_fake.KEY, "WANDB_ERROR_REPORTING": "false"}
        names |= {f"WANDB_{name}": kept for name in ("CACHE_DIR", "DATA_DIR", "DIR")}

        def made() -> list[str]:
            return [*(each["name"] for each in fake.artifacts.values()), *(f"run {name}" for name in fake.runs)]

        yield Target("wandb:desk/serving", (), names, made, lambda: len(fake.artifacts), "Qwen/Qwen2.5-14B-Instruct")
    fake.close()


@contextmanager
def ollama(killer: Killer) -> Generator[Target]:
    pytest.importorskip("ollama")
    fake: FakeOllama = watched(FakeOllama(), killer)

    def real(root: Path, _: str) -> Path:
        return make_run(root)  # its weights are merged

    yield Target("ollama", (), {"OLLAMA_HOST": fake.url}, lambda: fake.made, lambda: len(fake.models), run=real)
    fake.close()


@pytest.fixture
def cloned(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Target], Path]:
    kept: list[Path] = []

    def clone(target: Target) -> Path:
        if not kept:
            kept.append(target.run(tmp_path_factory.mktemp("kept") / "runs", target.base).parents[1])
        return Path(shutil.copytree(kept[0], tmp_path_factory.mktemp("killed") / "runs"))

    return clone


KINDS = [vllm, together, fireworks, huggingface, wandb, ollama]


@dataclass
class Desk:
    """Where commands are typed."""

    target: Target
    runs: Path
    program: Path

    def typed(self, *arguments: str) -> Running:
        environment = {**os.environ, **self.target.environment, "GAVEL_RUNS": str(self.runs)}
        environment["HOME"] = str(self.runs.parent)
        return Running([str(self.program), *arguments], self.runs.parent, environment, self.program)

    @property
    def command(self) -> tuple[str, ...]:
        return "deploy", "desk/clerk@12", self.target.address, "--no-smoke-test", *self.target.options

    def state(self) -> str:
        (record,) = read_records(self.runs / "desk" / "clerk")
        return record.state


@pytest.fixture
def desk(cloned: Callable[[Target], Path], tmp_path: Path) -> Callable[[Target], Desk]:
    program = tmp_path / "typed.py"
    program.write_text(_PROGRAM)
    return lambda target: Desk(target, cloned(target), program)


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_command_goes_on_and_leaves_nothing_behind(
    kind: Callable[[Killer], Any], desk: Callable[[Target], Desk]
) -> None:
    for at in range(1, _MOST):
        killer = Killer(at=at)
        with kind(killer) as target:
            at_desk = desk(target)
            killer.process = at_desk.typed(*at_desk.command)
            first = killer.process.end()
            killer.process = None
            if first.returncode == 0:
                assert at > 1, killer.seen
                assert len(killer.seen) == at - 1, "the same requests as before, none of them the one to be killed at"
                return
            where = f"{at}: killed after {killer.seen[-1:]}"
            assert first.returncode == -signal.SIGKILL, f"{where}: {first.stderr}"
            listed = at_desk.typed("deployments", "desk/clerk").end()
            assert "deploying" in listed.stdout, f"{where}: {listed.stdout}{listed.stderr}"
            again = at_desk.typed(*at_desk.command).end()
            assert again.returncode == 0, f"{where}: {again.stderr}"
            made = target.made()
            assert len(made) == len(set(made)), f"{where}: {made}"
            assert at_desk.state() == "deployed", where
            done = at_desk.typed("undeploy", "desk/clerk").end()
            assert done.returncode == 0, f"{where}: {done.stderr}"
            assert target.left() == 0, where
    raise AssertionError(f"more than {_MOST} requests")


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_removal_goes_on_and_leaves_nothing_behind(
    kind: Callable[[Killer], Any], desk: Callable[[Target], Desk]
) -> None:
    for at in range(1, _MOST):
        killer = Killer(at=at)
        with kind(killer) as target:
            at_desk = desk(target)
            deployed = at_desk.typed(*at_desk.command).end()
            assert deployed.returncode == 0, deployed.stderr
            killer.process = at_desk.typed("undeploy", "desk/clerk")
            first = killer.process.end()
            killer.process = None
            if first.returncode == 0:
                assert at > 1, killer.seen
                assert (len(killer.seen), target.left(), at_desk.state()) == (at - 1, 0, "undeployed")
                return
            where = f"{at}: killed after {killer.seen[-1:]}"
            assert first.returncode == -signal.SIGKILL, f"{where}: {first.stderr}"
            listed = at_desk.typed("deployments", "desk/clerk").end()
            assert "undeploying" in listed.stdout, f"{where}: {listed.stdout}{listed.stderr}"
            again = at_desk.typed("undeploy", "desk/clerk").end()
            assert again.returncode == 0, f"{where}: {again.stderr}"
            assert (target.left(), at_desk.state()) == (0, "undeployed"), where
    raise AssertionError(f"more than {_MOST} requests")


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_of_500_makes_nothing_twice_and_leaves_nothing_behind(
    kind: Callable[[Killer], Any], desk: Callable[[Target], Desk]
) -> None:
    for at in range(1, _MOST):
        killer = Killer(at=at, spares=True)
        with kind(killer) as target:
            at_desk = desk(target)

            def done(*command: str, killer: Killer = killer, at_desk: Desk = at_desk) -> None:
                """At once, or by the same command again."""
                for left in (1, 0):
                    killer.process = at_desk.typed(*command)
                    ended = killer.process.end()
                    assert "Traceback" not in ended.stderr, f"{killer.seen}: {ended.stderr}"
                    if ended.returncode == 0:
                        return
                    assert left, f"{killer.seen}: {ended.stderr}"

            done(*at_desk.command)
            made = target.made()
            assert len(made) == len(set(made)), f"{killer.seen}: {made}"
            assert at_desk.state() == "deployed"
            done("undeploy", "desk/clerk")
            assert (target.left(), at_desk.state()) == (0, "undeployed"), killer.seen
            if len(killer.seen) < at:
                assert at > 1
                return
    raise AssertionError(f"more than {_MOST} requests")
