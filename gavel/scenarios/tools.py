"""Typed Python functions as an agent's tools.

One pydantic model, built from the signature, provides both the schema for the agent and the validation of its
arguments. The agent's mistakes never raise: an invalid call, or a failing tool, is answered with a tool error.
"""

import asyncio
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import GeneratorType, UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model

from gavel.base.errors import GavelError, contain_cancellation
from gavel.base.plain_calls import PlainCalls, is_async
from gavel.llm.types import Message
from gavel.scenarios.deadline import LateError, in_time
from gavel.scenarios.episode import Episode
from gavel.scenarios.task import Task
from gavel.scenarios.tool_results import RETURNABLE, ResultError, all_of, text_of_result, unreadable_in

ToolFunction = Callable[..., Any]

MAX_ERROR_CHARACTERS = 4_000
"""Max characters of a tool error. An agent whose own mistake is echoed in 200,000 characters has no context left to fix
it."""
_NO_FUNCTION = (
    "Pass functions made with def, by themselves: tools=[look_up], whose schema comes from their annotations. A class "
    "with state is an environment: Scenario(environment=Desk)."
)
_warned: set[str] = set()
"""Warnings already given."""
_threads: "WeakKeyDictionary[asyncio.Task[Any], PlainCalls]" = WeakKeyDictionary()
"""The thread for plain functions that an asyncio task calls outside an episode."""
logger = logging.getLogger(__name__)


class ToolDefinitionError(GavelError):
    """A function cannot be offered as a tool."""


@dataclass(frozen=True, slots=True)
class Done:
    """A tool's result that ends the episode."""

    value: Any


