"""Scenarios: the agent's job, its two splits of tasks, and lookup of scenarios.

    Scenario("shop", system="…", tools=[look_up], tasks=[…])        # plain functions
    Scenario("shop", system="…", environment=Shop, tasks=[…])       # a world with a state, made anew for each episode
    Scenario("shop", rollout=play, tasks=[…])                       # an agent loop of one's own

A task is either trained on or held out, never both. `success` and `hand_reward` measure trajectories; they are trained
on only when `LoopConfig.reward` gives them a weight.
"""

import copy
import hashlib
import importlib
import importlib.util
import math
import pkgutil
import random
import shlex
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast

from gavel.base import entry_points
from gavel.base.errors import GavelError
from gavel.base.fields import named_arguments
from gavel.scenarios.environment import REWARD, SUCCESS, EnvironmentFactory, ToolWorld, class_of, tools_of
from gavel.scenarios.mcp import McpServer
from gavel.scenarios.simulated_user import SimulatedUser
from gavel.scenarios.task import DrawnTasks, Task
from gavel.scenarios.tools import Toolbox, ToolFunction
from gavel.scenarios.trajectory import Trajectory

Split = Literal["train", "held_out"]
OwnRollout = Callable[..., Awaitable[Trajectory | list[Trajectory]]]
"""`async def play(model, task)`, with further parameters annotated `Episode` or `Scenario`. It returns one trajectory,
or one per agent that has its own reward."""
ADDRESSED: Mapping[str, str] = {
    "branching": "gavel.scenarios.agent_styles.branching",
    "react": "gavel.scenarios.agent_styles.react",
    "word_math": "gavel.scenarios.gsm8k_files",
}
"""Modules by address scheme, `scheme:address`: `scenario_at(address)` in the module returns the scenario. Integrations,
and other distributions, register theirs as entry points."""
BRIDGED = {"tau2_retail": "tau2:retail", "tau2_airline": "tau2:airline"}
"""Aliases of addresses."""


class ScenarioError(GavelError):
    """A scenario is unknown, or invalid."""


