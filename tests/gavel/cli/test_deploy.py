"""`gavel deploy`, `push` and `export`: runs of this machine and of a `gavel backend`, by the names users give them."""

import json
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.server.app import create_app
from tests.backend_server import KEY, serving
from tests.forked import gavel, succeed
from tests.gavel.cli.test_app import mistake
from tests.trainer.deploy.trained_run import make_run
from tests.trainer.engines.vllm_stand_in import BASE, StandIn

pytestmark = pytest.mark.slow
WEIGHTS = "adapter_model.safetensors"
DEPLOYED = ("--set", f"base={BASE}", "--no-smoke-test")


@pytest.fixture
def server() -> Iterator[StandIn]:
    running = StandIn()
    yield running
    running.close()


def test_a_run_is_deployed_listed_and_removed(server: StandIn, tmp_path: Path) -> None:
    make_run(tmp_path / "runs")
    asked = ("deploy", "desk/clerk@12", f"vllm:{server.url}", *DEPLOYED)
    done = succeed(*asked, cwd=tmp_path)
    name, base_url, model = done.stdout.split()
    assert (base_url, [model]) == (f"{server.url}/v1", list(server.adapters))
    assert f"gavel undeploy {name}" in done.stderr
    listed = gavel("deployments", "desk/clerk", "--status", cwd=tmp_path, COLUMNS="240").stdout
    assert name in listed
    assert "deployed, serving" in listed
    assert "not run" in listed
    succeed("undeploy", name, cwd=tmp_path)
    assert server.adapters == {}
    again = gavel("undeploy", "desk/clerk", cwd=tmp_path)
    assert "removed already" in again.stdout
    assert "Nothing is deployed" in gavel("deployments", cwd=tmp_path).stdout
    assert name in gavel("deployments", "--all", cwd=tmp_path, COLUMNS="240").stdout
    (record,) = json.loads(gavel("deployments", "--all", "--json", cwd=tmp_path).stdout)
    assert (record["state"], record["adapter"]["step"]) == ("undeployed", 12)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("deploy desk/other together", "there is no run 'desk/other'"),
        ("deploy desk/clerk@7 together", "no whole checkpoint of step 7"),
        ("deploy desk/clerk@12 --best together", "names a step, and --best another"),
        ("deploy desk/clerk nowhere", "there is no host 'nowhere'"),
        ("deploy desk/clerk vllm:http://h --set x=1", "no option 'x'"),
        ("push desk/other store --backend-url {}", "It has: desk/clerk."),
        ("push clerk@12 store --backend-url {}", "'clerk@12' names no run of a backend"),
        ("push desk/clerk store --backend-url sky://none", "no cluster none was started from here"),
        ("push desk/clerk store --backend-url gpu-box", "is no address of a server"),
    ],
)
def test_a_mistake_is_a_sentence_with_its_remedy(url: str, tmp_path: Path, asked: str, words: str) -> None:
    make_run(tmp_path / "runs")
    own = {"GAVEL_BACKEND_KEY": KEY, "GAVEL_STATE": str(tmp_path)}
    assert words in mistake(*asked.format(url).split(), cwd=tmp_path, **own)


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


def at(url: str, tmp_path: Path, *arguments: str) -> "CompletedProcess[str]":
    return gavel(*arguments, "--backend-url", url, cwd=tmp_path, GAVEL_BACKEND_KEY=KEY)


def test_a_backend_pushes_a_checkpoint_of_its_own(url: str, tmp_path: Path) -> None:
    done = at(url, tmp_path, "push", "desk/clerk@11", str(tmp_path / "store"))
    pushed = tmp_path / "store" / "desk" / "clerk" / "checkpoints" / "000011"
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


def test_a_backend_s_run_is_deployed_from_here_and_removed(url: str, server: StandIn, tmp_path: Path) -> None:
    done = at(url, tmp_path, "deploy", "desk/clerk@11", f"vllm:{server.url}", *DEPLOYED)
    assert done.returncode == 0, done.stderr
    name, _, model = done.stdout.split()
    assert [model] == list(server.adapters)
    assert name in gavel("deployments", "desk/clerk", cwd=tmp_path, COLUMNS="240").stdout
    succeed("undeploy", "desk/clerk", cwd=tmp_path)
    assert server.adapters == {}
