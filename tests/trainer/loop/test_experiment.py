"""Several scenarios in one run: their figures are told apart, each is judged by its own rubric, and it resumes."""

import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest

from gavel.judge.config import JudgeConfig
from gavel.judge.judge import Judge
from gavel.judge.rubric import Rubric
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.library import flattered_desk, returns_desk
from gavel.scenarios.mixture import Mixture
from gavel.scenarios.scenario import Scenario, find_scenario
from gavel.scenarios.task import DrawnTasks, Task
from gavel.trainer.config import LoopConfig, TrainConfig
from gavel.trainer.loop import experiment
from gavel.trainer.loop.experiment import describe_experiment, judges_of
from gavel.trainer.loop.model_samples import SampledModel
from gavel.trainer.loop.train_loop import Observer, StepReport, train_scenario
from gavel.trainer.runs.run_directory import RunDirectory, RunDirectoryError, differences
from tests.trainer.conftest import a_model, registered

MIXTURE = Mixture([returns_desk.scenario, flattered_desk.scenario], {"returns_desk": 3, "flattered_desk": {1: 1}})
LOOP = LoopConfig(
    steps=3, tasks_per_step=4, group_size=3, max_tokens=32, evaluate_every=2, evaluation_tasks=3, final_tasks=4
)
TRAIN = TrainConfig(learning_rate=1e-3, total_steps=3)


JUDGE = Judge("stand-in")


def test_a_judge_without_a_rubric_of_its_own_takes_that_of_each_scenario() -> None:
    other = Scenario("other", tasks=returns_desk.scenario.tasks("held_out")[:2], rubric="- calls A before B")
    plain = Scenario("plain", tasks=returns_desk.scenario.tasks("held_out")[:2])
    mixture = Mixture([returns_desk.scenario, other, plain])
    judges = judges_of(mixture, JUDGE)
    assert judges["other"].rubric == Rubric.of("- calls A before B")
    assert judges["returns_desk"].rubric == Rubric.of(returns_desk.scenario.rubric)
    assert judges["plain"].rubric == Rubric.of(None)
    assert len({id(each.budget) for each in judges.values()}) == 1
    own = judges_of(mixture, Judge("stand-in", rubric="- calls C before D"))
    assert {each.rubric.text for each in own.values()} == {"- calls C before D"}
    assert judges_of(mixture, None) == {}


def look_up(order: str) -> str:
    """Look up an order."""
    return order


def look_up_more(order: str, item: str) -> str:
    """Look up an order."""
    return order


class Desk:
    def refund(self, order: str) -> str:
        """Refund an order."""
        return order


look_up_more.__name__ = "look_up"
TASKS = [Task(id=name, user=f"Where is {name}?") for name in "abcdef"]
GIVEN: dict[str, Any] = {"system": "Be brief.", "tools": [look_up], "tasks": TASKS[:4], "held_out": TASKS[4:]}


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"system": "Be long."}, ["system 'Be brief.', not 'Be long.'"]),
        ({"tools": [look_up_more]}, ["tools: 1 changed (look_up)"]),
        ({"max_turns": 3, "max_tokens": 900}, ["max_turns 8, not 3", "max_tokens None, not 900"]),
        ({"tasks": [*TASKS[:3], Task(id="d", user="Where?")]}, ["train_tasks: 1 changed (d)"]),
        ({"held_out": [TASKS[4], Task(id="x", user="?")]}, ["held_out_tasks: 1 new (x), 1 gone (f)"]),
        ({"environment": Desk}, ["tools: 1 new (refund)"]),
    ],
)
def test_a_run_goes_on_with_the_scenario_that_it_was_begun_with_alone(tmp_path, other, named):
    error = refusal(tmp_path, *(described(Scenario("shop", **GIVEN | each)) for each in ({}, other)))
    assert all(each in error.message for each in named)
    assert "--fresh" in error.remedy
    assert "--" not in str(error)


def described(*scenarios: Scenario, judge: Judge | None = None) -> dict[str, Any]:
    return describe_experiment(Mixture(scenarios), judge)


def refusal(runs: Path, begun: dict[str, Any], asked: dict[str, Any]) -> RunDirectoryError | None:
    """What a run says that was begun with one experiment and goes on with another; None: it goes on."""
    with contextlib.closing(RunDirectory(runs, "shop", "clerk")) as run:
        run.describe(begun, "experiment.json")
        run.check(begun, "experiment.json")
        try:
            run.check(asked, "experiment.json")
        except RunDirectoryError as error:
            return error
    return None


@pytest.mark.parametrize("listed", [10_000, 3])
def test_the_same_tasks_in_another_order_are_to_be_sorted(tmp_path, monkeypatch, listed):
    monkeypatch.setattr(experiment, "MOST_TASKS", listed)
    tasks = [Task(user=name, reference=f"It is {name}.") for name in "abcdef"]
    scenarios = [Scenario("shop", tasks=each, held_out=0) for each in (tasks, tasks[::-1])]
    error = refusal(tmp_path, *(described(each, judge=JUDGE) for each in scenarios))
    assert "the same in another order" in error.message
    assert not any(word in error.message for word in ("hash", "references"))


SHOP = """
import gavel
from shop_prices import price

def rounded(value):
    return round(value)

def look_up(name: str) -> int:
    \"\"\"Look up a price.\"\"\"
    from shop_net.calls import answer
    return rounded(answer(price(name)))

def success(trajectory):
    return True

scenario = gavel.Scenario("shop", tools=[look_up], tasks=[gavel.Task(user="a"), gavel.Task(user="b")], success=success)
"""
PRICES = "def price(name):\n    return 3\n"


