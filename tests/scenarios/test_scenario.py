"""Scenarios: the two splits, what is sampled from them, how a scenario and its neighbours are found, and mixtures of
several; tasks: their names and their truth."""

import json
import math
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.base.errors import GavelError
from gavel.base.fields import FieldError
from gavel.judge.errors import JudgeError
from gavel.judge.rubric import Criterion
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.mixture import Mixture, read_weights, scenario_references
from gavel.scenarios.scenario import Scenario, ScenarioError, Split, find_scenario
from gavel.scenarios.seeds import seed_of
from gavel.scenarios.task import DrawnTasks, Task
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.truth import Truth, read_truth, truth_of, with_truth_of_rows


def tasks(count: int) -> list[Task]:
    return [Task(id=str(number), user=f"task {number}") for number in range(count)]


def scenario(count: int = 50, **options: object) -> Scenario:
    return Scenario("s", system="", tasks=tasks(count), **options)  # type: ignore[arg-type]


def ids(found: Iterable[Task]) -> list[str]:
    return [task.id for task in found]


@given(st.integers(1, 200), st.floats(0, 1, exclude_max=True))
def test_a_share_is_held_out_and_every_task_is_in_one_split(count: int, share: float) -> None:
    split = scenario(count, held_out=share)
    trained, held_out = ids(split.tasks("train")), ids(split.tasks("held_out"))
    assert len(held_out) == round(share * count)
    assert sorted(trained + held_out) == sorted(ids(tasks(count)))
    assert len(scenario(50).tasks("held_out")) == 10


def test_a_task_is_held_out_by_its_id_whatever_the_order_of_the_tasks() -> None:
    other = Scenario("another name", system="x", tasks=tasks(40)[::-1])
    assert sorted(ids(other.tasks("held_out"))) == ["10", "13", "17", "29", "39", "4", "8", "9"]
    doubled = Scenario("s", system="", tasks=(each for _ in range(2) for each in tasks(10)), held_out=0.5)
    trained, held_out = ids(doubled.tasks("train")), ids(doubled.tasks("held_out"))
    assert not {*trained} & {*held_out}
    assert len(trained) + len(held_out) == 20


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        *((limit, value) for limit in ("max_turns", "max_steps", "max_tokens") for value in (0, -1, 2.5, "3", True)),
        *((limit, value) for limit in ("max_seconds", "call_seconds") for value in (0, -1, math.nan, math.inf, "3")),
        ("max_turns", None),
        ("call_seconds", None),
    ],
)
def test_a_limit_that_leaves_nothing_or_limits_nothing_is_refused(limit: str, value: Any) -> None:
    limits: dict[str, Any] = {limit: value}
    with pytest.raises(ScenarioError, match=rf"{limit}=.* of the scenario s is no limit\nUse a "):
        Scenario("s", tasks=[Task(user="1")], **limits)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"held_out": [Task(id="2", user="other words")]}, "a task of s both trained on and held out: 2"),
        ({"tasks": []}, "the scenario s has no tasks"),
        *(({"name": name}, "cannot be called") for name in ("", "..", "../x", "a/b")),
        *(({"held_out": share}, "is not a share") for share in (-0.1, 1, 1.0, 5, math.nan)),
        ({"environment": random.Random()}, r"made already(.|\n)*environment=Random, or a function"),
        ({"rollout": print, "tools": [find_scenario]}, "rollout of its own"),
    ],
)
def test_what_is_no_scenario_is_refused_before_anything_runs(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        Scenario(**{"name": "s", "tasks": tasks(3), **options})


@given(st.integers(0, 60), st.integers(), st.integers(0), st.sampled_from(["train", "held_out"]))
def test_a_sample_has_different_tasks_of_its_split_and_is_the_same_again(
    count: int, seed: int, step: int, split: Split
) -> None:
    here, there = (scenario(50).sample(split, count, seed=seed, step=step) for _ in range(2))
    assert here == there
    assert len(set(ids(here))) == len(here) == min(count, len(scenario(50).tasks(split)))
    assert set(ids(here)) <= set(ids(scenario(50).tasks(split)))
    with pytest.raises(ScenarioError, match="the scenario s has no held_out tasks"):
        scenario(5, held_out=0).sample("held_out", count, seed=seed)


@pytest.fixture(autouse=True)
def _modules_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


ONE = '{0} = gavel.Scenario("{0}", system="", tasks=[gavel.Task(user="hello")], tools=[{1}])'


def file(folder: Path, *parts: str) -> Path:
    path = folder / "mine.py"
    path.write_text("\n".join(parts))
    return path


UNKNOWN = r"there is no scenario .* shipped: .*returns_desk"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        *((name, UNKNOWN) for name in ("returns-desk", "", "os", "returns_desk.cases")),
        ("{}/nowhere.py", r"there is no file .*nowhere\.py"),
        ("{}/nowhere.py:mine", "there is no file"),
        ("{}/mine.py", r"should hold one gavel\.Scenario; found: none"),
    ],
)
def test_what_names_no_scenario_is_refused(tmp_path: Path, name: str, told: str) -> None:
    file(tmp_path, "x = 1")
    with pytest.raises(ScenarioError, match=told) as caught:
        find_scenario(name.format(tmp_path))
    assert caught.value.remedy
    with pytest.raises(ScenarioError) as caught:  # the directory that `gavel new` wrote, or a file without its ending
        find_scenario(str(tmp_path))
    assert str(tmp_path / "mine.py") in caught.value.remedy


