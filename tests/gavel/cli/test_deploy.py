import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forked import gavel
from tests.trainer.deploy.trained_run import make_run
from tests.trainer.engines.vllm_stand_in import BASE, StandIn

pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> Iterator[StandIn]:
    running = StandIn()
    yield running
    running.close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "runs")


def test_a_run_is_deployed_listed_and_removed(run: Path, server: StandIn, tmp_path: Path) -> None:
    asked = ("deploy", "desk/clerk@12", f"vllm:{server.url}", "--set", f"base={BASE}", "--no-smoke-test")
    done = gavel(*asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    name, base_url, model = done.stdout.split()
    assert (base_url, [model]) == (f"{server.url}/v1", list(server.adapters))
    assert f"gavel undeploy {name}" in done.stderr
    listed = gavel("deployments", "desk/clerk", "--status", cwd=tmp_path, COLUMNS="240").stdout
    assert name in listed
    assert "deployed, serving" in listed
    assert "not run" in listed
    assert gavel("undeploy", name, cwd=tmp_path).returncode == 0
    assert server.adapters == {}
    again = gavel("undeploy", "desk/clerk", cwd=tmp_path)
    assert "removed already" in again.stdout
    assert "Nothing is deployed" in gavel("deployments", cwd=tmp_path).stdout
    assert name in gavel("deployments", "--all", cwd=tmp_path, COLUMNS="240").stdout
    (record,) = json.loads(gavel("deployments", "--all", "--json", cwd=tmp_path).stdout)
    assert (record["state"], record["step"]) == ("undeployed", 12)


def test_a_deployment_that_cannot_be_removed_keeps_no_other_one_standing(
    run: Path, server: StandIn, tmp_path: Path
) -> None:
    first = StandIn()
    try:
        for each in (first, server):
            asked = ("deploy", "desk/clerk@12", f"vllm:{each.url}", "--set", f"base={BASE}", "--no-smoke-test")
            done = gavel(*asked, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
        first.api_key = "another"
        done = gavel("undeploy", "desk/clerk", cwd=tmp_path)
    finally:
        first.close()
    assert (done.returncode, server.adapters) == (1, {})
    assert "is not removed" in done.stderr
    assert "Check the API key" in done.stderr


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["desk/other", "together"], "there is no run 'desk/other'"),
        (["desk/clerk@7", "together"], "no whole checkpoint of step 7"),
        (["desk/clerk@12", "--best", "together"], "names a step, and --best another"),
        (["desk/clerk", "nowhere"], "there is no host 'nowhere'"),
        (["desk/clerk", "vllm:http://h", "--set", "x"], "not of the form key=value"),
        (["desk/clerk", "vllm:http://h", "--set", "x=1"], "no option 'x'"),
        (["desk/clerk", "together"], "only on this machine"),
    ],
)
def test_a_mistake_is_a_sentence_with_its_remedy(run: Path, tmp_path: Path, asked: list[str], words: str) -> None:
    done = gavel("deploy", *asked, cwd=tmp_path)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