class Scenario:
    """A job for an agent: its role, its tools and its tasks."""

    @named_arguments
    def __init__(
        self,
        name: str,
        *,
        system: str = "",
        tasks: Sequence[Task],
        held_out: Sequence[Task] | float = 0.2,
        tools: Sequence[ToolFunction | McpServer] = (),
        environment: EnvironmentFactory | None = None,
        user: SimulatedUser | None = None,
        rollout: OwnRollout | None = None,
        max_turns: int = 8,
        max_steps: int | None = None,
        max_tokens: int | None = None,
        max_seconds: float | None = None,
        max_tool_characters: int | None = None,
        call_seconds: float = 120.0,
        rubric: str | None = None,
        success: Callable[[Trajectory], bool] | None = None,
        hand_reward: Callable[[Trajectory], float] | None = None,
        measures: Mapping[str, Callable[[Trajectory], float]] | None = None,
    ) -> None:
        """`held_out`: a list of tasks, or the share of `tasks` to hold out (chosen by task id).

        `tools`: functions, and MCP servers (`gavel.mcp`). `environment`: a class, or anything that makes an object when
        called without arguments, see `gavel.scenarios.environment`. `user`: a simulated one answers turns without tool
        calls, in place of the environment's `observe`, and opens a task without words. `rollout`: an async function of
        model and task that gives a Trajectory, instead of the built-in loop; its parameter annotated `Episode` has the
        seed.

        An episode is truncated after `max_turns` turns of the agent, `max_steps` tool calls and observations,
        `max_tokens` tokens of conversation (prompt and replies; a fourth of its characters where the model's server
        does not count them), or `max_seconds`, and when its conversation outgrows the model's context. The agent and
        the judge are shown the first `max_tool_characters` of a tool's result and how many were left out (None: all of
        it). A tool call longer than `call_seconds` is a tool error, and a world's call of that length fails the
        episode. Only `max_seconds` applies to an own rollout.

        `rubric` tells the judge what good work is. `success`, `hand_reward` and the named
        `measures` are functions of a finished trajectory, reported beside the judge's scores. A
        training loop uses `success` and `hand_reward` as rewards only where its `reward` says so.

        Raises `ScenarioError` for a name that no directory can have, no tasks, a task that stands in both splits, a
        limit that allows nothing, an environment's instance, or an own rollout with options of the built-in loop;
        `ToolDefinitionError` for a tool that cannot be described.
        """
        if name in ("", ".", "..") or any(part in name for part in "/\0"):
            raise ScenarioError(
                f"a scenario cannot be called {name!r}: its runs are kept in a directory of that name",
                "Choose a name without slashes, such as returns_desk.",
            )
        if rollout is not None and (tools or environment is not None or user is not None):
            raise ScenarioError(
                f"the scenario {name} has a rollout of its own, which is given no tools, environment or user",
                "Leave tools=, environment= and user= out, and use them within the rollout.",
            )
        if environment is not None and not callable(environment):
            made = type(environment)
            maker = "a class" if made.__module__ == "builtins" else made.__name__
            raise ScenarioError(
                f"the scenario {name} has an environment that is made already: every episode needs its own",
                f"Give what makes one: environment={maker}, or a function.",
            )
        self.name = name
        self.system = system
        self.toolbox = Toolbox([tool for tool in tools if not isinstance(tool, McpServer)])
        self.servers = [tool for tool in tools if isinstance(tool, McpServer)]
        self.environment = environment
        self.user = user
        self.rollout = rollout
        self.max_turns = max_turns
        self.max_steps = max_steps
        self.max_tokens = max_tokens
        self.max_seconds = max_seconds
        self.max_tool_characters = max_tool_characters
        self.call_seconds = call_seconds
        self.rubric = rubric
        self._check_limits()
        self._world_class = kind = class_of(environment)
        if user is not None and getattr(kind, "observe", None) is not None:
            raise ScenarioError(
                f"the scenario {name} has an environment that observes and a simulated user: both would answer",
                "Leave user= out and ask it within observe: await user.meet(episode).answer(action).",
            )
        self.own_tools = [*self.toolbox] if kind is None else [*self.toolbox, *tools_of(kind)]
        """Tools that are known before an episode, unlike those of MCP servers and of worlds that list theirs."""
        if kind is not None:
            success = success or _recorded(kind, "success", SUCCESS)
            hand_reward = hand_reward or _recorded(kind, "reward", REWARD)
        self.success = success
        self.hand_reward = hand_reward
        self.measures = dict(measures or {})
        self._tasks: dict[Split, Sequence[Task]] = _split_tasks(name, tasks, held_out)

    @property
    def tool_names(self) -> frozenset[str]:
        """The names of all its tools; empty if they are unknown before an episode."""
        made = self._world_class
        is_open = made is None and self.environment is not None
        if self.servers or self.rollout is not None or is_open or (made and ToolWorld in made.__mro__):
            return frozenset()
        return frozenset(tool.name for tool in self.own_tools)

    @property
    def limits(self) -> dict[str, float | None]:
        """The limits of an episode and of a tool's result."""
        names = ("max_turns", "max_steps", "max_tokens", "max_seconds", "max_tool_characters")
        return {name: getattr(self, name) for name in names}

    def with_max_turns(self, max_turns: int) -> "Scenario":
        """The same scenario with another turn limit. Raises `ScenarioError` for a number below 1."""
        other = copy.copy(self)
        other.max_turns = max_turns
        other._check_limits()
        return other

    def _check_limits(self) -> None:
        limits: dict[str, Any] = {**self.limits, "call_seconds": self.call_seconds}
        for field, value in limits.items():
            kinds, what = ((int, float), "number above 0") if "seconds" in field else ((int,), "whole number from 1")
            is_none = value is None and field not in ("max_turns", "call_seconds")
            if not is_none and (type(value) not in kinds or not 0 < float(value or 0) < math.inf):
                raise ScenarioError(f"{field}={value!r} of the scenario {self.name} is no limit", f"Use a {what}.")

    def tasks(self, split: Split = "train") -> Sequence[Task]:
        return self._tasks[split]

    def sample(self, split: Split, count: int, *, seed: int, step: int = 0) -> list[Task]:
        """Draws `count` different tasks (all if there are fewer), the same for the same seed and step."""
        tasks = self._tasks[split]
        if not tasks:
            raise ScenarioError(
                f"the scenario {self.name} has no {split} tasks", "Give it more tasks, or pass held_out=[…]."
            )
        chooser = random.Random(f"{self.name}/{split}/{seed}/{step}")
        return [tasks[i] for i in chooser.sample(range(len(tasks)), min(count, len(tasks)))]


def _recorded(kind: type, method: str, metric: str) -> Callable[[Trajectory], Any] | None:
    """A check that reads the outcome which a world left in the metrics; None if the world records none."""
    return (lambda trajectory: trajectory.metrics[metric]) if getattr(kind, method, None) is not None else None


