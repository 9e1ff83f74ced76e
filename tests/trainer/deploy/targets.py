"""Every host on loopback, and what its conformance tests must know of it."""

import os
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
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
from tests.trainer.deploy.fakes.ollama import FakeOllama
from tests.trainer.deploy.fakes.scripted import KEY, ScriptedHost
from tests.trainer.deploy.fakes.together import BASE, PROJECT, FakeTogether
from tests.trainer.deploy.trained_run import make_run


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
    key: str | None
    servers: list[ScriptedHost | FakeHub]
    made: Callable[[], list[str]]
    """What was created there, each time that it was."""
    left: Callable[[], int]
    base: str = BASE
    run: Callable[[Path, str], Path] = plain_run
    change_of: Callable[[Call], str | None] = _change_of
    """What a request changes at the host; None: nothing."""

    def lose(self, is_lost: Callable[[str], bool]) -> None:
        def answered(respond: Callable[[Call], Answer], call: Call) -> Answer:
            answer, change = respond(call), self.change_of(call)
            return Answer({"error": "lost"}, 500) if change is not None and is_lost(change) else answer

        for server in self.servers:
            server.respond = partial(answered, server.respond)


@contextmanager
def _vllm() -> Generator[Target]:
    fake, key = vllm.FakeVllm(), "VLLM_API_KEY"
    yield Target(f"vllm:{fake.url}", {key: KEY}, key, [fake], lambda: fake.made, lambda: len(fake.adapters), vllm.BASE)
    fake.close()


@contextmanager
def _together() -> Generator[Target]:
    pytest.importorskip("together")
    fake = FakeTogether()
    environment = {"TOGETHER_BASE_URL": fake.url, "TOGETHER_API_KEY": KEY, "TOGETHER_PROJECT_ID": PROJECT}
    yield Target("together", environment, "TOGETHER_API_KEY", [fake], lambda: fake.made, fake.left)
    fake.close()


@contextmanager
def _fireworks() -> Generator[Target]:
    pytest.importorskip("fireworks")
    fake = FakeFireworks(looks=1)
    environment = {"FIREWORKS_BASE_URL": fake.url, "FIREWORKS_API_KEY": KEY}
    yield Target(f"fireworks:{ACCOUNT}", environment, "FIREWORKS_API_KEY", [fake], lambda: fake.made, fake.left)
    fake.close()


@contextmanager
def _huggingface() -> Generator[Target]:
    hub = FakeHub()
    fake = FakeEndpoints(hub, looks=1)
    environment = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "ENDPOINTS": f"{fake.url}/v2"}

    def made() -> list[str]:
        return [*fake.made, *(name for name, each in hub.repositories.items() for _ in range(max(each.commits, 1)))]

    yield Target(
        "huggingface:desk", environment, "HF_TOKEN", [hub, fake], made,
        lambda: len(fake.endpoints) + len(hub.repositories),
    )  # fmt: skip
    fake.close()
    hub.close()


@contextmanager
def _wandb() -> Generator[Target]:
    sdk = pytest.importorskip("wandb")
    sdk.teardown()  # the SDK's process keeps the address of its first server
    fake = wandb.FakeWandb()

    def made() -> list[str]:
        return [*(each["name"] for each in fake.artifacts.values()), *(f"run {name}" for name in fake.runs)]

    with tempfile.TemporaryDirectory() as kept:
        environment = {"WANDB_BASE_URL": fake.url, "WANDB_API_KEY": wandb.KEY, "WANDB_ERROR_REPORTING": "false"}
        environment |= {f"WANDB_{name}": kept for name in ("CACHE_DIR", "DATA_DIR", "DIR")}
        yield Target(
            "wandb:desk/serving", environment, "WANDB_API_KEY", [fake], made, lambda: len(fake.artifacts),
            "Qwen/Qwen2.5-14B-Instruct", change_of=wandb.change_of,
        )  # fmt: skip
        sdk.teardown()
    fake.close()


@contextmanager
def _ollama() -> Generator[Target]:
    pytest.importorskip("ollama")
    fake = FakeOllama()
    yield Target(
        "ollama", {"OLLAMA_HOST": fake.url}, None, [fake], lambda: fake.made, lambda: len(fake.models),
        run=lambda root, base: make_run(root),  # its weights are merged
        change_of=lambda call: None if call.path == "/api/show" else _change_of(call),
    )  # fmt: skip
    fake.close()


HOSTS = {
    "vllm": _vllm, "together": _together, "fireworks": _fireworks, "huggingface": _huggingface, "wandb": _wandb,
    "ollama": _ollama,
}  # fmt: skip
SLOW = ("wandb", "ollama")
"""The SDK of the one starts a process of its own; the other merges a real model."""
EVERY_HOST = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in HOSTS]


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
