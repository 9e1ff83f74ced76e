"""Of a right and a wrong attempt at what a page shows, the page's judge without a key prefers the right one: always.

Scenarios and rubrics are taken from the pages, the examples, the scaffold and the library themselves.
"""

import asyncio
import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import gavel
from gavel.judge.offline.stand_in import check_readable
from gavel.judge.rubric import Rubric
from gavel.scenarios.scenario import shipped_scenarios
from gavel.scenarios.scripted_agent import played_by, players_of
from tests.gavel.page_walker import steps
from tests.scenarios.scripts import Step, scripted

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"


def texts(page: Path) -> list[str]:
    """The blocks of a page, or a program."""
    return [step.text for step in steps(page)] or [page.read_text()]


@pytest.mark.parametrize("page", [ROOT / "README.md", TUTORIALS / "own-scenario.md", ROOT / "examples" / "returns.py"])
async def test_returns(page: Path, tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(next(text for text in texts(page) if "returns = gavel.Scenario(" in text))
    scenario = gavel.find_scenario(f"{tmp_path}/page.py:returns")
    tasks = {int(re.findall(r"\d+", str(task.user))[0]): task for task in scenario.tasks()}
    check_readable(Rubric.of(scenario.rubric), [task.truth for task in tasks.values()], declared=scenario.tool_names)
    judge = gavel.Judge("stand-in", rubric=scenario.rubric, orders=1)
    for number in itertools.islice(tasks, 0, None, 9):
        this, other = {"order_id": str(number)}, {"order_id": str(number + 25)}
        look, pay = ("look_up_order", this), ("refund", this)
        paid, kept = "Your refund is on its way.", "It was bought more than 30 days ago, so I cannot pay it back."
        due = number % 61 <= 30
        right: list[Step] = [look, pay, paid] if due else [look, kept]
        wrong: list[list[Step]] = [
            [look, kept] if due else [look, pay, paid],
            [pay, paid],
            [pay, look, paid],
            [kept],
            [""],
            [("look_up_order", other), ("refund", other), paid],
            [look, ("refund", other), paid],
            [look, paid],
            [look],
        ]
        good, *others = [await gavel.rollout(scripted(*plan, ""), scenario, tasks[number]) for plan in [right, *wrong]]
        for bad in others:
            judged = await judge.score(gavel.TrajectoryGroup([good, bad]))
            high, low = (each.reward for each in judged)
            assert (high or 0.0) > (math.inf if low is None else low), [each.judgement for each in judged]


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


def of_pages() -> Iterator[tuple[str, str]]:
    pages = [ROOT / "examples" / "only_judge.py", ROOT / "examples" / "own_rollout.py"]
    pages += [ROOT / "docs" / "art.md", TUTORIALS / "agent-framework.md"]
    for page in pages:
        (rubric,) = re.findall(r'^RUBRIC = ("""(?:.|\n)*?"""|".*")$', page.read_text(), re.MULTILINE)
        yield page.stem, eval(rubric)
    (text,) = [step.text for step in steps(TUTORIALS / "judge-your-logs.md") if step.title == "rubric.txt"]
    yield "rubric.txt", text
    demonstrations = (TUTORIALS / "demonstrations.md").read_text()
    for found in re.findall(r"(?:rubric=|rubric = |desk = |--rubric )[\"'](- .+?)[\"']", demonstrations):
        yield "demonstrations", found


@pytest.mark.parametrize(("page", "rubric"), list(of_pages()))
def test_the_stand_in_reads_a_rubric_of_a_page_whole(page: str, rubric: str) -> None:
    check_readable(Rubric.of(rubric), [])