NET = "raise SystemExit('run by the comparison')\nfrom shop_prices import price\n"


def a_shop(folder: Path, text: str = SHOP, prices: str = PRICES, net: str = NET) -> Scenario:
    sys.modules.pop("shop_prices", None)
    (folder / "shop_net").mkdir(exist_ok=True)
    (folder / "shop.py").write_text(text)
    (folder / "shop_prices.py").write_text(prices)
    (folder / "shop_net" / "calls.py").write_text(net)
    return find_scenario(str(folder / "shop.py"))


def test_a_run_does_not_go_on_when_a_helper_of_its_tools_changed_and_episodes_are_kept_apart(tmp_path: Path) -> None:
    def changed(**other: str) -> list[str]:
        return differences(begun, described(a_shop(tmp_path, **other)))

    def kept(**other: str) -> Path:
        return SampledModel("m", {}, lambda: None).file(tmp_path, a_shop(tmp_path, **other), LoopConfig())

    begun = described(a_shop(tmp_path))
    assert changed() == changed(text=SHOP + "# a comment") == []
    assert changed(text=SHOP.replace("round(", "int(")) == ["scenarios: shop: code: 1 changed (shop.py)"]
    assert changed(prices=PRICES.replace("3", "4")) == ["scenarios: shop: code: 1 changed (shop_prices.py)"]
    assert changed(net=NET.replace("price", "cost")) == ["scenarios: shop: code: 1 changed (calls.py)"]
    assert kept() == kept(text=SHOP.replace("return True", "return False"))
    assert kept() != kept(prices=PRICES.replace("3", "4"))


@pytest.mark.parametrize(
    ("judging", "named"),
    [
        ({"redact": "secrets"}, "redact"),
        ({"quorum": 0.5}, "quorum"),
        ({"params": {"temperature": 0.5}}, "params"),
        ({"models": [{"model": "stand-in", "orders": 4}]}, "orders"),
        ({"timeout": 9, "concurrency": 3, "content_retries": 4, "max_cost_usd": 9}, None),
        ({"params": {"api_base": "http://127.0.0.1:8001/v1", "api_key": "sk-1"}}, None),
    ],
)
def test_a_run_does_not_go_on_with_a_judge_that_scores_otherwise(tmp_path, judging, named):
    judges = [JudgeConfig.model_validate({"models": "stand-in"} | each).build() for each in ({}, judging)]
    error = refusal(tmp_path, *(described(returns_desk.scenario, judge=each) for each in judges))
    assert (error is None) == (named is None)
    assert error is None or f"judging: {named}" in error.message


def test_drawn_tasks_are_told_apart_without_drawing_them_all(tmp_path: Path) -> None:
    drawn: list[int] = []

    def draw(number: int) -> Task:
        drawn.append(number)
        return Task(user=f"Add 1 to {number}.")

    begun, same, other = (
        described(Scenario("sums", tasks=DrawnTasks(range(end), draw), held_out=DrawnTasks(range(end, end + 9), draw)))
        for end in (100_000, 100_000, 100_001)
    )
    assert refusal(tmp_path, begun, same) is None
    assert "tasks 100000, not 100001" in refusal(tmp_path, begun, other).message
    assert len(drawn) < 1000


@pytest.mark.slow
async def test_a_run_over_two_scenarios_tells_them_apart_and_goes_on_as_it_began(tmp_path: Path) -> None:
    groups: list[TrajectoryGroup] = []
    scenarios: list[list[str]] = []

    class Stopping(Observer):
        def stepped(self, report: StepReport) -> None:
            groups.extend(report.groups)
            scenarios.append(sorted(group.trajectories[0].metadata["scenario"] for group in report.groups))
            if scenarios == [["returns_desk"] * 4, three]:
                raise KeyError("stopped")

    three, seen = ["flattered_desk", *["returns_desk"] * 3], Stopping()
    other = Mixture(MIXTURE.scenarios, {"returns_desk": 2, "flattered_desk": {1: 1}})
    async with registered(tmp_path, a_model("clerk", MIXTURE.name)) as (model, backend):
        with pytest.raises(KeyError):
            await train_scenario(model, MIXTURE, JUDGE, LOOP, TRAIN, seen)
        with pytest.raises(RunDirectoryError, match="was begun with"):
            await train_scenario(model, other, JUDGE, LOOP, TRAIN)
        await train_scenario(model, MIXTURE, JUDGE, LOOP, TRAIN, seen)
        held_out, train = backend.history(model, "held_out"), backend.history(model, "train")
    assert scenarios == [["returns_desk"] * 4, three, three]
    for row in held_out:
        assert row["trajectories"] == 8 if row["step"] in (0, 3) else 6
        both = [row["returns_desk/success"], row["flattered_desk/success"]]
        assert row["success"] == pytest.approx(sum(both) / 2)
        assert "flattered_desk/pleases" in row
        assert "returns_desk/pleases" not in row
    assert [row["step"] for row in held_out] == [0, 2, 3]
    assert "flattered_desk/reward" not in train[0]
    assert 0 <= train[2]["flattered_desk/reward"] <= 1
    for group in groups:
        assert group.judgement is not None
        (name,) = {member.metadata["scenario"] for member in group}
        for member in group:
            if member.reward is not None:
                assert member.metrics[f"{name}/reward"] == member.reward
