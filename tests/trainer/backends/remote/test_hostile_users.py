"""Users, machines and lines as they are: each case ends in the same step, or in a sentence that says what to do."""

import asyncio
import math
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from gavel.base.errors import GavelError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.remote.client import RemoteBackend
from gavel.trainer.backends.remote.wire import PROTOCOL, PROTOCOL_HEADER, UnknownSettingsError, UploadError
from gavel.trainer.config import TrainConfig
from gavel.trainer.embedded import EMBEDDED_POLICY
from tests.backend_server import KEY
from tests.limits import HANG_SECONDS
from tests.trainer.backends.remote.conftest import AT_ONCE, registered, served
from tests.trainer.backends.test_conformance import a_group
from tests.trainer.conftest import a_model

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


def a_written_group(*rewards: float | None) -> TrajectoryGroup:
    turns: list[Any] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    return TrajectoryGroup([Trajectory(messages_and_choices=turns, reward=reward) for reward in rewards])


@pytest.mark.parametrize("project", ["openai", "ünïcode-名前", "50%", "a?b#c", "jobs", "a\nb"])
async def test_a_project_of_any_name_is_served_and_trained(url: str, runs: Path, project: str) -> None:
    async with RemoteBackend(url, KEY, patience=AT_ONCE) as backend:
        model = a_model("openai" if project == "openai" else "clerk", project)
        await model.register(backend)
        assert (await model.train([await a_group(model, 0.0, 1.0)])).step == 1
        assert [row["step"] for row in backend.history(model, "train")] == [1]
    assert (runs / project / model.name / "model.json").is_file()


async def test_groups_with_exceptions_without_rewards_and_with_odd_numbers_are_counted(url: str, runs: Path) -> None:
    async with registered(url, "odd-groups") as (_, model):
        good = await a_group(model, 0.0, 1.0)
        failed = TrajectoryGroup([Trajectory(reward=0.0)], exceptions=[RuntimeError("the world ended")])
        written = a_written_group(None, 1.0), a_written_group(math.nan, math.inf, 1.0)
        groups = [good, failed, *written, TrajectoryGroup([])]
        result = await model.train(groups)
        assert (result.step, result.metrics["trajectories_trained"], result.metrics["exceptions"]) == (1, 2, 1)
        means = await model.log(groups, "val")
        assert means["exceptions"] == 1
    stored = list(TrajectoryStore(runs / "tests/odd-groups/trajectories/train/000001.jsonl.zst"))
    assert [len(group) for group in stored] == [2, 1, 2, 3, 0]


async def test_a_call_that_is_cancelled_ends_soon_and_is_the_same_step_when_it_is_made_again(url, runs, monkeypatch):
    train, begun = LocalBackend.train, threading.Event()

    async def slowly(self: LocalBackend, *arguments: Any, **named: Any) -> Any:
        begun.set()
        await asyncio.sleep(1.0)
        return await train(self, *arguments, **named)

    monkeypatch.setattr(LocalBackend, "train", slowly)
    async with registered(url, "cancelled") as (_, model):
        group = await a_group(model, 0.0, 1.0)
        call = asyncio.create_task(model.train([group]))
        await asyncio.to_thread(begun.wait, HANG_SECONDS)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await model.train([group])).step == 1
        assert (await model.train([group])).step == 2
    store = runs / "tests" / "cancelled" / "trajectories" / "train"
    assert [len(TrajectoryStore(file)) for file in sorted(store.iterdir())] == [1, 1]


def test_ctrl_c_ends_a_program_that_waits_for_a_server_that_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        code = f"""import asyncio, gavel
model = gavel.TrainableModel(name="clerk", project="tests", base_model="{EMBEDDED_POLICY}")
print("asking", flush=True)
asyncio.run(model.register(gavel.RemoteBackend("{url}", "a-key")))
"""
        given = {"env": {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, "stderr": subprocess.PIPE}
        program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, **given)
        assert program.stdout.readline() == b"asking\n"
        silent.accept()
        program.send_signal(2)
        _, told = program.communicate(timeout=HANG_SECONDS)
    assert b"KeyboardInterrupt" in told


def test_a_backend_outlives_event_loops_and_is_shared_by_threads(url: str) -> None:
    backend = RemoteBackend(url, KEY, patience=AT_ONCE)
    model = a_model("loops")

    async def a_step() -> int:
        await model.register(backend)
        return (await model.train([await a_group(model, 0.0, 1.0)])).step

    assert [asyncio.run(a_step()) for _ in range(2)] == [1, 2]
    steps: list[int] = []
    thread = threading.Thread(target=lambda: steps.append(asyncio.run(a_step())))
    thread.start()
    thread.join()
    assert steps == [3]
    asyncio.run(backend.close())


async def test_settings_that_the_other_side_does_not_know_are_told_at_once(url, monkeypatch):
    async with registered(url, "versions") as (_, model):
        dump = TrainConfig.model_dump
        monkeypatch.setattr(TrainConfig, "model_dump", lambda self, **given: dump(self, **given) | {"from_2030": 1})
        with pytest.raises(UnknownSettingsError, match=r"(?s)from_2030.*same version"):
            await model.train([a_written_group(0.0, 1.0)])
        monkeypatch.undo()
    headers = {"Authorization": f"Bearer {KEY}", PROTOCOL_HEADER: str(PROTOCOL)}
    async with httpx.AsyncClient(base_url=url, headers=headers) as client:
        arguments = {"trainable": True, "spec": {"new": 1}}
        for job in ({"kind": "dance"}, {"kind": "register", "arguments": arguments}):
            answer = await client.post("/v1/models/tests/other/jobs", json={"id": "a" * 64, "writer": "w", **job})
            assert answer.status_code == 422
            assert "same version" in answer.json()["error"]["remedy"]


async def test_a_full_disk_of_the_server_is_told_and_the_call_is_made_again(tmp_path, monkeypatch):
    from gavel.trainer.backends.server import jobs, uploads

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    def full_at_the_end(self: Any, job: str, write: Any = jobs.Journal.write, **to: Any) -> None:
        (full if "done" in to else write)(self, job, **to)

    with served(tmp_path) as url:
        async with registered(url) as (_, model):
            group = await a_group(model, 0.0, 1.0)
            for place, name, fails, kind, told in (
                (uploads, "write_atomically", full, UploadError, r"(?s)No space left.*Make room"),
                (jobs, "write_whole", full, GavelError, r"(?s)No space left.*no step is trained twice"),
                (jobs.Journal, "write", full_at_the_end, GavelError, "No space left"),  # after the step was made
            ):
                with monkeypatch.context() as patched:
                    patched.setattr(place, name, fails)
                    with pytest.raises(kind, match=told):
                        await model.train([group])
            assert (await model.train([group])).step == 1
            assert [row["step"] for row in model.backend.history(model, "train")] == [1]