TWO = "\n".join(("import gavel", ONE.format("one", ""), ONE.format("two", "")))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("\nx = 1 / 0", r"mine\.py, line 2: ZeroDivisionError: division by zero"),
        ("\n\ndef broken(:", r"mine\.py: SyntaxError: .*line 3"),
        ("import nothing_of_this_name", r"mine\.py, line 1: ModuleNotFoundError: .*nothing_of_this_name"),
        ("x = 1\nimport json; json.loads('?')", r"mine\.py, line 2: JSONDecodeError"),
        (TWO, r"found: one, two\nName the one you mean: .*mine\.py:NAME"),
    ],
)
def test_a_file_with_an_error_or_two_scenarios_is_told_with_the_place(tmp_path: Path, source: str, message: str):
    path = file(tmp_path, source)
    with pytest.raises(ScenarioError, match=message) as caught:
        find_scenario(str(path))
    assert (caught.value.__cause__ is None) == (source == TWO)
    if source == TWO:
        assert find_scenario(f"{path}:two").name == "two"


def test_the_tools_of_a_file_may_use_its_own_types(tmp_path: Path) -> None:
    imports = "from __future__ import annotations\nimport gavel, pydantic\n"
    types = "class Point(pydantic.BaseModel):\n    x: int\n"
    tool = "def move(to: Point, task: gavel.Task) -> str:\n    return 'moved'\n"
    source = "\n".join((imports, types, tool, ONE.format("mine", "move")))
    schema = find_scenario(str(file(tmp_path, source))).toolbox.schemas[0]["function"]["parameters"]
    assert schema["properties"] == {"to": {"$ref": "#/$defs/Point"}}
    with pytest.raises(GavelError, match="the argument to of the tool move has no type") as error:
        find_scenario(str(file(tmp_path, source.replace("to: Point", "to"))))
    assert not isinstance(error.value, ScenarioError)  # a mistake with a remedy of its own keeps it


@pytest.mark.parametrize("neighbour", ["prompts_of_mine.py", "prompts_of_mine/__init__.py", "prompts_of_mine/inner.py"])
@pytest.mark.parametrize(
    "words", ["from {0} import WORDS", "import importlib; WORDS = importlib.import_module('{0}').WORDS"]
)
async def test_an_import_inside_a_tool_finds_the_neighbour_before_one_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, neighbour: str, words: str
) -> None:
    for folder, content in ((tmp_path, "from the working directory"), (tmp_path / "desk", "from next door")):
        path = folder / neighbour
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"WORDS = {content!r}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = "prompts_of_mine.inner" if neighbour.endswith("inner.py") else "prompts_of_mine"
    tool = f"def early() -> str:\n    {words.format(module)}\n    return WORDS\n"
    path = file(tmp_path / "desk", "import gavel", tool, ONE.format("mine", "early"))
    assert (await find_scenario(str(path)).toolbox.call("early", "{}")).content == "from next door"


def look_up(order: str) -> str:
    """Look up an order."""
    return order


@pytest.mark.parametrize(
    ("kind", "unnamed", "given", "told"),
    [
        (Task, ["Where?"], {}, "Task(user=…)"),
        (Task, [], {"user": "Where?", "answer": "x"}, "reference"),
        (Trajectory, [[]], {}, "Trajectory(messages_and_choices=…)"),
        (Scenario, ["desk"], {"tasks": [Task(user="x")], "tools": look_up}, "tools=[…]"),
        (Scenario, ["desk"], {"tasks": Task(user="x")}, "tasks=[…]"),
        (Scenario, ["desk", [Task(user="x")]], {}, "Scenario(tasks=…)"),
        (Scenario, ["desk"], {}, "tasks=…"),
        (Scenario, ["desk"], {"task": [Task(user="x")]}, "tasks"),
    ],
)
def test_a_constructor_tells_how_what_it_was_given_is_named(kind, unnamed: list, given: dict, told: str):
    with pytest.raises(FieldError) as error:
        kind(*unnamed, **given)
    assert told in error.value.remedy


