"""Runs of this machine and of a `gavel backend`, by the names that users give them."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.server.app import create_app
from tests.backend_server import KEY, serving
from tests.forked import gavel
from tests.trainer.deploy.trained_run import make_run
from tests.trainer.engines.vllm_stand_in import BASE, StandIn

pytestmark = pytest.mark.slow

WEIGHTS = "adapter_model.safetensors"
DEPLOYED = ("--set", f"base={BASE}", "--no-smoke-test")


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run, on the machine of the backend."""
    run = make_run(tmp_path_factory.mktemp("there"))
    row = {"step": 10, "split": "held_out", "time": 0.0, "success": 0.9}
    (run / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    return run


@pytest.fixture(scope="module")
def url(there: Path) -> Iterator[str]:
    root = there.parents[1]
    with serving(create_app(LocalBackend(root), key=KEY, root=root)) as url:
        yield url


@pytest.fixture
def vllm() -> Iterator[StandIn]:
    running = StandIn()
    yield running
    running.close()


def at(url: str, tmp_path: Path, *arguments: str) -> "CompletedProcess[str]":
    return gavel(*arguments, "--backend-url", url, cwd=tmp_path, GAVEL_BACKEND_KEY=KEY)


@pytest.mark.parametrize(("run", "step"), [("desk/clerk@11", "000011"), ("desk/clerk", "000012")])
def test_a_backend_pushes_a_checkpoint_of_its_own(url: str, tmp_path: Path, run: str, step: str) -> None:
    done = at(url, tmp_path, "push", run, str(tmp_path / "store"))
    pushed = tmp_path / "store" / "desk" / "clerk" / "checkpoints" / step
    assert done.stdout.strip() == str(pushed), done.stderr
    assert f"gavel pull {tmp_path / 'store'}/desk/clerk" in done.stderr
    assert (pushed / "manifest.json").is_file()
    assert not (tmp_path / "runs").exists()


def test_a_backend_s_run_is_exported_and_fetched(url: str, there: Path, tmp_path: Path) -> None:
    asked = ("export", "desk/clerk@11", "--form", "adapter")
    done = at(url, tmp_path, *asked)
    assert done.stdout.strip() == "runs/desk/clerk/exports/000011-adapter", done.stderr
    assert f'PeftModel.from_pretrained(base, "{done.stdout.strip()}")' in done.stderr
    weights = (tmp_path / done.stdout.strip() / WEIGHTS).read_bytes()
    assert weights == (there / "checkpoints" / "000011" / WEIGHTS).read_bytes()
    merged = at(url, tmp_path, "export", "desk/clerk", "--out", "model")
    assert merged.stdout.strip() == "model", merged.stderr
    assert "vllm serve model" in merged.stderr
    assert (tmp_path / "model" / "config.json").is_file()
    twice = at(url, tmp_path, *asked, "--step", "12")
    assert "desk/clerk@11 names a step, and --step another" in twice.stderr


def test_a_backend_s_run_is_deployed_from_here_and_removed(url: str, vllm: StandIn, tmp_path: Path) -> None:
    done = at(url, tmp_path, "deploy", "desk/clerk@11", f"vllm:{vllm.url}", *DEPLOYED)
    assert done.returncode == 0, done.stderr
    name, _, model = done.stdout.split()
    assert [model] == list(vllm.adapters)
    assert name in gavel("deployments", "desk/clerk", cwd=tmp_path, COLUMNS="240").stdout
    here = gavel("push", "desk/clerk", "store", cwd=tmp_path)
    assert "there is no run 'desk/clerk' in runs" in here.stderr
    assert gavel("undeploy", "desk/clerk", cwd=tmp_path).returncode == 0
    assert vllm.adapters == {}


def test_the_best_step_of_a_backend_s_run_is_by_its_metrics_there(url: str, vllm: StandIn, tmp_path: Path) -> None:
    asked = ("deploy", "desk/clerk", f"vllm:{vllm.url}", "--best", *DEPLOYED)
    done = at(url, tmp_path, *asked)
    assert done.returncode == 0, done.stderr
    assert "desk/clerk@10" in gavel("deployments", cwd=tmp_path, COLUMNS="240").stdout
    unknown = at(url, tmp_path, *asked, "--best-by", "val/none")
    assert "no checkpoint of clerk has a value of val/none" in unknown.stderr
    none = at(url, tmp_path, "deploy", "desk/clerk@7", f"vllm:{vllm.url}", *DEPLOYED)
    assert "clerk has no whole checkpoint of step 7" in none.stderr
    assert "It has: 10, 11, 12." in none.stderr


@pytest.mark.parametrize(
    ("run", "address", "words"),
    [
        ("desk/other", None, "the backend has no run desk/other"),
        ("desk/other", None, "It has: desk/clerk."),
        ("clerk@12", None, "'clerk@12' names no run of a backend"),
        ("desk/clerk", "sky://none", "no cluster none was started from here"),
        ("desk/clerk", "gpu-box", "is no address of a server"),
    ],
)
def test_a_name_or_an_address_that_is_none_is_told(
    url: str, tmp_path: Path, run: str, address: str | None, words: str
) -> None:
    done = gavel(
        *("push", run, "store", "--backend-url", address or url),
        cwd=tmp_path,
        GAVEL_BACKEND_KEY=KEY,
        GAVEL_STATE=str(tmp_path),
    )
    assert done.returncode == 1
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("asked", [("--vllm-replicas", "2"), ("--engine", "vllm")])
def test_vllm_that_is_not_here_is_told_at_the_start(tmp_path: Path, asked: tuple[str, ...]) -> None:
    done = gavel("backend", "--port", "0", *asked, cwd=tmp_path, GAVEL_VLLM_PYTHON="/no/such/python")
    assert done.returncode == 1
    assert "there is no interpreter /no/such/python to start vLLM with" in done.stderr
    assert "Install vllm" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(importlib.util.find_spec("trackio") is not None, reason="trackio is installed")
def test_a_tracker_that_is_not_here_is_told_at_the_start(tmp_path: Path) -> None:
    done = gavel("backend", "--port", "0", "--tracker", "trackio", cwd=tmp_path)
    assert done.returncode == 1
    assert "trackio is not installed" in done.stderr
