"""Of a right and a wrong attempt at what a page shows, the page's judge without a key prefers the right one: always.

Scenarios and rubrics are taken from the pages, the examples, the scaffold and the library themselves.
"""

import asyncio
import importlib
import itertools
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import gavel
from gavel.cli.new import app as new
from gavel.judge.offline.stand_in import check_readable
from gavel.judge.rubric import Rubric
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from gavel.scenarios.scenario import shipped_scenarios
from gavel.scenarios.scripted_agent import played_by, players_of
from tests.gavel.page_walker import steps

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
Plan = Sequence[tuple[str, Mapping[str, Any]] | str]
"""Tool calls, and words that end the attempt."""


def playing(plan: Plan) -> FunctionModel:
    async def turn(request: ChatRequest) -> dict[str, Any]:
        done = sum(message["role"] == "assistant" for message in request.messages)
        step = plan[done] if done < len(plan) else ""
        if isinstance(step, str):
            return {"content": step}
        function = {"name": step[0], "arguments": json.dumps(step[1])}
        return {"tool_calls": [{"id": f"c{done}", "type": "function", "function": function}]}

    return FunctionModel("script", turn)


async def episode(scenario: gavel.Scenario, task: gavel.Task, plan: Plan) -> gavel.Trajectory:
    return await gavel.rollout(playing(plan), scenario, task)


async def prefers_right(rubric: str | None, right: Sequence[gavel.Trajectory], wrong: Sequence[gavel.Trajectory]):
    """In each pair, and in one group of all of them."""
    judge = gavel.Judge("stand-in", rubric=rubric, orders=1)
    pairs = [[*pair] for pair in itertools.product(right, wrong)]
    for good, bad in [(await judge.score(gavel.TrajectoryGroup(pair))).trajectories for pair in pairs]:
        assert good.judgement is not None
        assert bad.judgement is not None
        told = f"{good.judgement.explanation or good.judgement.reason}\n{bad.judgement.explanation}"
        assert good.reward is not None, told
        assert bad.reward is not None, told
        assert good.reward > bad.reward, told


