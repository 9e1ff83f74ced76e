"""Users, machines and lines as they are: each case ends in the same step, or in a sentence that says what to do."""

import asyncio
import contextlib
import math
import os
import socket
import subprocess
import sys
import threading
import traceback
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
from gavel.trainer.backends.remote.wire import PROTOCOL, PROTOCOL_HEADER, RemoteError
from gavel.trainer.config import TrainConfig
from gavel.trainer.embedded import EMBEDDED_POLICY
from tests.backend_server import KEY, BackendServer
from tests.endpoint import Endpoint, scores
from tests.limits import HANG_SECONDS
from tests.planted_secrets import Watcher, planted_files
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
    assert [len([*TrajectoryStore(file)]) for file in sorted(store.iterdir())] == [1, 1]


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
    model, steps = a_model("loops"), list[int]()

    async def a_step() -> None:
        await model.register(backend)
        steps.append((await model.train([await a_group(model, 0.0, 1.0)])).step)

    asyncio.run(a_step())
    thread = threading.Thread(target=lambda: asyncio.run(a_step()))
    thread.start()
    thread.join()
    assert steps == [1, 2]
    asyncio.run(backend.close())


async def test_settings_that_the_other_side_does_not_know_are_told_at_once(url, monkeypatch):
    async with registered(url, "versions") as (_, model):
        dump = TrainConfig.model_dump
        monkeypatch.setattr(TrainConfig, "model_dump", lambda self, **given: dump(self, **given) | {"from_2030": 1})
        with pytest.raises(RemoteError, match=r"(?s)from_2030.*same version"):
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
    from gavel.trainer.backends.server import jobs

    train = LocalBackend.train

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    async def full_at_the_end(*arguments: Any, **named: Any) -> None:
        await train(*arguments, **named)
        full()

    with served(tmp_path) as url:
        async with registered(url) as (_, model):
            group = await a_group(model, 0.0, 1.0)
            for place, name, fails, told in (
                (jobs.ServedModel, "save", full, r"(?s)No space left.*no step is trained twice"),
                (LocalBackend, "train", full_at_the_end, "No space left"),  # after the step was made
            ):
                with monkeypatch.context() as patched:
                    patched.setattr(place, name, fails)
                    with pytest.raises(GavelError, match=told):
                        await model.train([group])
            assert (await model.train([group])).step == 1
            assert [row["step"] for row in model.backend.history(model, "train")] == [1]


_MARK = "PLANTED"
BACKEND_KEY, JUDGE_KEY = f"{_MARK}-backend-5f2c", f"sk-{_MARK}-judge-77aa01"


async def test_no_secret_of_a_remote_run_is_written_or_shown_anywhere(tmp_path: Path) -> None:
    here, there, judge = tmp_path / "here", tmp_path / "there", Endpoint()
    here.mkdir()
    there.mkdir()
    judge.script = [scores(0.9, 0.1, 0.5)]
    planted = {"OPENAI_API_KEY": JUDGE_KEY, "OPENAI_BASE_URL": f"{judge.url}/v1", "GAVEL_BACKEND_KEY": BACKEND_KEY}
    planted |= {"HF_TOKEN": f"{_MARK}-token", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment = {**os.environ, **planted}
    server, watcher = BackendServer(there / "runs", there / "server.log", environment), Watcher(_MARK)
    command = (
        f"-m gavel train returns_desk --name clerk --judge openai/gpt-4o-mini --backend-url {server.url} --steps 1 "
    )
    command += "--tasks 2 --group-size 3 --evaluation-tasks 2 --max-tokens 8"
    with contextlib.closing(judge), watcher.watching():
        server.start()
        try:
            with (here / "output.log").open("wb") as log:
                given = {"cwd": here, "env": environment, "stdout": log, "stderr": log, "timeout": HANG_SECONDS}
                done = await asyncio.to_thread(subprocess.run, [sys.executable, *command.split()], **given)
            assert done.returncode == 0, (here / "output.log").read_text()
            (here / "errors.log").write_text(await _errors(server.url))
        finally:
            server.stop()
    assert list(there.rglob("job.json"))
    assert (planted_files(tmp_path, [_MARK]), watcher.found) == ([], set())


async def _errors(url: str) -> str:
    model, told = a_model("clerk", "returns_desk"), list[str]()
    async with RemoteBackend(url, BACKEND_KEY, patience=60) as backend:
        await model.register(backend)
        with pytest.raises(GavelError) as error:
            await model.push("s3://")
        told += [*traceback.format_exception(error.value), repr(model)]
    for given in ((url, f"{_MARK}-wrong"), ("http://127.0.0.1:9", BACKEND_KEY)):
        with pytest.raises(GavelError) as error:
            await model.register(RemoteBackend(*given, patience=0.3))
        told += traceback.format_exception(error.value)
    return "\n".join(told)