def test_the_id_of_a_task_and_the_seed_of_a_place_never_change() -> None:
    assert Task(user="hello").id == "6083580e5818"
    assert Task(user="hello", data={"b": 1, "a": [True, None]}).id == "1607cf882e6a"
    assert seed_of(0, "train", 3, "1007", 2) == 1617203419219693553
    assert seed_of("evaluation") == 1777858146974599569


def test_tasks_are_drawn_when_they_are_asked_for_and_those_in_both_splits_to_compare():
    drawn: list[int] = []

    def draw(number: int) -> Task:
        drawn.append(number)
        return Task(id=f"task {number}", user="Do it.")

    tasks = DrawnTasks(range(100, 110), draw)
    assert (len(tasks), drawn) == (10, [])
    assert [tasks[-1].id, *(task.id for task in tasks[2:4])] == ["task 109", "task 102", "task 103"]
    assert drawn == [109, 102, 103]
    assert tasks[3] in tasks
    with pytest.raises(IndexError):
        tasks[10]
    drawn.clear()
    scenario = Scenario("x", tasks=DrawnTasks(range(500), draw), held_out=DrawnTasks(range(500, 900), draw))
    assert (len(scenario.tasks("held_out")), drawn) == (400, [])
    with pytest.raises(ScenarioError, match="both trained on and held out: task 9"):
        Scenario("x", tasks=DrawnTasks(range(10), draw), held_out=DrawnTasks(range(9, 20), draw))
    assert drawn == [9]


WORDS = st.text(min_size=1, max_size=9).filter(lambda text: text.strip() and len(text.splitlines()) == 1)
TRUTHS = st.builds(
    Truth,
    st.none() | WORDS,
    st.none() | WORDS,
    st.lists(st.builds(Criterion, WORDS, WORDS, st.floats(0, 9)), max_size=3).map(tuple),
)


def attempt(**metadata) -> Trajectory:
    return Trajectory(messages_and_choices=[{"role": "assistant", "content": "x"}], metadata=metadata)


@given(TRUTHS)
def test_a_task_that_a_rollout_has_written_down_tells_its_truth(truth):
    task = Task(user="Hello", rubric=truth.rubric, reference=truth.reference, criteria=list(truth.criteria))
    assert read_truth(json.loads(json.dumps(truth.dump()))) == truth
    assert bool(truth) == bool(truth.dump())
    written = json.loads(json.dumps({"task": task.model_dump(mode="json")}))
    assert Task.of(written) == task
    assert truth_of(TrajectoryGroup([attempt(**written), attempt(**written)])) == truth
    assert truth_of(TrajectoryGroup([attempt()], metadata=written)) == truth


@pytest.mark.parametrize(
    ("row", "truth"),
    [
        ({"answer": "42"}, Truth(reference="42")),
        ({"answer": "41", "reference": "42"}, Truth(reference="42")),
        ({"answer": {"size": "größer"}}, Truth(reference='{"size": "größer"}')),
        ({"answer": False}, Truth(reference="false")),
        ({"rubric": "- says hello"}, Truth(rubric="- says hello")),
        ({"criteria": ["Says hello."]}, Truth(criteria=(Criterion("criterion 1", "Says hello."),))),
        ({"criteria": '[{"name": "a", "text": "b", "weight": 2}]'}, Truth(criteria=(Criterion("a", "b", 2),))),
        ({"answer": "", "rubric": None, "criteria": [], "reference": "  "}, Truth()),
        ({"answer": math.nan, "model": "m"}, Truth()),
        ({"answer": np.float64(2.5), "criteria": np.array([])}, Truth(reference="2.5")),
        ({"criteria": [{"name": "a", "text": "b", "weight": None, "x": None}]}, Truth(criteria=(Criterion("a", "b"),))),
    ],
)
def test_columns_of_a_row_are_read(row, truth):
    assert read_truth(row, of_row=True) == truth
    for criteria in ("be kind", 3, [3], [{"name": "a"}], [{"name": "a", "text": "b", "weight": "2"}]):
        with pytest.raises(JudgeError, match="these are no criteria"):
            read_truth({"criteria": criteria})


def test_members_with_different_truths_are_not_comparable():
    one, other = ({"task": Task(user="Hello", reference=reference).model_dump()} for reference in ("a", "b"))
    groups = [TrajectoryGroup([attempt(**one), attempt(**each)]) for each in (other, {})]
    for group in (*groups, TrajectoryGroup([attempt(**one)], metadata=other)):
        with pytest.raises(JudgeError, match="not comparable"):
            truth_of(group)


