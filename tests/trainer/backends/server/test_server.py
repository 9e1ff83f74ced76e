"""What a server's clients get again, what it refuses, when it ends itself, and that a directory of runs has one."""

import asyncio
import fcntl
import os
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from openai import AsyncOpenAI, AuthenticationError, InternalServerError

from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.remote.client import RemoteBackend
from gavel.trainer.backends.remote.wire import PROTOCOL, PROTOCOL_HEADER, RemoteBackendError, RemoteError, WriterError
from gavel.trainer.backends.server.app import create_app, hold_root, serve
from gavel.trainer.engines.protocol import Sampled
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.runs.run_directory import RunDirectoryError
from tests.backend_server import KEY, serving
from tests.limits import HANG_SECONDS
from tests.trainer.backends.remote.conftest import AT_ONCE, registered, served
from tests.trainer.backends.test_conformance import a_group
from tests.trainer.conftest import a_model
from tests.trainer.serving.served import until

pytestmark = pytest.mark.slow
HEADERS = {"Authorization": f"Bearer {KEY}", PROTOCOL_HEADER: str(PROTOCOL)}


def hears_of_step(backend: RemoteBackend, model: Any, step: int) -> None:
    """What the client believes that its model is at."""
    backend._states[model.key] = backend._states[model.key].model_copy(update={"step": step})


async def test_a_server_that_was_killed_before_it_could_answer_does_not_train_again(tmp_path, monkeypatch):
    def killed_after(method: Any) -> Any:
        async def call(*arguments: Any, **named: Any) -> Any:
            await method(*arguments, **named)
            raise SystemError("killed")

        return call

    with served(tmp_path) as url, monkeypatch.context() as patched:
        async with registered(url) as (_, model):
            group = await a_group(model, 0.0, 1.0)
            for name in ("train", "log"):
                patched.setattr(LocalBackend, name, killed_after(getattr(LocalBackend, name)))
            with pytest.raises(Exception, match="killed"):
                await model.train([group])
            with pytest.raises(Exception, match="killed"):
                await model.log([group], "val")
    with served(tmp_path) as url:
        async with registered(url) as (backend, again):
            assert backend._states[again.key].step == 1
            hears_of_step(backend, again, 0)  # what a repeated request meets
            result = await again.train([group])
            assert (result.step, result.trained, result.metrics["trajectories_trained"]) == (1, True, 2)
            assert await again.get_step() == 1
            assert backend.checkpoints(again) == [1]
    assert len([*TrajectoryStore(tmp_path / "tests" / "clerk" / "trajectories" / "train" / "000001.jsonl.zst")]) == 1


async def test_one_client_alone_changes_a_model_at_the_step_that_it_knows_and_others_may_read_it(tmp_path: Path):
    with served(tmp_path / "runs") as url:
        async with registered(url) as (first, model), RemoteBackend(url, KEY, patience=AT_ONCE) as reader:
            group = await a_group(model, 0.0, 1.0)
            await model.train([group])
            found = await reader.find("tests", "clerk")
            assert (found.lora, reader.checkpoints(found), reader.step(found)) == (model.lora, [1], 1)
            assert [row["step"] for row in reader.history(found, "train")] == [1]
            await reader.push(found, str(tmp_path / "store"), 1)
            made = await reader.export(found, "adapter", "auto", None, tmp_path / "here")
            assert (await model.train([group])).step == 2
            with pytest.raises(WriterError):
                await reader.delete_checkpoints(found, [1])
            async with registered(url) as (_, new):
                with pytest.raises(WriterError, match="another client"):
                    await model.train([group])
                await new.train([group])
            await model.register(first)
            assert await model.get_step() == 3
            hears_of_step(first, model, 7)
            with pytest.raises(RemoteError, match="at step 3, and its client is at step 7"):
                await model.train([group])
    assert (tmp_path / "store" / "tests" / "clerk" / "checkpoints" / "000001" / "manifest.json").is_file()
    assert (made / "adapter_model.safetensors").is_file()


