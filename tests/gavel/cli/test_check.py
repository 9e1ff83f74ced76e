"""`gavel check`: scenarios as their authors first try them."""

import re
from pathlib import Path

import pytest

from tests.endpoint import Endpoint, fails, says
from tests.forked import gavel, succeed

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_a_scenario_is_played_without_a_model(tmp_path: Path):
    checked = succeed("check", str(EXAMPLES / "returns.py"), cwd=tmp_path)
    for shown in ("look_up_order(", "the judge is asked", "trajectory_id", "episode 1: ", "16 groups of 8 episodes"):
        assert shown in checked.stdout
    assert "judge is the stand-in" in checked.stderr
    (tokens,) = re.findall(r"as long as these \(([\d,]+) tokens\)", checked.stdout)
    planning = ("train", str(EXAMPLES / "returns.py"), "--dry-run")
    planned = succeed(*planning, "--model", "embedded/returns-desk", cwd=tmp_path)
    assert f"played by two scripts ({tokens} tokens each)" in planned.stdout
    refused = gavel(*planning, cwd=tmp_path)
    assert "Name a base model" in refused.stderr  # as the run would be
    assert (refused.returncode, refused.stdout) == (1, "")


def test_a_shipped_scenario_s_expert_and_fool_are_told_apart(tmp_path: Path):
    checked = succeed("check", "maze", "--agent", "players", "--no-prompt", cwd=tmp_path)
    assert "own expert and fool" in checked.stdout
    assert re.findall("· .*success ([01])", checked.stdout) == ["1", "0"]


def test_what_the_stand_in_does_not_read_is_printed_once(tmp_path: Path):
    rubric = ("--judge", "stand-in", "--rubric", "- calls refund\n- is polite", "--no-prompt")
    checked = succeed("check", "returns_desk", *rubric, cwd=tmp_path)
    assert checked.stdout.count("is polite") == 1
    assert "the judge is asked" not in checked.stdout


def test_a_world_that_episodes_share_is_told(tmp_path: Path):
    (tmp_path / "shop.py").write_text(
        "import gavel\nSTOCK = {'lamp': 3}\n"
        "def buy(item: str) -> int:\n    'Buy an item.'\n    STOCK[item] = 9 - 1\n    return STOCK[item]\n"
        "shop = gavel.Scenario(name='shop', tools=[buy], tasks=[gavel.Task(user='A lamp, please.')], held_out=0)\n"
    )
    checked = gavel("check", "shop.py", "--judge", "constant", cwd=tmp_path, PYTHONDONTWRITEBYTECODE="1")
    assert "changed STOCK of shop.py, which all episodes share" in " ".join(checked.stdout.split())
    assert "teaches nothing" in checked.stdout


def test_a_model_plays_with_its_cost_and_one_that_fails_fails_the_check(tmp_path: Path, endpoint: Endpoint):
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    endpoint.script = [lambda request: says("I cannot help with that.", usage)]
    command = ("check", "returns_desk", "--judge", "constant", "--agent")
    openai = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": f"{endpoint.url}/v1"}
    checked = gavel(*command, "openai/gpt-4o-mini", cwd=tmp_path, **openai)
    assert "assistant: I cannot help with that." in checked.stdout, checked.stderr
    assert "These two episodes cost 0.0000" in checked.stdout
    assert endpoint.requests[0]["tools"]
    endpoint.script = [fails(400)]
    failed = gavel(*command, "openai/gpt-4o-mini", cwd=tmp_path, **openai)
    assert failed.returncode == 1
    assert "failed: " in failed.stdout
    local = gavel(*command, "tool-caller", cwd=tmp_path)
    assert "gavel evaluate --models base:tool-caller" in " ".join(local.stderr.split())
