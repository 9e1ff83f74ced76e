"""Scenarios: the two splits, what is sampled from them, and how a scenario and its neighbours are found."""

import math
import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel.base.errors import GavelError
from gavel.scenarios.scenario import Scenario, ScenarioError, Split, find_scenario
from gavel.scenarios.task import Task

untimed = settings(deadline=None)

SPLITS: tuple[Split, ...] = ("train", "held_out")


def tasks(count: int) -> list[Task]:
    return [Task(id=str(number), user=f"task {number}") for number in range(count)]


def scenario(count: int = 50, **options: object) -> Scenario:
    return Scenario("s", system="", tasks=tasks(count), **options)  # type: ignore[arg-type]


def ids(found: Iterable[Task]) -> list[str]:
    return [task.id for task in found]


@untimed
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
    trained, held_out = (set(ids(doubled.tasks(split))) for split in SPLITS)
    assert not trained & held_out
    assert len(doubled.tasks("train")) + len(doubled.tasks("held_out")) == 20


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


@untimed
@given(st.integers(0, 60), st.integers(), st.integers(0), st.sampled_from(SPLITS))
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
