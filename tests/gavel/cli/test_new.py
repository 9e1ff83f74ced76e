"""`gavel new scenario`, by hand and for the tools of a server; `gavel check`: scenarios as authors first try them."""

import asyncio
import re
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
from tests.endpoint import Endpoint, fails, says
from tests.forked import gavel as run_gavel
from tests.forked import succeed
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


SERVERS = Path(__file__).parents[2] / "scenarios" / "mcp_servers.py"
GOOD = shlex.join([sys.executable, str(SERVERS), "good"])
"""A server's address."""


@pytest.fixture
def model(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> WriterModel:
    monkeypatch.setenv("GAVEL_PRICES", '{"openai/writer": [1, 2]}')
    return WriterModel(endpoint, monkeypatch)


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


RETURNS = str(Path(__file__).parents[3] / "examples" / "returns.py")


@pytest.mark.slow
def test_a_scenario_is_played_without_a_model(tmp_path: Path):
    checked = succeed("check", RETURNS, cwd=tmp_path)
    for shown in ("look_up_order(", "the judge is asked", "trajectory_id", "episode 1: ", "16 groups of 8 episodes"):
        assert shown in checked.stdout
    assert "judge is the stand-in" in checked.stderr
    (tokens,) = re.findall(r"as long as these \(([\d,]+) tokens\)", checked.stdout)
    planning = ("train", RETURNS, "--dry-run")
    planned = succeed(*planning, "--model", "embedded/returns-desk", cwd=tmp_path)
    assert f"played by two scripts ({tokens} tokens each)" in planned.stdout
    refused = run_gavel(*planning, cwd=tmp_path)
    assert "Name a base model" in refused.stderr  # as the run would be
    assert (refused.returncode, refused.stdout) == (1, "")


@pytest.mark.slow
def test_a_shipped_scenario_s_expert_and_fool_are_told_apart(tmp_path: Path):
    checked = succeed("check", "maze", "--agent", "players", "--no-prompt", cwd=tmp_path)
    assert "own expert and fool" in checked.stdout
    assert re.findall("· .*success ([01])", checked.stdout) == ["1", "0"]


@pytest.mark.slow
def test_what_the_stand_in_does_not_read_is_printed_once(tmp_path: Path):
    rubric = ("--judge", "stand-in", "--rubric", "- calls refund\n- is polite", "--no-prompt")
    checked = succeed("check", "returns_desk", *rubric, cwd=tmp_path)
    assert checked.stdout.count("is polite") == 1
    assert "the judge is asked" not in checked.stdout


@pytest.mark.slow
def test_a_world_that_episodes_share_is_told(tmp_path: Path):
    (tmp_path / "shop.py").write_text(
        "import gavel\nSTOCK = {'lamp': 3}\n"
        "def buy(item: str) -> int:\n    'Buy an item.'\n    STOCK[item] = 9 - 1\n    return STOCK[item]\n"
        "shop = gavel.Scenario(name='shop', tools=[buy], tasks=[gavel.Task(user='A lamp, please.')], held_out=0)\n"
    )
    checked = run_gavel("check", "shop.py", "--judge", "constant", cwd=tmp_path, PYTHONDONTWRITEBYTECODE="1")
    assert "changed STOCK of shop.py, which all episodes share" in " ".join(checked.stdout.split())
    assert "teaches nothing" in checked.stdout


@pytest.mark.slow
def test_a_model_plays_with_its_cost_and_one_that_fails_fails_the_check(tmp_path: Path, endpoint: Endpoint):
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    endpoint.script = [lambda request: says("I cannot help with that.", usage)]
    command = ("check", "returns_desk", "--judge", "constant", "--agent")
    openai = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": f"{endpoint.url}/v1"}
    checked = run_gavel(*command, "openai/gpt-4o-mini", cwd=tmp_path, **openai)
    assert "assistant: I cannot help with that." in checked.stdout, checked.stderr
    assert "These two episodes cost 0.0000" in checked.stdout
    assert endpoint.requests[0]["tools"]
    endpoint.script = [fails(400)]
    failed = run_gavel(*command, "openai/gpt-4o-mini", cwd=tmp_path, **openai)
    assert failed.returncode == 1
    assert "failed: " in failed.stdout
    local = run_gavel(*command, "tool-caller", cwd=tmp_path)
    assert "gavel evaluate --models base:tool-caller" in " ".join(local.stderr.split())