def test_the_truth_of_rows_becomes_that_of_their_group():
    with pytest.raises(JudgeError, match="not comparable") as refused:
        with_truth_of_rows(TrajectoryGroup([attempt(answer="a"), attempt(answer="b")]))
    assert "--by" in refused.value.remedy
    rows = TrajectoryGroup([attempt(answer=42), attempt(answer=42)], metadata={"by": "x"})
    group = with_truth_of_rows(rows)
    assert group.metadata == {"by": "x", "truth": {"reference": "42"}}
    assert truth_of(group) == Truth(reference="42")
    assert with_truth_of_rows(group) == group
    assert with_truth_of_rows(TrajectoryGroup([attempt()])).metadata == {}


WORLDS = (("a", 40), ("b", 40), ("c", 3))
A, B, C = (Scenario(name, tasks=[Task(user=f"{n} of {name}?") for n in range(tasks)]) for name, tasks in WORLDS)


def counts(mixture: Mixture, groups: int, step: int, seed: int = 0) -> Counter[str]:
    return Counter(planned.scenario.name for planned in mixture.plan(groups, seed=seed, step=step))


def test_shares_are_those_of_the_weights_in_every_step_and_exact_on_average() -> None:
    mixture = Mixture([A, B], {"a": 3})
    assert all(counts(mixture, 8, step) == {"a": 6, "b": 2} for step in range(10))
    steps = [counts(mixture, 2, step) for step in range(400)]
    assert all(step["a"] in (1, 2) for step in steps)
    assert sum(step["a"] for step in steps) == pytest.approx(600, abs=45)


def test_a_curriculum_brings_a_scenario_in_at_its_step() -> None:
    mixture = Mixture([A, B], {"a": {0: 1, 30: 0}, "b": {20: 1}})
    expected = [{"a": 4}, {"a": 4}, {"a": 2, "b": 2}, {"a": 2, "b": 2}, {"b": 4}]
    assert [counts(mixture, 4, step) for step in (0, 19, 20, 29, 30)] == expected
    assert read_weights({"a": 2, "20:b": 1, "40:b": 3, "0:c": 5}) == {"a": {0: 2}, "b": {20: 1, 40: 3}, "c": {0: 5}}


def test_a_scenario_with_fewer_tasks_than_groups_repeats_them_in_a_mixture_under_other_numbers() -> None:
    assert [each.task for each in Mixture.of(A).plan(5, seed=3, step=7)] == A.sample("train", 5, seed=3, step=7)
    assert len(Mixture.of(C).plan(16, seed=0, step=0)) == len(C.tasks())
    planned = [each for each in Mixture([A, C]).plan(16, seed=0, step=0) if each.scenario is C]
    assert len(planned) == 8
    assert len({(each.task.id, each.repeat) for each in planned}) == 8
    assert len({each.task.id for each in planned}) == len(C.tasks())


@pytest.mark.parametrize(
    ("scenarios", "weights", "problem"),
    [
        ([], None, "needs a scenario"),
        ([A, A], None, "two scenarios of the mixture are called a"),
        ([A, B], {"x": 1.0}, "'x' has a weight"),
        ([A, B], {"a": -1.0}, "no weight"),
        ([A, B], {"a": "3"}, "no weight"),
        ([A, B], {"a": None}, "no weight"),
        ([A, B], {"a": {"20": 1}}, "no weight"),
        (A, None, "a list of scenarios"),
        ([A], B, "no weight"),
        ([A, B], {"a": 0.0, "b": {20: 1.0}}, "at step 0 every scenario"),
        ([A, B], {"a": {0: 1.0, 30: 0.0}, "b": {0: 1.0, 20: 0.0}}, "at step 30 every scenario"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused_with_a_remedy(scenarios: Any, weights: Any, problem: str) -> None:
    with pytest.raises(ScenarioError, match=problem) as error:
        Mixture(scenarios, weights)
    assert error.value.remedy


def test_a_plus_joins_scenarios_and_is_part_of_a_path_or_a_url(tmp_path) -> None:
    file, rows = tmp_path / "a+b.py", tmp_path / "a+b" / "train.jsonl"
    rows.parent.mkdir()
    for path in (file, rows):
        path.write_text("")
    named = "agentgym:weather+http://127.0.0.1:36005"
    paths = (rows, rows.with_name("not-there.jsonl"), rows.parent, f"{rows}?reward={rows.parent}/r.py:score")
    for one in (named, str(file), f"{file}:one", *(f"verl:{path}" for path in paths)):
        assert scenario_references(one) == [one]
    for several in (
        ["returns_desk", "agentgym:http://127.0.0.1:1/"],
        [named, "openenv:http://127.0.0.1:2"],
        [f"verl:{rows}?tasks=2", "returns_desk"],
        ["returns_desk ", " one.py:a", "two.py"],
        ["retail/desk.py", "airline/desk.py"],
    ):
        assert scenario_references("+".join(several)) == several
