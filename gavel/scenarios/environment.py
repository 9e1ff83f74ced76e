"""Stateful worlds: a class of the user's, instantiated for every episode.

    class Counter:
        async def reset(self, task: gavel.Task) -> str | None: …    # the first observation, after the task's own text
        async def add(self, amount: int) -> int: …                  # public, annotated, with a docstring: a tool
        async def observe(self, action: str) -> str | None: …       # answers words with the next user turn
        def success(self, trajectory: gavel.Trajectory) -> bool: …  # and reward(…): for comparison only
        async def close(self) -> None: …

All of them are optional, and may be plain functions. `observe` without a result, and `gavel.done(value)` from a tool or
from `observe`, end the episode. An exception or timeout of a world affects only its own episode.
"""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache, partial
from types import FunctionType
from typing import Any, TypeVar, cast
from weakref import WeakSet

from gavel.base.errors import GavelError, contain_cancellation
from gavel.base.plain_calls import is_async
from gavel.llm.types import Message
from gavel.scenarios.deadline import LateError, in_time
from gavel.scenarios.episode import Episode
from gavel.scenarios.task import Task
from gavel.scenarios.tool_results import ResultError, text_of_result
from gavel.scenarios.tools import Done, Tool, Toolbox, ToolResult, arguments_for, described, failed_call, result_of


class ToolWorld(ABC):
    schemas: list[Message]
    """OpenAI schemas of the tools, available after reset; their names are unique."""

    @abstractmethod
    async def call(self, name: str, arguments: str) -> ToolResult:
        """Runs the tool of this name with arguments as the agent wrote them, JSON text. A `GavelError` fails the
        episode."""


_OWN_METHODS = ("reset", "observe", "success", "reward", "close")
CLOSE_SECONDS = 10.0
"""Seconds that closing a world may take."""

EnvironmentFactory = Callable[[], Any]
_Method = TypeVar("_Method", bound=Callable[..., Any])


class WorldError(GavelError):
    """A world failed: the episode ends, and the agent is not to blame."""


class WorldTimeoutError(WorldError):
    """A method of a world took too long."""


class OutcomeError(WorldError):
    """A world cannot report how its episode ended."""


_NO_TOOLS: "WeakSet[Callable[..., Any]]" = WeakSet()


def not_a_tool(method: _Method) -> _Method:
    """Decorates a public method of an environment that agents must not call."""
    _NO_TOOLS.add(getattr(method, "__func__", method))  # the function of a static method
    return method


@cache
def tools_of(kind: type) -> Toolbox:
    """The tools of an environment's class: its public methods that have a docstring. Empty for a `ToolWorld`.

    Raises `ToolDefinitionError` for a tool whose arguments have no types.
    """
    if ToolWorld in kind.__mro__:
        return Toolbox(())
    tools: list[Tool] = []
    names = dict.fromkeys(name for base in reversed(kind.__mro__) for name in vars(base))  # in source order
    for name in names:
        method: Any = inspect.getattr_static(kind, name)
        is_bound = not isinstance(method, staticmethod | classmethod)
        inner: Any = getattr(method, "__func__", method)
        if name.startswith("_") or name in _OWN_METHODS or isinstance(inner, type) or not callable(inner):
            continue
        written = inspect.unwrap(inner)  # the function of a cached method
        if not isinstance(written, FunctionType) or not inspect.getdoc(written):
            continue
        if inner not in _NO_TOOLS and written not in _NO_TOOLS:
            tools.append(Tool(inner if is_bound else getattr(kind, name), bound=is_bound))
    return Toolbox(tools)


def class_of(make: EnvironmentFactory | None) -> type | None:
    """The class that `make` is, or a partial of it; None for another function."""
    while isinstance(make, partial):
        make = cast("partial[Any]", make).func
    return make if isinstance(make, type) else None


def is_plain(make: EnvironmentFactory) -> bool:
    """Whether `make` is a class whose methods are all synchronous.

    Such a world runs in its own thread. One with asynchronous methods runs entirely on the event loop, since it may
    hold objects bound to the thread that created them (an sqlite3 connection).
    """
    kind = class_of(make)
    methods = [inspect.getattr_static(kind, name) for name in dir(kind)]
    inner: list[Any] = [getattr(each, "__func__", each) for each in methods]  # of static methods
    is_async_one = (is_async(each) or inspect.isasyncgenfunction(each) for each in inner if callable(each))
    return kind is not None and not any(is_async_one)


