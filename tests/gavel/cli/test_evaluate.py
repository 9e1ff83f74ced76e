"""`gavel evaluate` from the command line: columns, resuming, what it refuses."""

import json
import re
from pathlib import Path

import pytest

from tests.endpoint import Endpoint, says
from tests.forked import gavel
from tests.gavel.cli.test_cli import mistake

BASE = "base:embedded/returns-desk"
SMALL = ("returns_desk", "--tasks", "3", "--max-tokens", "32")


@pytest.mark.slow
def test_bases_checkpoints_and_api_models_are_columns_of_one_table(tmp_path: Path, endpoint: Endpoint) -> None:
    train = "train returns_desk --steps 1 --tasks 2 --group-size 2 --evaluation-tasks 2 --max-tokens 32"
    trained = gavel(*train.split(), "--set", "loop.final_tasks=2", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
    endpoint.script = [lambda request: says("I cannot help.", usage)]
    api = {
        "OPENAI_API_KEY": "k",
        "OPENAI_API_BASE": f"{endpoint.url}/v1",
        "GAVEL_PRICES": '{"openai/gpt-5-mini": [10, 10]}',
    }
    models = f"{BASE},returns-desk@1,returns_desk/returns-desk@0,openai/gpt-5-mini"
    told = gavel("evaluate", *SMALL, "--models", models, cwd=tmp_path, COLUMNS="80", NO_COLOR="1", **api)
    assert told.returncode == 0, told.stderr
    table = [line for line in told.stdout.splitlines() if line.startswith(("base:", "returns_desk/", "openai/"))]
    assert table
    assert max(map(len, table)) <= 80
    assert "\x1b" not in told.stdout
    assert "3/3 episodes" in told.stdout
    assert "judging: 3/3 tasks" in told.stdout
    found = json.loads((tmp_path / "runs/evaluations/returns_desk/evaluation.json").read_text())
    names = [BASE, "returns_desk/returns-desk@1", "returns_desk/returns-desk@0", "openai/gpt-5-mini"]
    assert [row["name"] for row in found["models"]] == names
    base, _, start, paid = found["models"]
    assert base["success"] == start["success"]  # the run began with that base
    assert paid["cost_usd"] == pytest.approx(3 * 0.011)
    asked = len(endpoint.requests)
    again = gavel("evaluate", *SMALL, "--models", models, cwd=tmp_path, COLUMNS="80", **api)
    assert len(endpoint.requests) == asked
    assert "episodes" not in again.stdout
    assert "judging" not in again.stdout
    figures = [re.findall(r"\d*\.\d\d", told.stdout[told.stdout.index("success") :]) for told in (told, again)]
    assert figures[0] == figures[1]


@pytest.mark.slow
def test_several_scenarios_and_samples_of_one_base(tmp_path: Path) -> None:
    told = gavel(
        *("evaluate", "returns_desk", "one_sentence", "--tasks", "2", "--samples", "2", "--max-tokens", "16"),
        *("--models", BASE),
        cwd=tmp_path,
    )
    assert told.returncode == 0, told.stderr
    assert "pass@2" in told.stdout
    heading = [line.split() for line in told.stdout.splitlines() if "USD" in line and "one_sentence" in line]
    assert heading == [["returns_desk", "one_sentence", "mean", "USD", "episode"]]
    evaluations = tmp_path / "runs" / "evaluations"
    assert {path.name for path in evaluations.iterdir()} == {
        "returns_desk",
        "one_sentence",
        "returns_desk+one_sentence",
    }
    page = (evaluations / "returns_desk+one_sentence" / "report.html").read_text()
    assert 'href="../returns_desk/report.html"' in page
    again = gavel(
        *("evaluate", "returns_desk", "nowhere.py", "--tasks", "2", "--samples", "2", "--max-tokens", "16"),
        *("--models", BASE, "--out", "here"),
        cwd=tmp_path,
    )
    assert "episodes" not in again.stdout  # they are kept
    assert again.returncode == 1
    assert "1 scenario of 2 could not be evaluated" in again.stderr
    assert "nowhere.py was not evaluated: there is no file" in again.stdout
    assert "href=&#34;" not in (tmp_path / "here" / "report.html").read_text()
    assert (tmp_path / "here" / "returns_desk" / "evaluation.json").is_file()


def test_what_is_no_model_is_told_before_anything_is_sampled(tmp_path: Path) -> None:
    assert "typo is no run" in mistake("evaluate", *SMALL, "--models", f"{BASE},typo", cwd=tmp_path)
    assert "named twice" in mistake("evaluate", *SMALL, "--models", f"{BASE},{BASE}", cwd=tmp_path)
    assert "--backend-url" in mistake(
        "evaluate", *SMALL, "--models", BASE, "--backend-url", "http://127.0.0.1:1", cwd=tmp_path
    )


def test_the_remedy_for_a_missing_key_names_the_option_of_the_model(tmp_path: Path) -> None:
    told = mistake("evaluate", *SMALL, "--models", "openai/gpt-5-mini", cwd=tmp_path)
    assert "OPENAI_API_KEY" in told
    assert "--models " in told
    assert "--judge" not in told


def test_a_dry_run_tells_what_is_missing_and_its_cost_and_leaves_nothing_behind(tmp_path: Path) -> None:
    models = f"{BASE},openai/gpt-5-mini"
    command = ("evaluate", *SMALL, "--models", models, "--samples", "2", "--judge", "openai/gpt-5-mini", "--dry-run")
    told = gavel(*command, cwd=tmp_path, OPENAI_API_KEY="none")
    assert told.returncode == 0, told.stderr
    assert f"returns_desk, {BASE}: 6 episodes to sample" in told.stdout
    assert f"{6 * 6} calls, about" in told.stdout  # of the model: episodes, turns
    assert "3 groups of 4" in told.stdout
    assert f"{3 * 2} calls, about" in told.stdout  # of the judge: tasks, orders
    assert not list(tmp_path.iterdir())
    assert "OPENAI_API_KEY" in mistake(*command, cwd=tmp_path)
    (tmp_path / "empty").mkdir()
    assert "empty" in mistake("evaluate", *SMALL, "--models", "base:empty", "--dry-run", cwd=tmp_path)