def done(value: Any) -> Done:
    """Wraps a tool's result so that it ends the episode."""
    return Done(value)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer to one tool call."""

    content: str
    """Text of the tool message; for an error, JSON with the one key `error`."""
    error: bool = False
    done: bool = False


class Tool:
    """One function: its name, its OpenAI schema and its checked execution.

    A parameter annotated as `Task` or `Episode` (or `Task | None`) is not shown to the agent; the rollout fills it in.
    A plain function runs in a thread of its episode, or else of the asyncio task that calls it. `bound`: the function
    is a method, whose first argument is the environment.

    Raises `ToolDefinitionError` for a function that has no schema, or whose annotation says that it returns what the
    agent cannot be shown, such as bytes.
    """

    def __init__(self, function: ToolFunction, *, bound: bool = False) -> None:
        if inspect.isclass(function) or not callable(function):
            raise ToolDefinitionError(f"{function!r:.80} is no function, so the agent could not call it", _NO_FUNCTION)
        self.function = function
        self.name = name = getattr(function, "__name__", "")
        self._bound = bound
        if not name.isidentifier():
            raise ToolDefinitionError(
                f"{function!r} has no usable name, so the agent could not call it", "Use a function made with def."
            )
        if inspect.isasyncgenfunction(inspect.unwrap(function)):
            raise ToolDefinitionError(
                f"the tool {name} is an asynchronous generator, which has no one answer",
                "Return a list in place of yield.",
            )
        docs = docstring_parser.parse(inspect.getdoc(function) or "")
        try:
            self._arguments, self._filled_in = _build_argument_model(function, name, docs, bound=bound)
            parameters = self._arguments.model_json_schema()
        except (NameError, PydanticUserError) as error:
            raise ToolDefinitionError(
                f"the tool {name} cannot be described to an agent: {str(error).splitlines()[0]}",
                "Use types that JSON can hold: str, int, float, bool, list, dict, Literal, or a pydantic model.",
            ) from error
        if unreadable := unreadable_in(get_type_hints(inspect.unwrap(function)).get("return")):
            raise ToolDefinitionError(
                f"the tool {name} returns {unreadable}, which the agent cannot be shown", f"Return {RETURNABLE}."
            )
        parameters.pop("description", None)
        for schema in (parameters, *parameters.get("properties", {}).values()):
            schema.pop("title", None)
        description = "\n".join(filter(None, (docs.short_description, docs.long_description)))
        described = {"name": name, "description": description, "parameters": parameters}
        self.schema: dict[str, Any] = {"type": "function", "function": described}
        """The OpenAI tool schema: `{"type": "function", "function": {name, description, parameters}}`."""

    async def call(
        self,
        arguments: str,
        task: Task | None = None,
        *,
        episode: Episode | None = None,
        environment: object = None,
        on_loop: bool = False,
        seconds: float | None = None,
    ) -> ToolResult:
        """Checks `arguments` (JSON text, as the agent wrote it), runs the function, renders its result.

        `environment`: the object of a method. `on_loop`: runs a plain function on the event loop anyway. A call longer
        than `seconds` is a tool error.
        """
        given = parse_arguments(self.name, arguments)
        if isinstance(given, ToolResult):
            return given
        try:
            checked = self._arguments.model_validate(given)
        except ValidationError as error:
            details = error.errors()
            told = [f"{'.'.join(map(str, each['loc']))}: {each['msg'].lower()}" for each in details]
            return tool_error(f"{self.name}: {'; '.join(told)}")
        values = {name: getattr(checked, name) for name in type(checked).model_fields}
        known: dict[type, object] = {Task: task if episode is None else episode.task, Episode: episode}
        values |= {name: known[kind] for name, kind in self._filled_in.items()}
        calls = None
        if not on_loop and not is_async(self.function):
            calls = _own_thread() if episode is None else episode.plain_calls
        begun = False

        def run() -> Any:
            nonlocal begun
            begun = True
            return self.function(environment, **values) if self._bound else self.function(**values)

        try:
            running = contain_cancellation(result_of(run, {}, calls))
            result = await in_time(running, seconds, f"the tool {self.name}")
        except (Exception, SystemExit) as error:
            if isinstance(error, LateError) and not begun:
                return tool_error(f"{self.name} was not run within {seconds:g} s: an earlier call has not ended")
            return failed_call(self.name, error, seconds)
        is_done = isinstance(result, Done)
        try:
            return ToolResult(text_of_result(result.value if isinstance(result, Done) else result), done=is_done)
        except ResultError as error:
            told = f"{self.name} ran, but its result cannot be shown: {error}"
            if told not in _warned:
                _warned.add(told)
                logger.warning("the tool %s. Let it return %s.", told, RETURNABLE)
            return tool_error(told, done=is_done)


class Toolbox:
    """Tools by name: the functions of a scenario, or all tools of an agent in an episode."""

    def __init__(
        self,
        functions: Iterable[ToolFunction | Tool],
        episode: Episode | None = None,
        max_characters: int | None = None,
    ) -> None:
        """`max_characters`: how much of a result is shown (None: all). Raises `ToolDefinitionError`."""
        if not isinstance(functions, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ToolDefinitionError(f"tools are a list of functions, not {functions!r:.80}", _NO_FUNCTION)
        self.schemas: list[Message] = []
        """As the agent is shown them."""
        self._tools = [each if isinstance(each, Tool) else Tool(each) for each in functions]
        self._calls: dict[str, Callable[..., Awaitable[ToolResult]]] = {}
        self._max_characters = max_characters
        for tool in self._tools:
            self.add(tool.schema, partial(tool.call, episode=episode, seconds=episode and episode.call_seconds))

    def __iter__(self) -> Iterator[Tool]:
        """The functions."""
        return iter(self._tools)

    def add(self, schema: Message, call: Callable[..., Awaitable[ToolResult]]) -> None:
        """Adds a tool that is `call`ed with arguments as the agent wrote them. Raises `ToolDefinitionError` for two
        tools of one name."""
        name = schema["function"]["name"]
        if name in self._calls:
            raise ToolDefinitionError(
                f"two tools are called {name}",
                "Rename one, or leave one out: gavel.mcp(…, without=[…]), @gavel.not_a_tool.",
            )
        self._calls[name] = call
        self.schemas.append(schema)

    async def call(self, name: str, arguments: str, task: Task | None = None) -> ToolResult:
        """Runs the tool called `name`; an unknown name is a tool error too. Raises `McpError` if its server is lost."""
        if (call := self._calls.get(name)) is None:
            return no_such_tool(name, self._calls)
        result = await (call(arguments) if task is None else call(arguments, task))
        whole, most = len(result.content), self._max_characters
        if most is None or whole <= most:
            return result
        return replace(result, content=f"{result.content[:most]}\n… {whole - most:,} of {whole:,} characters left out")

    async def answer(self, call: Any, task: Task | None = None) -> Message:
        """The tool message for an OpenAI tool call: the client's object, or a dict of the same form.

        Raises `GavelError` for anything else.
        """

        match call.model_dump() if isinstance(call, BaseModel) else call:
            case {"id": str(number), "function": {"name": str(name), **rest}}:
                given: Any = rest.get("arguments")
                text = given if isinstance(given, str) else json.dumps(given or {}, default=dict)
                result = await self.call(name, text, task)
                return {"role": "tool", "tool_call_id": number, "content": result.content}
            case _:
                raise GavelError(
                    f"this is no call of a tool: {call!r:.120}",
                    "Pass each of message.tool_calls: [await tools.answer(call) for call in message.tool_calls].",
                )


async def result_of(
    function: Callable[..., Any], arguments: Mapping[str, Any], calls: PlainCalls | None = None, *, must: bool = False
) -> Any:
    """Returns the result of a plain or an async function.

    A plain function runs in the thread of `calls`, with `must` even if its caller has been cancelled; without `calls`
    on the event loop. A generator is the list of its values.
    """

    def call() -> Any:
        result = function(**arguments)
        return all_of(cast("Iterator[Any]", result)) if isinstance(result, GeneratorType) else result

    result = call() if calls is None or is_async(function) else await calls.run(call, must=must)
    return await result if inspect.isawaitable(result) else result


def _own_thread() -> PlainCalls | None:
    """The current asyncio task's thread, which ends with it."""
    task = asyncio.current_task()
    return None if task is None else _threads.setdefault(task, PlainCalls())


