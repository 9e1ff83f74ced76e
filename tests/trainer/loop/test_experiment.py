"""Several scenarios in one run: their figures are told apart, each is judged by its own rubric, and it resumes."""

import sys
from pathlib import Path
from typing import Any

import pytest

from gavel.judge.config import JudgeConfig
from gavel.judge.judge import Judge
from gavel.judge.rubric import Rubric
from gavel.scenarios.library import flattered_desk, returns_desk
from gavel.scenarios.mixture import Mixture
from gavel.scenarios.scenario import Scenario, find_scenario
from gavel.scenarios.task import DrawnTasks, Task
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.config import LoopConfig, TrainConfig
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.loop.experiment import described_experiment, judges_of
from gavel.trainer.loop.model_samples import SampledModel
from gavel.trainer.loop.train_loop import Observer, StepReport, train_scenario
from gavel.trainer.model import TrainableModel
from gavel.trainer.runs.run_directory import RunDirectory, RunDirectoryError, differences
from tests.trainer.conftest import registered

MIXTURE = Mixture([returns_desk.scenario, flattered_desk.scenario], {"returns_desk": 3, "flattered_desk": {1: 1}})
LOOP = LoopConfig(
    steps=3, tasks_per_step=4, group_size=3, max_tokens=32, evaluate_every=2, evaluation_tasks=3, final_tasks=4
)
TRAIN = TrainConfig(learning_rate=1e-3, total_steps=3)


def judge() -> Judge:
    return Judge("stand-in")


class Seen(Observer):
    """Keeps whose the groups of each step were; may stop after one."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.scenarios: list[list[str]] = []
        self.reports: list[StepReport] = []
        self._stop_after = stop_after

    def stepped(self, report: StepReport) -> None:
        self.reports.append(report)
        self.scenarios.append(sorted(group.trajectories[0].metadata["scenario"] for group in report.groups))
        if report.result.step == self._stop_after:
            raise KeyError("stopped")


def test_a_judge_without_a_rubric_of_its_own_takes_that_of_each_scenario() -> None:
    other = Scenario("other", tasks=returns_desk.scenario.tasks("held_out")[:2], rubric="- calls A before B")
    plain = Scenario("plain", tasks=returns_desk.scenario.tasks("held_out")[:2])
    mixture = Mixture([returns_desk.scenario, other, plain])
    judges = judges_of(mixture, judge())
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
        ({"tools": []}, ["tools: 1 gone (look_up)"]),
        ({"tools": [look_up_more]}, ["tools: 1 changed (look_up)"]),
        ({"max_turns": 3, "max_tokens": 900}, ["max_turns 8, not 3", "max_tokens None, not 900"]),
        ({"tasks": TASKS[1:4]}, ["train_tasks: 1 gone (a)"]),
        ({"tasks": [*TASKS[:3], Task(id="d", user="Where?")]}, ["train_tasks: 1 changed (d)"]),
        ({"tasks": TASKS[3::-1]}, ["train_tasks: in another order"]),
        ({"held_out": [TASKS[4], Task(id="x", user="?")]}, ["held_out_tasks: 1 new (x), 1 gone (f)"]),
        ({"environment": Desk}, ["tools: 1 new (refund)"]),
    ],
)
def test_a_run_goes_on_with_the_scenario_that_it_was_begun_with_alone(
    tmp_path: Path, other: dict[str, Any], named: list[str]
) -> None:
    begun, asked = (described_experiment(Mixture([Scenario("shop", **GIVEN | each)]), None) for each in ({}, other))
    run = RunDirectory(tmp_path, "shop", "clerk")
    run.describe(begun, "experiment.json")
    run.check(described_experiment(Mixture([Scenario("shop", **GIVEN)]), None), "experiment.json")
    with pytest.raises(RunDirectoryError) as error:
        run.check(asked, "experiment.json")
    assert all(each in error.value.message for each in named)
    assert "--fresh" in error.value.remedy
    run.close()


def test_a_run_does_not_go_on_when_a_helper_of_its_tools_changed(tmp_path: Path) -> None:
    (tmp_path / "prices_apart.py").write_text("def price(name):\n    return 3\n")
    file = tmp_path / "shop.py"
    text = """
import gavel
from prices_apart import price

def rounded(value):
    return round(value)

