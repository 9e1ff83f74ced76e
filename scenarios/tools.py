"""Typed Python functions as the tools of an agent.

The signature is the schema: what the agent is shown and what its arguments are checked against come
from the same pydantic model. Nothing that the agent writes can raise here: a bad call, and a tool
that fails, go back to the agent as a tool error.
"""

import inspect
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_type_hints

import docstring_parser
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.fields import FieldInfo

from scenarios.errors import GavelError
from scenarios.task import Task

ToolFunction = Callable[..., Any]


class ToolDefinitionError(GavelError):
    """A function cannot be offered as a tool."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a tool returns to end the episode after its result."""

    value: Any


def done(value: Any) -> Done:
    """Wraps a tool's result so that the episode ends with it."""
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

    A parameter annotated as `Task` is not shown to the agent; the rollout fills it in. A plain
    function runs on the event loop: write `async def` for a tool that waits.
    """

    def __init__(self, function: ToolFunction) -> None:
        self.function = function
        self.name = getattr(function, "__name__", "")
        if not self.name.isidentifier():
            raise ToolDefinitionError(
                f"{function!r} has no usable name, so the agent could not call it", "Use a function made with def."
            )
        self._arguments, self._task_parameter = _argument_model(function, self.name)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The OpenAI tool schema: `{"type": "function", "function": {name, description, parameters}}`."""
        parameters = self._arguments.model_json_schema()
        parameters.pop("title", None)
        for property_schema in parameters.get("properties", {}).values():
            property_schema.pop("title", None)
        parameters.pop("description", None)
        docs = docstring_parser.parse(inspect.getdoc(self.function) or "")
        description = "\n".join(part for part in (docs.short_description, docs.long_description) if part)
        function = {"name": self.name, "description": description, "parameters": parameters}
        return {"type": "function", "function": function}

    async def call(self, arguments: str, task: Task | None = None) -> ToolResult:
        """Checks `arguments` (JSON text, as the agent wrote it), runs the function, renders its result."""
        try:
            given = json.loads(arguments or "{}")
        except json.JSONDecodeError as error:
            return _error(f"the arguments of {self.name} are not valid JSON: {error}")
        try:
            checked = self._arguments.model_validate(given)
        except ValidationError as error:
            return _error(f"{self.name}: {_plain(error)}")
        values = {name: getattr(checked, name) for name in type(checked).model_fields}
        if self._task_parameter is not None:
            values[self._task_parameter] = task
        try:
            result = self.function(**values)
            if inspect.isawaitable(result):
                result = await result
        except Exception as error:
            return _error(f"{self.name} failed: {type(error).__name__}: {error}")
        if isinstance(result, Done):
            return ToolResult(content=_text(result.value), done=True)
        return ToolResult(content=_text(result))


class Toolbox:
    """The tools of one scenario, by name."""

    def __init__(self, functions: Iterable[ToolFunction]) -> None:
        tools = [Tool(function) for function in functions]
        self._tools = {tool.name: tool for tool in tools}
        if len(self._tools) < len(tools):
            names = [tool.name for tool in tools]
            twice = next(name for name in names if names.count(name) > 1)
            raise ToolDefinitionError(f"two tools are called {twice}", "Rename one of the functions.")

    @cached_property
    def schemas(self) -> list[dict[str, Any]]:
        return [tool.schema for tool in self._tools.values()]

    async def call(self, name: str, arguments: str, task: Task | None = None) -> ToolResult:
        """Runs the tool called `name`; an unknown name is a tool error too."""
        tool = self._tools.get(name)
        if tool is None:
            return _error(f"there is no tool {name!r}; the tools are {', '.join(self._tools) or 'none'}")
        return await tool.call(arguments, task)


def _argument_model(function: ToolFunction, name: str) -> tuple[type[BaseModel], str | None]:
    hints = get_type_hints(function, include_extras=True)
    docs = {p.arg_name: p.description for p in docstring_parser.parse(inspect.getdoc(function) or "").params}
    fields: dict[str, Any] = {}
    task_parameter = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ToolDefinitionError(
                f"the tool {name} takes {parameter}, which has no schema", "Give every argument a name and a type."
            )
        hint = hints.get(parameter.name)
        if hint is Task:
            task_parameter = parameter.name
            continue
        if hint is None:
            raise ToolDefinitionError(
                f"the argument {parameter.name} of the tool {name} has no type", f"Write {parameter.name}: str, say."
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        described = docs.get(parameter.name)
        field = FieldInfo(default=default, description=described) if described else default
        fields[parameter.name] = (hint, field)
    return create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields), task_parameter


def _plain(error: ValidationError) -> str:
    problems = []
    for detail in error.errors():
        where = ".".join(str(part) for part in detail["loc"]) or "arguments"
        problems.append(f"{where}: {detail['msg'].lower()}")
    return "; ".join(problems)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return json.dumps(value, ensure_ascii=False, default=str)


def _error(message: str) -> ToolResult:
    return ToolResult(content=json.dumps({"error": message}, ensure_ascii=False), error=True)
