"""What an agent is asked: a scenario, its two splits of tasks, and where scenarios are found.

A task is either trained on or held out, never both. `success` and `hand_reward` measure trajectories; they are trained
on only when `LoopConfig.reward` gives them a weight.
"""

import hashlib
import importlib
import importlib.util
import pkgutil
import random
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from gavel.llm.errors import GavelError
from gavel.scenarios.own_imports import neighbours_first
from gavel.scenarios.task import Task
from gavel.scenarios.tools import Toolbox, ToolFunction
from gavel.scenarios.trajectory import Trajectory

Split = Literal["train", "held_out"]


class ScenarioError(GavelError):
    """A scenario is unknown, or not usable as written."""


class Scenario:
    """A job for an agent: who it is, what it can do, and the tasks it gets."""

    def __init__(
        self,
        name: str,
        *,
        system: str,
        tasks: Sequence[Task],
        held_out: Sequence[Task] | float = 0.2,
        tools: Sequence[ToolFunction] = (),
        max_turns: int = 8,
        rubric: str | None = None,
        success: Callable[[Trajectory], bool] | None = None,
        hand_reward: Callable[[Trajectory], float] | None = None,
        measures: Mapping[str, Callable[[Trajectory], float]] | None = None,
    ) -> None:
        """`held_out` is a list of tasks, or the share of `tasks` to hold out (chosen by task id).

        `rubric` tells the judge what good work is. `success`, `hand_reward` and the named
        `measures` are functions of a finished trajectory, reported beside the judge's scores. A
        training loop uses `success` and `hand_reward` as rewards only where its `reward` says so.

        Raises `ScenarioError` for no tasks, or a task that stands in both splits.
        """
        self.name = name
        self.system = system
        self.toolbox = Toolbox(tools)
        self.max_turns = max_turns
        self.rubric = rubric
        self.success = success
        self.hand_reward = hand_reward
        self.measures = dict(measures or {})
        self._tasks: dict[Split, Sequence[Task]] = _splits(name, tasks, held_out)

    def tasks(self, split: Split = "train") -> Sequence[Task]:
        return self._tasks[split]

    def sample(self, split: Split, count: int, *, seed: int, step: int = 0) -> list[Task]:
        """`count` different tasks (all of them if there are fewer), the same for the same seed and step."""
        tasks = self._tasks[split]
        if not tasks:
            raise ScenarioError(
                f"the scenario {self.name} has no {split} tasks", "Give it more tasks, or pass held_out=[…]."
            )
        chooser = random.Random(f"{self.name}/{split}/{seed}/{step}")
        return [tasks[i] for i in chooser.sample(range(len(tasks)), min(count, len(tasks)))]


def find_scenario(reference: str) -> Scenario:
    """The scenario called `reference`: a shipped one's name, or `file.py` or `file.py:variable`.

    Raises `ScenarioError` when there is none, and when the file cannot be loaded.
    """
    path, _, variable = reference.partition(":")
    if path.endswith(".py"):
        return _from_file(Path(path), variable)
    shipped = shipped_scenarios()
    if reference not in shipped:
        raise ScenarioError(
            f"there is no scenario {reference!r}; shipped: {', '.join(shipped)}",
            "Name one of these, or a Python file that holds a gavel.Scenario.",
        )
    return importlib.import_module(f"gavel.scenarios.library.{reference}").scenario


def shipped_scenarios() -> list[str]:
    """Names of the scenarios in `scenarios/library`."""
    library = importlib.import_module("gavel.scenarios.library")
    return sorted(module.name for module in pkgutil.iter_modules(library.__path__))


def _from_file(path: Path, variable: str) -> Scenario:
    if not path.is_file():
        raise ScenarioError(f"there is no file {path.absolute()}", "Check the path to your scenario.")
    file = path.resolve()
    folder = file.parent
    spec = importlib.util.spec_from_file_location(f"_gavel_user_{path.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    neighbours_first(folder)
    sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(module)
    except GavelError:
        raise
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == spec.origin]
        where = f"{path}, line {lines[-1]}" if lines else str(path)
        raise ScenarioError(
            f"{where}: {type(error).__name__}: {error}", f"Mend it; `python {path}` shows the whole traceback."
        ) from error
    finally:
        sys.path.remove(str(folder))
    found: dict[str, Any] = {name: value for name, value in vars(module).items() if isinstance(value, Scenario)}
    chosen = {name: value for name, value in found.items() if variable in ("", name)}
    if len(chosen) != 1:
        names = ", ".join(found) or "none"
        raise ScenarioError(
            f"{path} should hold one gavel.Scenario{f' called {variable}' if variable else ''}; found: {names}",
            f"Name the one you mean: {path}:NAME",
        )
    return next(iter(chosen.values()))


def _splits(name: str, tasks: Sequence[Task], held_out: Sequence[Task] | float) -> dict[Split, Sequence[Task]]:
    if not tasks:
        raise ScenarioError(f"the scenario {name} has no tasks", "Pass tasks=[gavel.Task(user=…), …].")
    if not isinstance(held_out, int | float):
        both = {task.id for task in tasks} & {task.id for task in held_out}
        if both:
            tasks_in_both = "a task" if len(both) == 1 else f"{len(both)} tasks"
            raise ScenarioError(
                f"{tasks_in_both} of {name} both trained on and held out: {min(both)}",
                "Keep every task in one of the two lists.",
            )
        return {"train": tasks, "held_out": held_out}
    if not 0 <= held_out < 1:
        raise ScenarioError(f"held_out={held_out} is not a share", "Use a number from 0 up to 1, such as 0.2.")
    ids = sorted({task.id for task in tasks}, key=lambda task_id: hashlib.sha256(task_id.encode()).digest())
    kept_back = set(ids[: round(held_out * len(ids))])
    return {
        "train": [task for task in tasks if task.id not in kept_back],
        "held_out": [task for task in tasks if task.id in kept_back],
    }