def described(error: BaseException) -> str:
    """The error's type and text; the type alone if its text cannot be read."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def failed_call(name: str, error: BaseException, seconds: float | None) -> ToolResult:
    """The answer to a call of a tool that raised the error, or was ended after `seconds` (`in_time`)."""
    how = f"did not answer within {seconds:g} s" if isinstance(error, LateError) else f"failed: {described(error)}"
    return tool_error(f"{name} {how}")


def no_such_tool(name: str, names: Iterable[str]) -> ToolResult:
    return tool_error(f"there is no tool {name!r}; the tools are {', '.join(names) or 'none'}")


def arguments_for(
    function: Callable[..., Any], positional: Iterable[object], given: Mapping[type, object]
) -> dict[str, Any]:
    """Keyword arguments for a user's function: those of `given` that its annotations ask for, or without one a name
    such as `episode`, and `positional` in order for the other parameters without a default."""
    hints, parameters = get_type_hints(function), inspect.signature(function).parameters
    by_name = {kind.__name__.lower(): kind for kind in given}
    kinds = {name: _kind_among(hints[name], given) if name in hints else by_name.get(name) for name in parameters}
    arguments = {name: given[kind] for name, kind in kinds.items() if kind is not None}
    left = [value for value in positional if not any(value is each for each in arguments.values())]
    others = [
        name
        for name, parameter in parameters.items()
        if name not in arguments and parameter.default is parameter.empty and parameter.kind in _NAMED
    ]
    return {**arguments, **dict(zip(others, left, strict=False))}


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _build_argument_model(
    function: ToolFunction, name: str, docs: docstring_parser.Docstring, *, bound: bool
) -> tuple[type[BaseModel], dict[str, type[Task | Episode]]]:
    hints = get_type_hints(function, include_extras=True)
    descriptions = {each.arg_name: each.description for each in docs.params}
    fields: dict[str, Any] = {}
    filled_in: dict[str, type[Task | Episode]] = {}
    for parameter in list(inspect.signature(function).parameters.values())[bound:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ToolDefinitionError(
                f"the tool {name} takes {parameter}, which has no schema", "Give every argument a name and a type."
            )
        hint = hints.get(parameter.name)
        if kind := _kind_among(hint, (Task, Episode)):
            filled_in[parameter.name] = kind
            continue
        if hint is None:
            raise ToolDefinitionError(
                f"the argument {parameter.name} of the tool {name} has no type", f"Write {parameter.name}: str, say."
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        if described := descriptions.get(parameter.name):
            hint = Annotated[hint, Field(description=described)]
        fields[parameter.name] = (hint, default)
    model = create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
    if lost := fields.keys() - model.model_fields.keys():
        raise ToolDefinitionError(f"the argument {min(lost)} of the tool {name} has a reserved name", "Rename it.")
    return model, filled_in


_K = TypeVar("_K", bound=type)


def _kind_among(hint: Any, kinds: Iterable[_K]) -> _K | None:
    """The one of `kinds` that the annotation is, or has as an alternative."""
    alternatives = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return next((kind for kind in kinds if kind in alternatives), None)


def parse_arguments(name: str, arguments: str) -> Message | ToolResult:
    """The object that an agent wrote as a call's arguments, or the tool error for any other text."""
    try:
        given: object = json.loads(arguments or "{}")
    except (ValueError, TypeError, RecursionError) as error:  # huge numbers, an object for the text, deep nesting
        return tool_error(f"the arguments of {name} are not valid JSON: {error}")
    if isinstance(given, dict):
        return cast("Message", given)
    return tool_error(f"the arguments of {name} must be a JSON object")


def tool_error(message: str, *, done: bool = False) -> ToolResult:
    """An error for the agent; arguments that it echoes are truncated."""
    if len(message) > MAX_ERROR_CHARACTERS:
        message = f"{message[:MAX_ERROR_CHARACTERS]} … ({len(message):,} characters)"
    return ToolResult(text_of_result({"error": message}), error=True, done=done)