def find_scenario(reference: str) -> Scenario:
    """The scenario called `reference`: a shipped one's name, `file.py`, `file.py:variable`, or `scheme:address`.

    Raises `ScenarioError` when there is none, and when the file cannot be loaded.
    """
    if not isinstance(reference, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ScenarioError(f"{reference!r:.80} names no scenario", "Name one in quotes, or a file: desk.py.")
    path, _, variable = BRIDGED.get(reference, reference).partition(":")
    if path.endswith(".py"):
        return _from_file(Path(path), variable)
    if variable and path in entry_points.names("gavel.scenarios", ADDRESSED):
        return entry_points.load("gavel.scenarios", path, ADDRESSED).scenario_at(variable)
    shipped = shipped_scenarios()
    if reference not in shipped:
        raise ScenarioError(
            f"there is no scenario {reference!r}; shipped: {', '.join(shipped)}",
            f"Name one of these, or a Python file that holds a gavel.Scenario{_near(reference)}.",
        )
    return importlib.import_module(f"gavel.scenarios.library.{reference}").scenario


def _near(reference: str) -> str:
    """The Python files that a reference may mean: of the same name, or in the directory of that name."""
    files = [Path(f"{reference}.py"), *(sorted(Path(reference).glob("*.py")) if reference else ())]
    found = [str(file) for file in files if file.is_file() and not file.name.startswith(("test_", "_"))]
    return f": {', '.join(found[:3])}" if found else ""


def shipped_scenarios() -> list[str]:
    """Names of the scenarios in `scenarios/library`."""
    library = importlib.import_module("gavel.scenarios.library")
    return sorted(module.name for module in pkgutil.iter_modules(library.__path__) if module.name[0] != "_")


def module_from_file(path: Path) -> ModuleType:
    """Imports a user's module, which may import its neighbours. Raises `ScenarioError`."""
    if not path.is_file():
        raise ScenarioError(f"there is no file {path.absolute()}", "Check the path.")
    file = path.resolve()
    spec = importlib.util.spec_from_file_location(f"_gavel_user_{path.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    if sys.path[:1] != [str(file.parent)]:
        sys.path.insert(0, str(file.parent))  # as `python file.py` does
    try:
        spec.loader.exec_module(module)
    except GavelError:
        raise
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == spec.origin]
        where = f"{path}, line {lines[-1]}" if lines else str(path)
        raise ScenarioError(
            f"{where}: {type(error).__name__}: {error}",
            f"Mend it; `python {shlex.quote(str(path))}` shows the whole traceback.",
        ) from error
    return module


def _from_file(path: Path, variable: str) -> Scenario:
    module = module_from_file(path)
    found = {name: value for name, value in vars(module).items() if isinstance(value, Scenario)}
    chosen = [value for name, value in found.items() if variable in ("", name)]
    if len(chosen) != 1:
        names = ", ".join(found) or "none"
        raise ScenarioError(
            f"{path} should hold one gavel.Scenario{f' called {variable}' if variable else ''}; found: {names}",
            f"Name the one you mean: {path}:NAME" if found else "Write one into it; `gavel new scenario` does.",
        )
    return chosen[0]


def _split_tasks(name: str, tasks: Sequence[Task], held_out: Sequence[Task] | float) -> dict[Split, Sequence[Task]]:
    tasks = list(tasks) if isinstance(tasks, Iterator) else tasks  # a generator can be iterated only once
    held_out = list(held_out) if isinstance(held_out, Iterator) else held_out
    if not tasks:
        raise ScenarioError(f"the scenario {name} has no tasks", "Pass tasks=[gavel.Task(user=…), …].")
    for split in (tasks, held_out):
        for each in cast("list[object]", split) if isinstance(split, list) else ():  # drawn tasks are not inspected
            if not isinstance(each, Task):
                raise ScenarioError(
                    f"a task of {name} is of type {type(each).__name__}: {str(each)[:60]!r}",
                    "Pass tasks=[gavel.Task(user=…), …].",
                )
    if isinstance(held_out, int | float):
        if not 0 <= held_out < 1:
            raise ScenarioError(f"held_out={held_out} is not a share", "Use a number from 0 up to 1, such as 0.2.")
        ids = sorted({task.id for task in tasks}, key=lambda task_id: hashlib.sha256(task_id.encode()).digest())
        kept_back = set(ids[: round(held_out * len(ids))])
        return {
            "train": [task for task in tasks if task.id not in kept_back],
            "held_out": [task for task in tasks if task.id in kept_back],
        }
    if isinstance(tasks, DrawnTasks) and isinstance(held_out, DrawnTasks) and tasks.draw is held_out.draw:
        both = {tasks.draw(number).id for number in {*tasks.numbers} & {*held_out.numbers}}  # and no others
    else:
        both = {task.id for task in tasks} & {task.id for task in held_out}
    if both:
        tasks_in_both = "a task" if len(both) == 1 else f"{len(both)} tasks"
        raise ScenarioError(
            f"{tasks_in_both} of {name} both trained on and held out: {min(both)}",
            "Keep every task in one of the two lists.",
        )
    return {"train": tasks, "held_out": held_out}