class World:
    """The environment of one episode, created by `reset`."""

    def __init__(self, make: EnvironmentFactory, episode: Episode) -> None:
        self._make = make
        self._episode = episode
        self.environment: Any = None
        self._is_begun = False
        self.on_loop = not is_plain(make)
        """Whether its synchronous methods run on the event loop, beside asynchronous ones; else in the episode's
        thread."""

    def add_tools(self, toolbox: Toolbox) -> None:
        """Adds the tools of the world, which has been reset. Raises `WorldError`, and `ToolDefinitionError` for two of
        one name."""
        kind = cast("Any", type(self.environment))
        about = {"environment": self.environment, "on_loop": self.on_loop, "seconds": self._episode.call_seconds}
        for tool in tools_of(kind):
            toolbox.add(tool.schema, partial(tool.call, episode=self._episode, **about))
        for schema in self._attribute("schemas") if issubclass(kind, ToolWorld) else ():
            toolbox.add(schema, partial(self._call_tool, schema["function"]["name"]))

    async def _call_tool(self, name: str, arguments: str) -> ToolResult:
        """The answer of a `ToolWorld`'s tool; a tool error if that takes too long, or raises."""
        seconds = self._episode.call_seconds
        try:
            running = contain_cancellation(self.environment.call(name, arguments))
            return await in_time(running, seconds, f"the tool {name}")
        except GavelError:
            raise
        except (Exception, SystemExit) as error:
            return failed_call(name, error, seconds)

    @property
    def observes(self) -> bool:
        """Whether the world responds to turns without tool calls."""
        return self._attribute("observe") is not None

    async def reset(self) -> str | None:
        """Creates the world; returns its first observation, if it has one. Raises `WorldError`."""
        self._is_begun = True

        def make() -> Any:
            made = self._make()
            if not inspect.isawaitable(made):
                self.environment = made  # and can be closed even if nobody waits for it any more
            return made

        self.environment = await self._run("making the environment", make)
        return _text("reset", await self._call("reset", self._episode.task))

    async def observe(self, action: str) -> tuple[str | None, bool]:
        """The world's response to the agent's words, and whether the episode is over. Raises `WorldError`."""
        observation = await self._call("observe", action)
        if isinstance(observation, Done):
            return _text("observe", observation.value), True
        return _text("observe", observation), observation is None

    async def outcome(self) -> dict[str, float]:
        """The world's current `success` and `reward`, if it defines them.

        Raises `OutcomeError`, and `WorldTimeoutError` if one takes too long.
        """
        found: dict[str, float] = {}
        for method, name in (("success", SUCCESS), ("reward", REWARD)):
            if self._attribute(method) is None:
                continue
            try:
                number = found[name] = float(await self._call(method, self._episode.trajectory.reading_copy()))
            except WorldTimeoutError:
                raise
            except (WorldError, TypeError, ValueError) as error:
                told = getattr(error, "message", f"{method} of the environment gives no number: {described(error)}")
                raise OutcomeError(told) from error
            if not math.isfinite(number) or (name == SUCCESS and not 0 <= number <= 1):
                wanted = "a finite number (success: from 0 to 1)"
                raise OutcomeError(f"{method} of the environment gives {number}, not {wanted}")
        return found

    async def close(self) -> str | None:
        """Closes the world within a bounded time; returns the error if that failed. A synchronous world that is still
        being created or busy is closed when that is done."""

        def close() -> Any:
            method = self._attribute("close")
            return None if method is None else method(**self._arguments(method, ()))

        try:
            may_come = self.environment is None and not self.on_loop
            if self._is_begun and (may_come or self._attribute("close")):
                await in_time(self._run("close of the environment", close, must=True), CLOSE_SECONDS, "close")
        except (LateError, WorldError) as error:
            return getattr(error, "message", str(error))
        return None

    def _attribute(self, name: str) -> Any:
        """The attribute, or None if the world has none. Raises `WorldError` for any error of reading it."""
        try:
            return getattr(self.environment, name, None)
        except (Exception, SystemExit) as error:  # raised by a `__getattr__` or a property
            raise WorldError(f"{name} of the environment cannot be read: {described(error)}") from error

    def _arguments(self, method: Callable[..., Any], positional: tuple[object, ...]) -> dict[str, Any]:
        return arguments_for(method, positional, {Episode: self._episode, Task: self._episode.task})

    async def _call(self, name: str, *arguments: object) -> Any:
        """Calls one of the world's own methods with the parameters that it declares."""
        method = self._attribute(name)
        return None if method is None else await self._run(f"{name} of the environment", method, *arguments)

    async def _run(self, what: str, function: Callable[..., Any], *positional: object, must: bool = False) -> Any:
        calls = None if self.on_loop else self._episode.plain_calls
        try:
            arguments = self._arguments(function, positional)
            running = contain_cancellation(result_of(function, arguments, calls, must=must))
            return await in_time(running, self._episode.call_seconds, what)
        except LateError as error:
            raise WorldTimeoutError(str(error)) from error
        except (Exception, SystemExit) as error:
            raise WorldError(f"{what} failed: {described(error)}") from error


SUCCESS = "success"
REWARD = "environment_reward"
"""Trajectory metrics that hold a world's verdict on an episode."""
NO_OUTCOME = "no_outcome"
"""Trajectory metric of an episode whose world cannot report its outcome."""


def _text(method: str, observation: object) -> str | None:
    try:
        return None if observation is None else text_of_result(observation)
    except ResultError as error:
        raise WorldError(f"what {method} of the environment gives cannot be shown: {error}") from error
