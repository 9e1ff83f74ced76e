"""`gavel evaluate` and `gavel.evaluate`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import gavel
from gavel.base.errors import GavelError
from gavel.cli.evaluate import evaluate
from gavel.judge.judge import Judge
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.trainer.loop.evaluation import EvaluationError
from gavel.trainer.run_config import RunConfig
from tests.endpoint import Endpoint, fails, says, verdict
from tests.forked import gavel as run_gavel
from tests.forked import succeed
from tests.gavel.cli.test_app import mistake
from tests.judge.groups import broken

BASE = "base:embedded/returns-desk"
SMALL = ("returns_desk", "--tasks", "3", "--max-tokens", "32")


@pytest.mark.slow
def test_bases_checkpoints_and_api_models_are_columns_of_one_table(tmp_path: Path, endpoint: Endpoint) -> None:
    train = "train returns_desk --steps 1 --tasks 2 --group-size 2 --evaluation-tasks 2 --max-tokens 32"
    succeed(*train.split(), "--set", "loop.final_tasks=2", cwd=tmp_path)
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
    endpoint.script = [lambda request: says("I cannot help.", usage)]
    api = {
        "OPENAI_API_KEY": "k",
        "OPENAI_API_BASE": f"{endpoint.url}/v1",
        "GAVEL_PRICES": '{"openai/gpt-5-mini": [10, 10]}',
    }
    models = f"{BASE},returns-desk@1,returns_desk/returns-desk@0,openai/gpt-5-mini"
    told = succeed("evaluate", *SMALL, "--models", models, cwd=tmp_path, COLUMNS="80", NO_COLOR="1", **api)
    lines = told.stdout.partition("(95 % intervals)\n")[2].splitlines()
    table = [line for line in lines if line.startswith(("base:", "returns_desk/", "openai/"))]
    assert len(table) == 4
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
    again = run_gavel("evaluate", *SMALL, "--models", models, cwd=tmp_path, COLUMNS="80", **api)
    assert len(endpoint.requests) == asked
    assert "episodes" not in again.stdout
    assert "judging" not in again.stdout
    figures = [re.findall(r"\d*\.\d\d", told.stdout[told.stdout.index("success") :]) for told in (told, again)]
    assert figures[0] == figures[1]


@pytest.mark.slow
def test_several_scenarios_and_samples_of_one_base(tmp_path: Path) -> None:
    sizes = ("--tasks", "2", "--samples", "2", "--max-tokens", "16", "--models", BASE)
    told = succeed("evaluate", "returns_desk", "one_sentence", *sizes, cwd=tmp_path)
    assert "pass@2" in told.stdout
    heading = [line.split() for line in told.stdout.splitlines() if "USD" in line and "one_sentence" in line]
    assert heading == [["returns_desk", "one_sentence", "mean", "USD", "an", "episode"]]
    page = tmp_path / "runs" / "evaluations" / "returns_desk+one_sentence" / "report.html"
    assert 'href="../returns_desk/report.html"' in page.read_text()
    again = run_gavel("evaluate", "returns_desk", "nowhere.py", *sizes, "--out", "here", cwd=tmp_path)
    assert "episodes" not in again.stdout  # they are kept
    assert again.returncode == 1
    assert "1 scenario of 2 could not be evaluated" in again.stderr
    assert "nowhere.py was not evaluated: there is no file" in again.stdout
    assert (tmp_path / "here" / "returns_desk" / "evaluation.json").is_file()


def test_a_dry_run_tells_what_is_missing_and_its_cost_and_leaves_nothing_behind(tmp_path: Path) -> None:
    models = f"{BASE},openai/gpt-5-mini"
    command = ("evaluate", *SMALL, "--models", models, "--samples", "2", "--judge", "openai/gpt-5-mini", "--dry-run")
    told = succeed(*command, cwd=tmp_path, OPENAI_API_KEY="none")
    assert f"returns_desk, {BASE}: 6 episodes to sample" in told.stdout
    assert f"{6 * 6} calls, about" in told.stdout  # of the model: episodes, turns
    assert "3 groups of 4" in told.stdout
    assert f"{3 * 2} calls, about" in told.stdout  # of the judge: tasks, orders
    assert not list(tmp_path.iterdir())
    assert "OPENAI_API_KEY" in mistake(*command, cwd=tmp_path)


TASKS = [Task(user=f"What is {number} + 1?", data={"answer": number + 1}) for number in range(12)]


def is_right(trajectory: gavel.Trajectory) -> bool:
    answer = Task.of(trajectory.metadata).data["answer"]
    return str(trajectory.messages()[-1]["content"]) == str(answer)


def sums(**changed: Any) -> Scenario:
    return Scenario(**({"name": "sums", "tasks": TASKS, "held_out": 0.5, "success": is_right} | changed))


class Counting:
    """A model that is right in its first `right` of every six tasks, and counts its turns."""

    def __init__(self, name: str, right: int = 6) -> None:
        self.turns, self.right = 0, right
        self.model = FunctionModel(name, self.reply)

    async def reply(self, request: ChatRequest) -> dict[str, Any]:
        self.turns += 1
        number = int(str(request.messages[-1]["content"]).split()[2])
        return {"content": str(number + 1 if number % 6 < self.right else "no idea")}


class Ranking:
    """A judge that scores a right answer 1 and any other 0, and counts its calls."""

    calls = 0

    async def __call__(self, messages: list[dict[str, Any]], schema: dict[str, Any]) -> str:
        self.calls += 1
        answer = verdict({"messages": messages}, lambda attempt, _: float("no idea" not in attempt))
        return answer.body["choices"][0]["message"]["content"]


async def test_models_are_compared_and_what_is_kept_is_neither_sampled_nor_judged_again(tmp_path: Path) -> None:
    good, bad, ranking = Counting("good"), Counting("bad", 3), Ranking()
    judge = Judge(ranking, orders=1, alone="scored")
    for _ in range(2):
        await evaluate(sums(), models=[good.model], judge=judge, tasks=4)
        assert (good.turns, ranking.calls) == (4, 4)
    table = await evaluate(sums(), models=[good.model, bad.model], judge=judge, tasks=6)
    assert (good.turns, bad.turns) == (6, 6)
    assert table["good"].episodes == 6
    assert [row.success.value for row in table.rows] == pytest.approx([1, 2 / 6])
    assert [row.wins.value for row in table.rows] == pytest.approx([5 / 6, 1 / 6])  # a tie is half
    assert table["good"].success.low is not None
    assert 0.5 < table["good"].success.low < 1  # six of six is no proof of always
    folder = tmp_path / "runs" / "evaluations" / "sums"
    assert (folder / "report.html").is_file()
    stored = json.loads((folder / "evaluation.json").read_text())
    assert [row["name"] for row in stored["models"]] == ["good", "bad"]
    await evaluate(sums(system="Be brief."), models=[good.model], judge=judge, tasks=4)
    assert good.turns == 10  # it is shown something else


def settings(**loop: int) -> RunConfig:
    return RunConfig.model_validate({"scenario": "returns_desk", "loop": loop})


async def test_an_evaluation_that_is_killed_goes_on_with_what_is_missing() -> None:
    """The process dies in the third episode, after two were kept."""
    model, single = Counting("good"), settings(concurrency=1)

    class Killed(BaseException):
        pass

    async def dies(request: ChatRequest) -> dict[str, Any]:
        if model.turns == 2:
            raise Killed
        return await model.reply(request)

    with pytest.raises(BaseExceptionGroup):
        await evaluate(sums(), models=[FunctionModel("good", dies)], tasks=6, settings=single)
    assert model.turns == 2
    table = await evaluate(sums(), models=[model.model], tasks=6, settings=single)
    assert model.turns == 6
    assert table["good"].episodes == 6


async def test_a_model_that_cannot_be_reached_is_an_error_after_a_few_tries_and_what_was_paid_for_is_kept(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_API_BASE", f"{endpoint.url}/v1")
    monkeypatch.setenv("GAVEL_PRICES", '{"openai/gpt-5-mini": [100, 100]}')
    endpoint.script = [fails(401, "wrong key")]
    many = [Task(user=f"What is {number} + 1?", data={"answer": number + 1}) for number in range(200)]
    with pytest.raises(EvaluationError, match="wrong key") as refused:
        await evaluate(sums(tasks=many), models=["openai/gpt-5-mini"], tasks=100, settings=settings(concurrency=2))
    assert "OPENAI_API_KEY" in refused.value.message
    assert "judge" not in str(refused.value)  # it is the key of a compared model
    assert (asked := len(endpoint.requests)) < 20
    usage = {"prompt_tokens": 1000, "completion_tokens": 1000, "total_tokens": 2000}
    endpoint.script = [lambda request: says("4", usage)]
    small = settings(concurrency=1, max_tokens=1000)
    with pytest.raises(GavelError, match="budget") as stopped:
        await evaluate(sums(), models=["openai/gpt-5-mini"], tasks=6, max_cost=0.5, settings=small)
    assert "--max-cost" in stopped.value.remedy
    assert 0 < len(endpoint.requests) - asked < 6
    await evaluate(sums(), models=["openai/gpt-5-mini"], tasks=6, settings=small)
    assert len(endpoint.requests) - asked == 6


async def test_what_a_judge_cannot_score_is_unscored_and_not_kept(tmp_path: Path) -> None:
    judge = Judge(broken, orders=1, alone="scored")
    row = (await evaluate(sums(), models=[Counting("good").model], judge=judge, tasks=3))["good"]
    assert row.score.value is None
    assert sum(row.unscored.values()) == 3
    assert not list((tmp_path / "runs" / "evaluations" / "sums" / "judged").glob("*"))
