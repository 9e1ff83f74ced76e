"""Typed Python functions as the tools of an agent.

One pydantic model, made from the signature, gives both the schema that the agent is shown and the check of
its arguments. Nothing that the agent writes raises here: a bad call, or a tool that fails, is answered with a
tool error.
"""

import inspect
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic_core import to_jsonable_python

from gavel.llm.errors import GavelError
from gavel.llm.types import Message
from gavel.scenarios.task import Task

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

    A parameter annotated as `Task` (or `Task | None`) is not shown to the agent; the rollout fills it in. A plain
    function runs on the event loop: write `async def` for a tool that waits.

    Raises `ToolDefinitionError` for a function that has no schema.
    """

    def __init__(self, function: ToolFunction) -> None:
        self.function = function
        self.name = getattr(function, "__name__", "")
        if not self.name.isidentifier():
            raise ToolDefinitionError(
                f"{function!r} has no usable name, so the agent could not call it", "Use a function made with def."
            )
        try:
            self._arguments, self._task_parameter = _argument_model(function, self.name)
            self.schema = self._schema()
            """The OpenAI tool schema: `{"type": "function", "function": {name, description, parameters}}`."""
        except (NameError, PydanticUserError) as error:
            raise ToolDefinitionError(
                f"the tool {self.name} cannot be described to an agent: {str(error).splitlines()[0]}",
                "Use types that JSON can hold: str, int, float, bool, list, dict, Literal, or a pydantic model.",
            ) from error

    def _schema(self) -> dict[str, Any]:
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
        except (ValueError, TypeError, RecursionError) as error:  # huge numbers, an object for the text, deep nesting
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
            if isinstance(result, Done):
                return ToolResult(content=_text(result.value), done=True)
            return ToolResult(content=_text(result))
        except Exception as error:
            return _error(f"{self.name} failed: {type(error).__name__}: {error}")


class Toolbox:
    """The tools of one scenario, by name."""

    def __init__(self, functions: Iterable[ToolFunction]) -> None:
        tools = [Tool(function) for function in functions]
        self._tools = {tool.name: tool for tool in tools}
        if len(self._tools) < len(tools):
            names = [tool.name for tool in tools]
            twice = next(name for name in names if names.count(name) > 1)
            raise ToolDefinitionError(f"two tools are called {twice}", "Rename one of the functions.")
        self.schemas = [tool.schema for tool in tools]

    async def call(self, name: str, arguments: str, task: Task | None = None) -> ToolResult:
        """Runs the tool called `name`; an unknown name is a tool error too."""
        tool = self._tools.get(name)
        if tool is None:
            return _error(f"there is no tool {name!r}; the tools are {', '.join(self._tools) or 'none'}")
        return await tool.call(arguments, task)

    async def answer(self, call: Any, task: Task | None = None) -> Message:
        """The tool message that answers an OpenAI tool call (an object with `id` and `function`)."""
        result = await self.call(call.function.name, call.function.arguments, task)
        return {"role": "tool", "tool_call_id": call.id, "content": result.content}


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
        if _is_task(hint):
            task_parameter = parameter.name
            continue
        if hint is None:
            raise ToolDefinitionError(
                f"the argument {parameter.name} of the tool {name} has no type", f"Write {parameter.name}: str, say."
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        if described := docs.get(parameter.name):
            hint = Annotated[hint, Field(description=described)]
        fields[parameter.name] = (hint, default)
    model = create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
    if lost := fields.keys() - model.model_fields.keys():
        raise ToolDefinitionError(f"the argument {min(lost)} of the tool {name} has a reserved name", "Rename it.")
    return model, task_parameter


def _is_task(hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return Task in get_args(hint)
    return hint is Task


def _plain(error: ValidationError) -> str:
    problems: list[str] = []
    for detail in error.errors():
        where = ".".join(str(part) for part in detail["loc"]) or "arguments"
        problems.append(f"{where}: {detail['msg'].lower()}")
    return "; ".join(problems)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        value = json.dumps(to_jsonable_python(value, fallback=str), ensure_ascii=False)
    return _sendable(value)


def _sendable(text: str) -> str:
    """Lone surrogates, which JSON lets an agent write but no request can carry, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _error(message: str) -> ToolResult:
    return ToolResult(content=_text({"error": message}), error=True)
