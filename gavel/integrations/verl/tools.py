"""Tools of verl's multi-turn YAML: classes with `create`, `execute` and `release`, called like verl's agent loop does.

    tools:
      - class_name: my_tools.Calculator
        config: {type: native}
        tool_schema: {type: function, function: {name: calculate, description: …, parameters: {…}}}

Each call makes an instance with the row's `create_kwargs`, executes, and releases it. A failing call is answered with
an error text; it never ends the episode.

In the other direction, `ScenarioTool` is a tool of one of Gavel's scenarios in verl's agent loop, as `gavel
export-verl` writes it to tools.yaml. Each call's instance has the hidden task, which plain tools read, in its
`create_kwargs`.
"""

import functools
import importlib
import json
import sys
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import yaml

from gavel.llm.types import Message
from gavel.scenarios.scenario import ScenarioError, find_scenario
from gavel.scenarios.task import Task
from gavel.scenarios.tools import Toolbox, ToolResult

_SHAPE = "verl's YAML has tools: a list of class_name, config and tool_schema."


class VerlTools:
    """The tools of one file."""

    def __init__(self, path: Path) -> None:
        """Raises `ScenarioError` for an unreadable file, and for a class that cannot be instantiated."""
        try:
            found: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ScenarioError(f"{path} cannot be read: {error}", _SHAPE) from error
        entries: Any = cast(Message, found).get("tools") if isinstance(found, dict) else None
        if not isinstance(entries, list) or not entries:
            raise ScenarioError(f"{path} lists no tools", _SHAPE)
        self._tools: dict[str, Any] = {}
        self.schemas: list[Message] = []
        """Schemas in OpenAI's form, as the agent is shown them."""
        for entry in cast("list[Any]", entries):
            tool = _make_tool(entry, path)
            schema: Message = tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True)
            name = schema["function"]["name"]
            if name in self._tools:
                raise ScenarioError(f"{path} has two tools called {name}", "Give each a name of its own.")
            self._tools[name] = tool
            self.schemas.append(schema)

    def offer(self, offered: Toolbox, tools_kwargs: Message, metrics: dict[str, Any]) -> None:
        """Gives the tools to an episode. `tools_kwargs`: from the row, by the tool's name. Rewards of calls are added
        to the metric `tool_reward`."""
        for schema in self.schemas:
            name = schema["function"]["name"]
            offered.add(schema, functools.partial(self._call, name, tools_kwargs.get(name) or {}, metrics))

    async def _call(self, name: str, kwargs: Message, metrics: dict[str, Any], arguments: str) -> ToolResult:
        tool, instance = self._tools[name], None
        try:
            given: Any = json.loads(arguments or "{}")
        except ValueError as error:
            return ToolResult(f"Invalid JSON in arguments for '{name}': {error}", error=True)
        try:
            instance, _ = await tool.create(create_kwargs=kwargs.get("create_kwargs", {}))
            response, reward, _ = await tool.execute(instance, given)
            metrics["tool_reward"] += float(reward or 0.0)
            return ToolResult(str(response.text or ""))
        except Exception as error:
            return ToolResult(f"Error executing tool '{name}': {type(error).__name__}: {error}", error=True)
        finally:
            if instance is not None:
                await tool.release(instance)


def _make_tool(entry: Any, path: Path) -> Any:
    """The tool of one YAML entry."""
    fields = cast(Message, entry) if isinstance(entry, dict) else {}
    config: Message = fields.get("config") or {}
    place, _, name = str(fields.get("class_name", "")).rpartition(".")
    if not place:
        raise ScenarioError(f"{path}: a tool has no class_name", _SHAPE)
    if config.get("type", "native") != "native":
        raise ScenarioError(
            f"{path}: {name} is of the type {config['type']}, and native ones are supported",
            "Give tools of an MCP server to a scenario of your own: gavel.Scenario(tools=[gavel.mcp(…)]).",
        )
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        from verl.tools.schemas import OpenAIFunctionToolSchema  # pyright: ignore

        kind: Any = getattr(importlib.import_module(place), name)
        given = fields.get("tool_schema")
        schema: Any = None if given is None else OpenAIFunctionToolSchema.model_validate(given)  # pyright: ignore
        return kind(config=config, tool_schema=schema)
    except ModuleNotFoundError as error:
        remedy = "pip install verl" if (error.name or "").partition(".")[0] == "verl" else _SHAPE
        raise ScenarioError(
            f"{path}: {fields['class_name']} needs {error.name}, which is not installed", remedy
        ) from error
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise ScenarioError(f"{path}: the tool {fields['class_name']} cannot be made: {told}", _SHAPE) from error
    finally:
        sys.path.remove(folder)


_scenario = functools.cache(find_scenario)


class ScenarioTool:
    """A tool with the interface of verl's `BaseTool`: `create`, `execute`, `calc_reward`, `release`."""

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        """`config["scenario"]`: a shipped scenario's name, or `file.py:variable`. Raises `ScenarioError`."""
        reference = str(config["scenario"])
        self._toolbox = _scenario(reference).toolbox
        self.config = config
        self.tool_schema = tool_schema
        self.name = str(tool_schema.function.name)
        if self.name not in {tool.name for tool in self._toolbox}:
            raise ScenarioError(f"{reference} has no tool {self.name}", "Export it again: gavel export-verl.")
        self._tasks: dict[str, Task] = {}

    def get_openai_tool_schema(self) -> Any:
        return self.tool_schema

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, Any]:
        """Creates an instance for the task in `create_kwargs`."""
        from verl.tools.schemas import ToolResponse  # pyright: ignore

        given: dict[str, Any] = kwargs.get("create_kwargs") or {}
        instance_id = instance_id or uuid4().hex
        self._tasks[instance_id] = Task.model_validate_json(given["task"])
        return instance_id, cast(Any, ToolResponse())

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **_: Any
    ) -> tuple[Any, float, dict[str, Any]]:
        """The tool's answer, which may be a tool error, without a reward: the judge sees the whole attempt."""
        from verl.tools.schemas import ToolResponse  # pyright: ignore

        result = await self._toolbox.call(self.name, json.dumps(parameters), self._tasks[instance_id])
        return cast(Any, ToolResponse(text=result.content)), 0.0, {"tool_error": float(result.error)}

    async def calc_reward(self, instance_id: str, **_: Any) -> float:
        return 0.0

    async def release(self, instance_id: str, **_: Any) -> None:
        self._tasks.pop(instance_id, None)
