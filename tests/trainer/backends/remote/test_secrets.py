"""Keys that are planted in the environment of a remote run appear in no file, message or command line."""

import os
import subprocess
import sys
import traceback
from collections.abc import Generator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from gavel.base.errors import GavelError
from gavel.trainer.backends.remote.client import RemoteBackend
from gavel.trainer.backends.remote.wire import WrongKeyError
from tests.backend_server import BackendServer
from tests.endpoint import Endpoint, scores
from tests.fake_server import Answer, Call, FakeServer
from tests.limits import HANG_SECONDS
from tests.planted_secrets import Watcher, planted_files
from tests.trainer.conftest import a_model

pytestmark = pytest.mark.slow

_MARK = "PLANTED"
BACKEND_KEY, JUDGE_KEY = f"{_MARK}-backend-5f2c", f"sk-{_MARK}-judge-77aa01"
AWS_ID, AWS_SECRET = f"AKIA{_MARK}ID", f"{_MARK}/aws/secret"
HUB_TOKEN = f"{_MARK}-token-of-the-hub"


class RepeatingHub(FakeServer):
    def respond(self, call: Call) -> Answer:
        said = f"no such token: {call.headers.get('authorization')}"
        return Answer({"error": said}, 401, {"X-Error-Message": said})


@pytest.fixture
def environment(tmp_path: Path) -> Generator[dict[str, str]]:
    store, judge, hub = ThreadedMotoServer(port=0), Endpoint(), RepeatingHub()
    store.start()
    host, port = store.get_host_and_port()
    judge.script = [scores(0.9, 0.1, 0.5)]
    planted = {
        "GAVEL_BACKEND_KEY": BACKEND_KEY,
        "OPENAI_API_KEY": JUDGE_KEY,
        "OPENAI_BASE_URL": f"{judge.url}/v1",
        "OPENAI_API_BASE": f"{judge.url}/v1",
        "AWS_ENDPOINT_URL_S3": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": AWS_ID,
        "AWS_SECRET_ACCESS_KEY": AWS_SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": HUB_TOKEN,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    try:
        yield {**os.environ, **planted}
    finally:
        store.stop()
        judge.close()
        hub.close()


def gavel(environment: dict[str, str], directory: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "gavel", *arguments]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS)
    with (directory / "output.log").open("a") as log:
        log.write(done.stdout + done.stderr)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.thorough
async def test_no_secret_of_a_remote_run_is_written_or_shown_anywhere(tmp_path, environment, monkeypatch):
    import boto3

    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, environment[name])
    boto3.client("s3").create_bucket(Bucket="bucket")
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    server, watcher = BackendServer(there / "runs", there / "server.log", environment), Watcher(_MARK)
    small = ("--steps", "1", "--tasks", "2", "--group-size", "3", "--evaluation-tasks", "2", "--max-tokens", "8")
    with watcher.watching():
        server.start()
        try:
            arguments = ("train", "returns_desk", "--name", "clerk", "--judge", "openai/gpt-4o-mini", *small)
            status, told = gavel(environment, here, *arguments, "--backend-url", server.url)
            assert status == 0, told
            told = await _errors(server.url)
            (here / "errors.log").write_text(told)
        finally:
            server.stop()
    assert list(there.rglob("jobs.jsonl"))
    assert (planted_files(tmp_path, [_MARK]), watcher.found) == ([], set())


async def _errors(url: str) -> str:
    told: list[str] = []
    model = a_model("clerk", "returns_desk")
    async with RemoteBackend(url, BACKEND_KEY, patience=60) as backend:
        await model.register(backend)
        for address in ("s3://no-such-bucket/x", "s3://", "hf://desk/adapters"):
            with pytest.raises(GavelError) as error:
                await model.push(address)
            told.append(repr(error.value) + "".join(traceback.format_exception(error.value)))
        told.append(await model.push("s3://bucket/gavel"))
        told.append(repr(model))
    with pytest.raises(WrongKeyError) as error:
        await model.register(RemoteBackend(url, f"{_MARK}-wrong", patience=60))
    told.append(repr(error.value) + str(error.value))
    with pytest.raises(GavelError) as unreachable:
        await model.register(RemoteBackend("http://127.0.0.1:9", BACKEND_KEY, patience=0.3))
    told.append(repr(unreachable.value) + repr(unreachable.value.__cause__))
    return "\n".join(told)
