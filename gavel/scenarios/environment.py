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

import functools
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, cast
from weakref import WeakSet

from gavel.base.errors import GavelError, contain_cancellation
from gavel.base.plain_calls import PlainCalls
from gavel.llm.types import Message
from gavel.scenarios.deadline import Deadline
from gavel.scenarios.episode import Episode
from gavel.scenarios.task import Task
from gavel.scenarios.tool_results import ResultError, text_of_result
from gavel.scenarios.tools import Done, Tool, Toolbox, ToolResult, arguments_for, described, result_of


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


@functools.cache
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


def is_plain(make: EnvironmentFactory) -> bool:
    """Whether `make` is a class whose methods are all synchronous.

    Such a world runs in its own thread. One with asynchronous methods runs entirely on the event loop, since it may
    hold objects bound to the thread that created them (an sqlite3 connection).
    """
    while isinstance(make, functools.partial):
        make = cast("functools.partial[Any]", make).func
    if not isinstance(make, type):
        return False
    functions: list[Any] = [inspect.getattr_static(make, name) for name in dir(make)]
    return not any(
        inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner)
        for each in functions
        if callable(inner := inspect.unwrap(getattr(each, "__func__", each)))
    )


class World:
    """The environment of one episode, created by `reset`."""

    def __init__(self, make: EnvironmentFactory, episode: Episode, call_seconds: float) -> None:
        self._make = make
        self._episode = episode
        self._seconds = call_seconds
        self._environment: Any = None
        self._is_begun = False
        self.on_loop = not is_plain(make)
        """Whether its synchronous methods run on the event loop, beside asynchronous ones; else in the episode's
        thread."""

    @property
    def environment(self) -> Any:
        return self._environment

    @property
    def tools(self) -> Toolbox:
        return tools_of(type(self._environment))  # pyright: ignore[reportUnknownArgumentType]

    @property
    def schemas(self) -> list[Message]:
        """The schemas of a `ToolWorld`'s tools. Raises `WorldError`."""
        return self._attribute("schemas") if issubclass(type(self._environment), ToolWorld) else []

    @property
    def observes(self) -> bool:
        """Whether the world responds to turns without tool calls."""
        return self._attribute("observe") is not None

    async def reset(self) -> str | None:
        """Creates the world; returns its first observation, if it has one. Raises `WorldError`."""
        limit = Deadline(self._seconds, "the environment")
        self._is_begun = True
        try:
            async with limit:
                self._environment = await contain_cancellation(
                    result_of(self._keep if self._calls else self._make, {}, "the environment", self._calls)
                )
        except (Exception, SystemExit) as error:
            if limit.expired():
                raise WorldTimeoutError(f"the environment took longer than {self._seconds:g} s to be made") from error
            raise _failed("the environment", "cannot be made", error) from error
        observation = await self._call("reset", self._episode.task)
        return _text("reset", observation)

    def _keep(self) -> Any:
        """Creates the world in its thread, where it can be closed even if nobody waits for it any more."""
        self._environment = self._make()
        return self._environment

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
                number = float(await self._call(method, self._episode.trajectory.reading_copy()))
            except WorldTimeoutError:
                raise
            except WorldError as error:
                raise OutcomeError(error.message) from error
            except (TypeError, ValueError) as error:
                raise OutcomeError(f"{method} of the environment gives no number: {described(error)}") from error
            if not math.isfinite(number) or (name == SUCCESS and not 0 <= number <= 1):
                raise OutcomeError(
                    f"{method} of the environment gives {number}, not a finite number (success: from 0 to 1)"
                )
            found[name] = number
        return found

    async def close(self) -> str | None:
        """Closes the world within a bounded time; returns the error if that failed. A synchronous world that is still
        being created or busy is closed when that is done."""
        may_come = self._environment is None and not self.on_loop

        def close() -> Any:
            method = self._attribute("close")
            return None if method is None else method(**self._filled_in(method, ()))

        try:
            if not self._is_begun or not (may_come or self._attribute("close")):
                return None
            async with Deadline(CLOSE_SECONDS, "close of the environment"):
                await self._run("close", close, (), must=True)
        except TimeoutError:
            return f"close took longer than {CLOSE_SECONDS:g} s"
        except WorldError as error:
            return error.message
        return None

    @property
    def _calls(self) -> PlainCalls | None:
        return None if self.on_loop else self._episode.plain_calls

    def _attribute(self, name: str) -> Any:
        """The attribute, or None if the world has none. Raises `WorldError` for any error of reading it."""
        try:
            return getattr(self._environment, name, None)
        except (Exception, SystemExit) as error:  # raised by a `__getattr__` or a property
            raise _failed(f"{name} of the environment", "cannot be read", error) from error

    async def _call(self, name: str, *arguments: object) -> Any:
        """Calls one of the world's own methods with the parameters that it declares."""
        method = self._attribute(name)
        return None if method is None else await self._run(name, method, arguments)

    def _filled_in(self, method: Callable[..., Any], arguments: tuple[object, ...]) -> dict[str, Any]:
        return arguments_for(method, arguments, {Episode: self._episode, Task: self._episode.task})

    async def _run(
        self, name: str, method: Callable[..., Any], arguments: tuple[object, ...], must: bool = False
    ) -> Any:
        what = f"{name} of the environment"
        limit = Deadline(self._seconds, what)
        try:
            async with limit:
                filled_in = self._filled_in(method, arguments)
                return await contain_cancellation(result_of(method, filled_in, what, self._calls, must=must))
        except (Exception, SystemExit) as error:
            if limit.expired():
                raise WorldTimeoutError(f"{what} took longer than {self._seconds:g} s") from error
            raise _failed(what, "failed", error) from error


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


def _failed(what: str, how: str, error: BaseException) -> WorldError:
    return WorldError(f"{what} {how}: {described(error)}")
