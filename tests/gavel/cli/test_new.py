"""`gavel new scenario`, by hand and for the tools of a server."""

import asyncio
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import gavel
from gavel.base.errors import GavelError
from gavel.cli.new import app
from gavel.scenarios.scripted_agent import talker
from tests.endpoint import Endpoint
from tests.forked import succeed
from tests.gavel.cli.test_app import mistake
from tests.judge.task_drafts.writer_model import WriterModel


@pytest.mark.slow
def test_what_is_written_passes_its_own_test_and_can_be_checked(tmp_path: Path):
    made = succeed("new", "scenario", "my-desk", cwd=tmp_path)
    assert "Next: gavel check my-desk/scenario.py" in made.stdout
    checked = succeed("check", "my-desk/scenario.py", "--no-prompt", cwd=tmp_path)
    assert "look_up_price" in checked.stdout
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "my-desk"]
    tested = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "2 passed" in tested.stdout, tested.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["my-desk", "../x", "9lives", "ä"])
def test_a_name_that_is_taken_or_none_is_refused(tmp_path: Path, name: str):
    (tmp_path / "my-desk").mkdir()
    mistake("new", "scenario", name, cwd=tmp_path)


SERVERS = Path(__file__).parents[2] / "scenarios" / "mcp_servers.py"
GOOD = shlex.join([sys.executable, str(SERVERS), "good"])
"""A server's address."""


@pytest.fixture
def model(endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriterModel:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_BASE", f"{endpoint.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("GAVEL_PRICES", '{"openai/writer": [1, 2]}')
    return WriterModel(endpoint)


def new(*arguments: str) -> Result:
    small = [] if "--tasks" in arguments else ["--tasks", "4", "--held-out", "2", "--attempts", "1"]
    return CliRunner().invoke(app, ["scenario", "desk", "--model", "openai/writer", *small, *arguments])


def test_a_drafted_scenario_has_its_tasks_and_the_tools_of_the_server(model: WriterModel, tmp_path: Path):
    made = new("--mcp", GOOD)
    assert made.exit_code == 0, made.output
    assert "4 tasks to train on, 2 held out." in made.output
    assert "Next: gavel check desk/scenario.py" in made.output
    scenario = gavel.find_scenario("desk/scenario.py")
    assert (len(scenario.tasks("train")), len(scenario.tasks("held_out"))) == (4, 2)
    task = scenario.tasks()[0]
    assert task.criteria[0].name == "goal"
    assert task.data["solved"] == 1.0
    episode = asyncio.run(gavel.rollout(talker(), scenario, task))
    assert episode.status == "finished", episode.status_reason
    assert "add" in {tool["function"]["name"] for tool in episode.tools or ()}
    assert sorted(path.name for path in (tmp_path / "desk").iterdir() if path.is_file()) == [
        "drafts.json", "scenario.py", "tasks.json", "test_scenario.py",
    ]  # fmt: skip


def test_a_draft_whose_budget_is_spent_goes_on_from_there(model: WriterModel):
    assert "budget is used up" in str(new("--mcp", GOOD, "--max-cost-usd", "0.01").exception)
    assert Path("desk/drafting.json").exists()
    written = list(model.written)
    done = new("--mcp", GOOD)
    assert done.exit_code == 0, done.output
    assert model.written == written
    assert not Path("desk/drafting.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "is for a scenario that a model drafts"),
        (["--mcp", ""], "address of an MCP server is empty"),
        (["--mcp", "no-such-program-here"], "cannot be used"),
        (["--mcp", GOOD.removesuffix("good") + "exits"], "no database at shop.db"),
        (["--mcp", GOOD, "--model", "stand-in"], "cannot draft tasks"),
        (["--mcp", GOOD, "--model", "openai/unpriced", "--max-cost", "1"], "price of openai/unpriced is not known"),
        (["--mcp", GOOD, "--mcp-env", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE"),
        (["--mcp", GOOD, "--mcp-env", "KEY=sk-secret"], "--mcp-env"),
    ],
)
def test_what_cannot_begin_says_why_and_leaves_no_folder(model: WriterModel, arguments: list[str], message: str):
    error = new(*arguments).exception
    assert isinstance(error, GavelError)
    said = str(error)
    assert message in said
    assert "sk-secret" not in said
    assert not Path("desk").exists()
    assert not model.requests


def test_a_key_reaches_the_server_and_no_file(model: WriterModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("ORDERS_API_KEY", "sk-secret")
    model.tool = "environment"
    made = new("--mcp", GOOD, "--mcp-env", "ORDERS_API_KEY")
    assert made.exit_code == 0, made.output
    answers = [request["messages"][-1]["content"] for request in model.requests if request.get("tools")]
    assert any("ORDERS_API_KEY" in answer for answer in answers)
    written = [path.read_text() for path in (tmp_path / "desk").iterdir() if path.is_file()]
    assert not any("sk-secret" in text for text in written)
    (server,) = gavel.find_scenario("desk/scenario.py").servers
    assert server.env == {"ORDERS_API_KEY": "sk-secret"}