async def test_nothing_is_answered_without_the_key_and_that_of_a_capture_reaches_its_endpoint_alone(tmp_path: Path):
    with served(tmp_path) as url:
        with pytest.raises(RemoteError, match="the key is not that"):
            await a_model().register(RemoteBackend(url, "another", patience=AT_ONCE))
        with pytest.raises(RemoteBackendError, match="has not answered"):
            await a_model().register(RemoteBackend("http://127.0.0.1:9", KEY, patience=0.5))
        old = RemoteBackend(url, KEY, patience=AT_ONCE)
        old.connection._client.headers["Gavel-Protocol"] = "0"
        with pytest.raises(RemoteError, match="Install the same version"):
            await a_model().register(old)
        async with AsyncOpenAI(base_url=f"{url}/v1/models/tests/clerk/openai/v1", api_key="k", max_retries=0) as openai:
            with pytest.raises(AuthenticationError):
                await openai.models.list()
        async with registered(url) as (_, model), model.capture() as capture, httpx.AsyncClient() as client:
            headers = HEADERS | {"Authorization": f"Bearer {capture.api_key}"}
            for path in ("tests/clerk/jobs", "openai/openai/files/openai/v1/a", "tests/clerk/history?next=/openai/v1/"):
                assert (await client.get(f"{url}/v1/models/{path}", headers=headers)).status_code == 401
                assert (await client.get(f"{url}/v1/models/{path}", headers=HEADERS)).status_code != 401
            assert (await client.get(f"{capture.base_url}/models", headers=headers)).status_code == 200
            for path in ("model.json", "../secret", "checkpoints/../model.json"):
                answer = await client.get(f"{url}/v1/models/tests/clerk/files/{path}", headers=HEADERS)
                assert answer.status_code == 404, path


async def test_a_client_that_leaves_ends_its_turn_and_an_endpoint_that_closes_says_so(tmp_path, monkeypatch):
    held: list[Future[Sampled]] = []
    local = LocalBackend(tmp_path)
    with serving(create_app(local, key=KEY, root=tmp_path)) as url:
        async with registered(url) as (_, model):
            submit = lambda *_: held.append(Future()) or held[-1]  # noqa: E731
            monkeypatch.setattr(TransformersEngine, "submit", submit)
            leaving, staying = (asyncio.create_task(a_group(model, 0.0)) for _ in range(2))
            await until(lambda: len(held) == 2)
            leaving.cancel()
            await until(lambda: sum(turn.cancelled() for turn in held) == 1)
            client = model.openai_client().with_options(max_retries=0)
            asking = client.chat.completions.create(model="clerk", messages=[{"role": "user", "content": "hi"}])
            asked = asyncio.create_task(asking)
            await until(lambda: len(held) == 3)
            await asyncio.to_thread(local._run(model)._server.close)
            with pytest.raises(InternalServerError, match="closing"):
                await asked
            staying.cancel()


async def test_a_server_ends_when_nobody_has_used_it_and_a_look_at_its_health_is_no_use(tmp_path, monkeypatch):
    told: list[str] = []
    ending = serve(
        LocalBackend(tmp_path), key=KEY, root=tmp_path, host="127.0.0.1", port=0, announce=told.append, idle_seconds=0.3
    )
    await asyncio.wait_for(ending, HANG_SECONDS)
    assert told[0].startswith("http://127.0.0.1:")
    now = 100.0
    monkeypatch.setattr("gavel.trainer.backends.server.app.time.monotonic", lambda: now)
    app = create_app(LocalBackend(tmp_path), key=KEY, root=tmp_path)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
        now = 110.0
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/v1/models/a/b/history")).status_code == 401
        assert app.idle_seconds() == 10.0
        assert (await client.get("/v1/models/a/b/history", headers=HEADERS)).status_code == 404
        assert app.idle_seconds() == 0.0


def test_a_second_server_is_told_who_holds_the_runs_and_a_place_that_cannot_be_used_is_told(tmp_path, monkeypatch):
    with hold_root(tmp_path, "http://127.0.0.1:8090"):
        told = rf"http://127.0.0.1:8090, process {os.getpid()}(?s:.*)runs="
        with pytest.raises(RunDirectoryError, match=told), hold_root(tmp_path, "http://127.0.0.1:8091"):
            pass
        with hold_root(tmp_path / "other", "http://127.0.0.1:8091"):
            pass
    with hold_root(tmp_path, "http://127.0.0.1:8091"):
        pass
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(95, "Operation not supported")))
    for place, told in (("file", "cannot hold runs"), ("", "Operation not supported")):
        with pytest.raises(RunDirectoryError, match=told), hold_root(tmp_path / place, "http://here"):
            pass