def look_up(name: str) -> int:
    \"\"\"Look up a price.\"\"\"
    return rounded(price(name))

scenario = gavel.Scenario("shop", tools=[look_up], tasks=[gavel.Task(user="a"), gavel.Task(user="b")])
"""

    def described() -> dict[str, Any]:
        sys.modules.pop("prices_apart", None)
        return described_experiment(Mixture([find_scenario(str(file))]), Judge("stand-in"))

    file.write_text(text)
    begun = described()
    assert begun == described()
    file.write_text(text.replace("round(", "int(") + "# a comment")
    assert differences(begun, described()) == ["scenarios: shop: code: 1 changed (shop.py)"]
    file.write_text(text + "# a comment")
    assert differences(begun, described()) == []
    (tmp_path / "prices_apart.py").write_text("def price(name):\n    return 4\n")
    assert differences(begun, described()) == ["scenarios: shop: code: 1 changed (prices_apart.py)"]


@pytest.mark.parametrize(
    "how", ["from limits_apart import LIMIT", "from limits_apart import *", "from limits_between import LIMIT"]
)
def test_a_run_does_not_go_on_when_a_constant_that_it_imports_changed(tmp_path: Path, how: str) -> None:
    (tmp_path / "limits_between.py").write_text("from limits_apart import LIMIT\n")
    (tmp_path / "shop.py").write_text(f"""
import gavel
{how}

def look_up(name: str) -> int:
    \"\"\"Look up a limit.\"\"\"
    return LIMIT

scenario = gavel.Scenario("shop", tools=[look_up], tasks=[gavel.Task(user="a"), gavel.Task(user="b")])
""")

    def described(limit: int) -> dict[str, Any]:
        (tmp_path / "limits_apart.py").write_text(f"LIMIT = {limit}\n")
        for name in ("limits_apart", "limits_between"):
            sys.modules.pop(name, None)
        return described_experiment(Mixture([find_scenario(str(tmp_path / "shop.py"))]), Judge("stand-in"))

    begun = described(30)
    assert differences(begun, described(30)) == []
    assert differences(begun, described(400)) == ["scenarios: shop: code: 1 changed (limits_apart.py)"]


def test_episodes_are_kept_apart_when_a_helper_changed_and_not_when_success_did(tmp_path: Path) -> None:
    file, helper = tmp_path / "shop.py", tmp_path / "shop_prices.py"
    text = """
import gavel
from tests.trainer.conftest import registered
from shop_prices import price

def look_up(name: str) -> int:
    \"\"\"Look up a price.\"\"\"
    return price(name)

def success(trajectory):
    return True

