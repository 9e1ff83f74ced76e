"""Every host on loopback, and what its conformance tests must know of it."""

import os
import tempfile
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from gavel.llm import failures
from gavel.trainer.runs.checkpoints import Checkpoints
from tests.fake_hub import TOKEN, FakeHub
from tests.fake_server import Answer, Call
from tests.trainer.deploy.conftest import write_adapter
from tests.trainer.deploy.fakes import vllm, wandb
from tests.trainer.deploy.fakes.fireworks import ACCOUNT, FakeFireworks
from tests.trainer.deploy.fakes.huggingface import FakeEndpoints
from tests.trainer.deploy.fakes.scripted import KEY, ScriptedHost
from tests.trainer.deploy.fakes.together import BASE, PROJECT, FakeTogether


def plain_run(root: Path, base: str) -> Path:
    run = root / "desk" / "clerk"
    Checkpoints(run / "checkpoints").save(12, lambda directory: write_adapter(directory) and None)
    (run / "model.json").write_text(f'{{"project": "desk", "name": "clerk", "base_model": "{base}"}}')
    return run


def _change_of(call: Call) -> str | None:
    return None if call.method in ("GET", "HEAD") else call.path


@dataclass
class Target:
    address: str
    environment: dict[str, str]
    key: str
    servers: list[ScriptedHost | FakeHub]
    made: Callable[[], list[str]]
    """What was created there, each time that it was."""
    left: Callable[[], int]
    base: str = BASE
    change_of: Callable[[Call], str | None] = _change_of
    """What a request changes at the host; None: nothing."""

    def lose(self, is_lost: Callable[[str], bool]) -> None:
        def answered(respond: Callable[[Call], Answer], call: Call) -> Answer:
            answer, change = respond(call), self.change_of(call)
            return Answer({"error": "lost"}, 500) if change is not None and is_lost(change) else answer

        for server in self.servers:
            server.respond = partial(answered, server.respond)


def _vllm(fakes: ExitStack) -> Target:
    fake, key = fakes.enter_context(closing(vllm.FakeVllm())), "VLLM_API_KEY"
    return Target(f"vllm:{fake.url}", {key: KEY}, key, [fake], lambda: fake.made, lambda: len(fake.adapters), vllm.BASE)


def _together(fakes: ExitStack) -> Target:
    fake = fakes.enter_context(closing(FakeTogether()))
    environment = {"TOGETHER_BASE_URL": fake.url, "TOGETHER_API_KEY": KEY, "TOGETHER_PROJECT_ID": PROJECT}
    return Target("together", environment, "TOGETHER_API_KEY", [fake], lambda: fake.made, fake.left)


def _fireworks(fakes: ExitStack) -> Target:
    fake = fakes.enter_context(closing(FakeFireworks(looks=1)))
    environment = {"FIREWORKS_BASE_URL": fake.url, "FIREWORKS_API_KEY": KEY}
    return Target(f"fireworks:{ACCOUNT}", environment, "FIREWORKS_API_KEY", [fake], lambda: fake.made, fake.left)


def _huggingface(fakes: ExitStack) -> Target:
    hub = fakes.enter_context(closing(FakeHub()))
    fake = fakes.enter_context(closing(FakeEndpoints(hub, looks=1)))
    environment = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "ENDPOINTS": f"{fake.url}/v2"}

    def made() -> list[str]:
        return [*fake.made, *(name for name, each in hub.repositories.items() for _ in range(max(each.commits, 1)))]

    left = lambda: len(fake.endpoints) + len(hub.repositories)  # noqa: E731
    return Target("huggingface:desk", environment, "HF_TOKEN", [hub, fake], made, left)


def _wandb(fakes: ExitStack) -> Target:
    import wandb as sdk

    sdk.teardown()  # the SDK's process keeps the address of its first server
    fake = fakes.enter_context(closing(wandb.FakeWandb()))
    fakes.callback(sdk.teardown)
    kept = fakes.enter_context(tempfile.TemporaryDirectory())
    environment = {"WANDB_BASE_URL": fake.url, "WANDB_API_KEY": wandb.KEY, "WANDB_ERROR_REPORTING": "false"}
    environment |= {f"WANDB_{name}": kept for name in ("CACHE_DIR", "DATA_DIR", "DIR")}

    def made() -> list[str]:
        return [*(each["name"] for each in fake.artifacts.values()), *(f"run {name}" for name in fake.runs)]

    return Target(
        "wandb:desk/serving", environment, "WANDB_API_KEY", [fake], made, lambda: len(fake.artifacts),
        "Qwen/Qwen2.5-14B-Instruct", change_of=wandb.change_of,
    )  # fmt: skip


MAKERS = {
    "vllm": _vllm, "together": _together, "fireworks": _fireworks, "huggingface": _huggingface, "wandb": _wandb,
}  # fmt: skip


@contextmanager
def target_of(host: str) -> Generator[Target]:
    if host not in ("vllm", "huggingface"):
        pytest.importorskip(host)
    with ExitStack() as fakes:
        yield MAKERS[host](fakes)


EVERY_HOST = [pytest.param(name, marks=[pytest.mark.slow] if name == "wandb" else []) for name in MAKERS]
"""The SDK of W&B starts a process of its own."""


def ask_at_once(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    from huggingface_hub import constants

    from gavel.trainer.deploy import deploy

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(deploy, "PAUSE", 0.01)
    monkeypatch.setattr(failures, "_BROKEN_PAUSE", 0.01)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # its protocol is a native library's own
    monkeypatch.setattr(constants, "INFERENCE_ENDPOINTS_ENDPOINT", os.environ.get("ENDPOINTS", ""))