def module_of(tmp_path: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module(name)
    monkeypatch.delitem(sys.modules, name)
    return module


def block(page: Path, title: str) -> str:
    return next(step.text for step in steps(page) if step.title == title)


def source(page: Path) -> str:
    return page.read_text()


def rubrics(text: str) -> list[str]:
    return [eval(found) for found in re.findall(r'^RUBRIC = ("""(?:.|\n)*?"""|".*")$', text, re.MULTILINE)]


# --- scenarios ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [ROOT / "README.md", TUTORIALS / "own-scenario.md", ROOT / "examples" / "returns.py"])
async def test_returns(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = [step.text for step in steps(page)] if page.suffix == ".md" else [source(page)]
    text = next(text for text in shown if "returns = gavel.Scenario(" in text)
    scenario = module_of(tmp_path, "returns_of_a_page", text, monkeypatch).returns
    tasks = {int(re.findall(r"\d+", str(task.user))[0]): task for task in scenario.tasks()}
    check_readable(Rubric.of(scenario.rubric), [task.truth for task in tasks.values()], declared=scenario.tool_names)
    for number in itertools.islice(tasks, 0, None, 9):
        this, other = {"order_id": str(number)}, {"order_id": str(number + 25)}
        look, pay = ("look_up_order", this), ("refund", this)
        paid, kept = "Your refund is on its way.", "It was bought more than 30 days ago, so I cannot pay it back."
        due = number % 50 <= 30
        right: list[Plan] = [[look, pay, paid]] if due else [[look, kept]]
        wrong: list[Plan] = [
            [look, kept] if due else [look, pay, paid],
            [pay, paid],
            [pay, look, paid],
            [paid],
            [kept],
            [""],
            [("look_up_order", other), ("refund", other), paid],
            [("look_up_order", other), kept],
            [look, ("refund", other), paid],
            [look, ("refund", {"order_id": "1"}), paid],
            [look, paid],
            [look],
        ]
        played = [[await episode(scenario, tasks[number], plan) for plan in plans] for plans in (right, wrong)]
        await prefers_right(scenario.rubric, *played)


async def test_the_warehouse_of_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = block(TUTORIALS / "stateful-world.md", "warehouse.py")
    scenario = module_of(tmp_path, "warehouse_of_a_page", text, monkeypatch).scenario
    for task in scenario.tasks():
        item, count = task.data["item"], task.data["count"]
        enough = count <= task.data["stock"][item]
        looked, sent = ("count", {"item": item, "wanted": count}), ("send", {"item": item, "count": count})
        more = ("send", {"item": item, "count": max(1, task.data["stock"][item])})
        right: list[Plan] = [[looked, sent, "Done."] if enough else [looked, "There are not enough."]]
        wrong: list[Plan] = [[looked, "No."] if enough else [looked, more, "Sent what we had."], ["Done."]]
        wrong += [[sent, "Done."], [looked, sent, sent, ""], [""]]
        played = [[await episode(scenario, task, plan) for plan in plans] for plans in (right, wrong)]
        good = [each for each in played[0] if each.metrics["success"]]
        await prefers_right(scenario.rubric, good, [each for each in played[1] if not each.metrics["success"]])


async def test_the_scaffold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(new, ["scenario", "my_shop"]).exit_code == 0
    scenario = gavel.find_scenario(str(tmp_path / "my_shop" / "scenario.py"))
    check_readable(Rubric.of(scenario.rubric), [task.truth for task in scenario.tasks()], declared=scenario.tool_names)
    for task in scenario.tasks():
        item, other = task.data["item"], "tent" if task.data["item"] != "tent" else "lamp"
        price = str(task.reference)
        look, take = ("look_up_price", {"item": item}), ("add_to_basket", {"item": item})
        right: list[Plan] = [[look, take, f"It costs {price}."]]
        wrong: list[Plan] = [
            [take, f"It costs {price}."],
            [look, take, f"It costs 1{price}."],
            [look, take, take, f"It costs {price}."],
            [look, ("add_to_basket", {"item": other}), f"It costs {price}."],
            [look, f"It costs {price}."],
            ["Good choice!"],
        ]
        await prefers_right(
            scenario.rubric, *[[await episode(scenario, task, plan) for plan in plans] for plans in (right, wrong)]
        )


@pytest.mark.parametrize("name", [name for name in shipped_scenarios() if players_of(name)])
async def test_a_shipped_scenario(name: str) -> None:
    """Where the stand-in reads all of the rubric, it prefers an expert who succeeds to anyone who fails; where not, it
    never prefers one who fails, and says what it does not read."""
    scenario, players = gavel.find_scenario(name), players_of(name)
    tasks = scenario.sample("held_out", 12, seed=7)
    reads_all = True
    try:
        check_readable(Rubric.of(scenario.rubric), [task.truth for task in tasks], declared=scenario.tool_names)
    except gavel.JudgeError:
        reads_all = False
    assert reads_all or name not in ("returns_desk", "flattered_desk", "booking_desk"), "pages train it by the stand-in"
    judge = gavel.Judge("stand-in", rubric=scenario.rubric, orders=1)
    for task in tasks:
        episodes = await asyncio.gather(
            *(gavel.rollout(played_by(player, task), scenario, task, seed=5) for player in players.values())
        )
        judged = await judge.score(gavel.TrajectoryGroup(episodes))
        assert judged.judgement is not None
        told = any("not read: " in warning for warning in judged.judgement.warnings)
        scored = [each for each in judged if each.reward is not None]
        assert reads_all != told or not scored
        assert scenario.success is not None
        expert, *others = judged.trajectories
        if expert.reward is None or not scenario.success(expert):
            continue
        for other in others:
            if not scenario.success(other):
                assert other.reward is not None
                assert other.reward < expert.reward or (not reads_all and other.reward == expert.reward), task.id


# --- rubrics of pages whose attempts are not a scenario's -----------------------------------------------------------


def attempt(user: str, plan: Plan, result: str = "a lamp, 45 EUR, arrives on Monday") -> gavel.Trajectory:
    messages: list[Any] = [{"role": "user", "content": user}]
    for number, step in enumerate(plan):
        if isinstance(step, str):
            messages.append({"role": "assistant", "content": step})
            continue
        function = {"name": step[0], "arguments": json.dumps(step[1])}
        call = {"id": f"c{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": result})
    return gavel.Trajectory(messages_and_choices=messages)


LOOK, OTHER, PAY = (
    (name, {"order_id": order})
    for name, order in (("look_up_order", "1001"), ("look_up_order", "1002"), ("refund", "1001"))
)
ANSWERS: tuple[list[Plan], list[Plan]] = [["It is on its way."]], [[""], []]
LOOKED_UP: tuple[list[Plan], list[Plan]] = [[LOOK, "On Monday."]], [["On Monday."], [OTHER, "On Monday."], [LOOK, ""]]
PAID: tuple[list[Plan], list[Plan]] = [[LOOK, PAY, "Paid."]], [[PAY, "Paid."], [PAY, LOOK, "Paid."], [LOOK, PAY, ""]]


def of_pages() -> Iterator[tuple[str, str, tuple[list[Plan], list[Plan]]]]:
    for page, plans in {"only_judge": PAID, "own_rollout": LOOKED_UP}.items():
        (rubric,) = rubrics((ROOT / "examples" / f"{page}.py").read_text())
        assert rubric in rubrics(re.sub(r"\\\n", "", (ROOT / "README.md").read_text()))
        yield page, rubric, plans
    yield "rubrics", *rubrics((ROOT / "docs" / "how-to" / "rubrics.md").read_text()), PAID
    yield "agent-framework", *rubrics((TUTORIALS / "agent-framework.md").read_text()), LOOKED_UP
    yield "art", *rubrics((ROOT / "docs" / "art.md").read_text()), ANSWERS
    logs = TUTORIALS / "judge-your-logs.md"
    yield "judge-your-logs", *rubrics(logs.read_text()), ANSWERS
    yield "rubric.txt", block(logs, "rubric.txt"), (LOOKED_UP[0], [["On Monday."], [LOOK, ""]])
    demonstrations = (TUTORIALS / "demonstrations.md").read_text()
    for found in re.findall(r"(?:rubric=|rubric = |desk = |--rubric )[\"'](- .+?)[\"']", demonstrations):
        yield "demonstrations", found, ANSWERS


@pytest.mark.parametrize(("page", "rubric", "plans"), list(of_pages()))
async def test_a_rubric_of_a_page(page: str, rubric: str, plans: tuple[list[Plan], list[Plan]]) -> None:
    check_readable(Rubric.of(rubric), [])
    user = "I want my money back for order 1001."
    await prefers_right(rubric, *[[attempt(user, plan) for plan in part] for part in plans])