scenario = gavel.Scenario("shop", tools=[look_up], tasks=[gavel.Task(user="a"), gavel.Task(user="b")], success=success)
"""

    def kept() -> Path:
        sys.modules.pop("shop_prices", None)
        return SampledModel("m", {}, lambda: None).file(tmp_path, find_scenario(str(file)), LoopConfig())

    file.write_text(text)
    helper.write_text("def price(name):\n    return 3\n")
    before = kept()
    file.write_text(text.replace("return True", "return False"))
    assert kept() == before
    helper.write_text("def price(name):\n    return 4\n")
    assert kept() != before


@pytest.mark.parametrize(
    ("judging", "named"),
    [
        ({"redact": "secrets"}, "redact"),
        ({"unseen": "flag"}, "unseen"),
        ({"alone": "scored"}, "alone"),
        ({"images": "flag"}, "images"),
        ({"quorum": 0.5}, "quorum"),
        ({"caps": {"empty": 0.1}}, "caps"),
        ({"params": {"temperature": 0.5}}, "params"),
        ({"noise_prior": {"variance": 0.1, "df": 9}}, "noise_prior"),
        ({"models": [{"model": "stand-in", "orders": 4}]}, "orders"),
        ({"models": [{"model": "stand-in", "context": 9000}]}, "context"),
        ({"timeout": 9, "concurrency": 3, "content_retries": 4, "max_cost_usd": 9}, None),
        ({"params": {"api_base": "http://127.0.0.1:8001/v1", "api_key": "sk-1"}}, None),
    ],
)
def test_a_run_does_not_go_on_with_a_judge_that_scores_otherwise(
    tmp_path: Path, judging: dict[str, Any], named: str | None
) -> None:
    mixture = Mixture([returns_desk.scenario])

    def described(**settings: Any) -> dict[str, Any]:
        return described_experiment(mixture, JudgeConfig.model_validate({"models": "stand-in"} | settings).build())

    run = RunDirectory(tmp_path, "desk", "clerk")
    run.describe(described(), "experiment.json")
    if named is None:
        run.check(described(**judging), "experiment.json")
    else:
        with pytest.raises(RunDirectoryError) as error:
            run.check(described(**judging), "experiment.json")
        assert f"judging: {named}" in error.value.message
        assert "--fresh" in error.value.remedy
    run.close()


def test_drawn_tasks_are_told_apart_without_drawing_them_all(tmp_path: Path) -> None:
    drawn: list[int] = []

    def draw(number: int) -> Task:
        drawn.append(number)
        return Task(user=f"Add 1 to {number}.")

    def described(end: int) -> dict[str, Any]:
        scenario = Scenario("sums", tasks=DrawnTasks(range(end), draw), held_out=DrawnTasks(range(end, end + 9), draw))
        return described_experiment(Mixture([scenario]), judge())

    run = RunDirectory(tmp_path, "sums", "clerk")
    run.describe(described(100_000), "experiment.json")
    run.check(described(100_000), "experiment.json")
    with pytest.raises(RunDirectoryError, match="tasks 100000, not 100001"):
        run.check(described(100_001), "experiment.json")
    assert len(drawn) < 1000
    run.close()


@pytest.mark.slow
async def test_a_run_over_two_scenarios_tells_them_apart_and_goes_on_as_it_began(tmp_path: Path) -> None:
    model = TrainableModel(name="clerk", project=MIXTURE.name, base_model=EMBEDDED_POLICY)
    first, then = Seen(stop_after=2), Seen()
    other = Mixture(MIXTURE.scenarios, {"returns_desk": 2, "flattered_desk": {1: 1}})
    async with LocalBackend(tmp_path) as backend:
        await model.register(backend)
        with pytest.raises(KeyError):
            await train_scenario(model, MIXTURE, judge(), LOOP, TRAIN, first)
        with pytest.raises(RunDirectoryError, match="was begun with"):
            await train_scenario(model, other, judge(), LOOP, TRAIN)
        await train_scenario(model, MIXTURE, judge(), LOOP, TRAIN, then)
        held_out, train = backend.history(model, "held_out"), backend.history(model, "train")
    three = ["flattered_desk", *["returns_desk"] * 3]
    assert first.scenarios == [["returns_desk"] * 4, three]
    assert then.scenarios == [three]
    for row in held_out:
        assert row["trajectories"] == 8 if row["step"] in (0, 3) else 6
        both = [row["returns_desk/success"], row["flattered_desk/success"]]
        assert row["success"] == pytest.approx(sum(both) / 2)
        assert "flattered_desk/pleases" in row
        assert "returns_desk/pleases" not in row
    assert [row["step"] for row in held_out] == [0, 2, 3]
    assert "flattered_desk/reward" not in train[0]
    assert 0 <= train[2]["flattered_desk/reward"] <= 1
    for group in (group for report in [*first.reports, *then.reports] for group in report.groups):
        assert group.judgement is not None
        names = {member.metadata["scenario"] for member in group}
        assert len(names) == 1
        for member in group:
            (name,) = names
            if member.reward is not None:
                assert member.metrics[f"{name}/reward"] == member.reward


@pytest.mark.slow
async def test_the_best_checkpoint_of_each_scenario_is_kept_beside_that_of_all(tmp_path: Path) -> None:
    shares = {1: (0.9, 0.1, 0.5), 2: (0.1, 0.8, 0.45), 3: (0.6, 0.6, 0.6), 4: (0.2, 0.2, 0.2)}
    async with registered(tmp_path) as (model, backend):
        for one, other, both in shares.values():
            await model.train([])
            values = {"success": both, "a/success": one, "b/success": other}
            backend.record(model, values, "held_out")
        await model.delete_checkpoints(["held_out/success", "held_out/a/success", "held_out/b/success"])
        assert backend.checkpoints(model) == [1, 2, 3, 4]
        await model.delete_checkpoints(["held_out/success", "held_out/a/success"])
        assert backend.checkpoints(model) == [1, 3, 4]
        await model.delete_checkpoints("held_out/a/success")
        assert backend.checkpoints(model) == [1, 4]
