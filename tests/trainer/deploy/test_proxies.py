"""A proxy that answers with a page of HTML in a host's place: told in a sentence, without the page."""

import os
from pathlib import Path

import pytest

from tests.fake_server import Answer, Call, FakeServer
from tests.forked import Running
from tests.trainer.deploy.fakes import together as together_fake
from tests.trainer.deploy.test_kills import a_run
from tests.trainer.deploy.test_secrets import _PROGRAM  # pyright: ignore[reportPrivateUsage]

pytestmark = pytest.mark.slow
_PAGE = b"<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"


class Proxy(FakeServer):
    status = 502

    def respond(self, call: Call) -> Answer:
        return Answer(_PAGE, self.status, {"Content-Type": "text/html"})


@pytest.mark.parametrize("status", [502, 200])
@pytest.mark.parametrize("host", ["vllm:{}", "together", "fireworks:desk", "huggingface:desk", "ollama:{}"])
def test_a_page_of_a_proxy_is_told_in_a_sentence(host: str, status: int, tmp_path: Path) -> None:
    for package in ("together", "fireworks", "ollama"):
        if host.startswith(package):
            pytest.importorskip(package)
    program = tmp_path / "typed.py"
    program.write_text(_PROGRAM)
    a_run(tmp_path / "runs", together_fake.BASE)
    proxy = Proxy()
    proxy.status = status
    names = ("TOGETHER_BASE_URL", "FIREWORKS_BASE_URL", "HF_ENDPOINT", "ENDPOINTS")
    keys = ("TOGETHER_API_KEY", "TOGETHER_PROJECT_ID", "FIREWORKS_API_KEY", "HF_TOKEN")
    environment = {**os.environ, **dict.fromkeys(names, proxy.url), **dict.fromkeys(keys, "key-of-the-tests")}
    environment |= {"GAVEL_RUNS": str(tmp_path / "runs"), "HOME": str(tmp_path)}
    command = ["deploy", "desk/clerk@12", host.format(proxy.url), "--no-smoke-test"]
    try:
        done = Running([str(program), *command], tmp_path, environment, program).end()
    finally:
        proxy.close()
    assert done.returncode == 1, done.stderr
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr
    assert "<html" not in done.stderr.lower()
    assert "docs/deploy.md" not in done.stderr
