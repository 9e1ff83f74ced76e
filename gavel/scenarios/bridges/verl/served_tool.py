"""A tool of one of Gavel's scenarios within verl's agent loop: what `gavel export-verl` names in tools.yaml.

verl makes an instance for each call, with the row's `create_kwargs`: the hidden task, which plain tools read.
"""

import json
from typing import Any, cast
from uuid import uuid4

from gavel.scenarios.scenario import Scenario, ScenarioError, find_scenario
from gavel.scenarios.task import Task

_scenarios: dict[str, Scenario] = {}
"""Those of this process, by reference."""


class ScenarioTool:
    """As verl's `BaseTool`: `create`, `execute`, `calc_reward`, `release`."""

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        """`config["scenario"]`: a shipped scenario's name, or `file.py:variable`. Raises `ScenarioError`."""
        reference = str(config["scenario"])
        if reference not in _scenarios:
            _scenarios[reference] = find_scenario(reference)
        self._toolbox = _scenarios[reference].toolbox
        self.config = config
        self.tool_schema = tool_schema
        self.name = str(tool_schema.function.name)
        if self.name not in {tool.name for tool in self._toolbox}:
            raise ScenarioError(f"{reference} has no tool {self.name}", "Export it again: gavel export-verl.")
        self._tasks: dict[str, Task] = {}

    def get_openai_tool_schema(self) -> Any:
        return self.tool_schema

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, Any]:
        """An instance for the task in `create_kwargs`."""
        from verl.tools.schemas import ToolResponse  # pyright: ignore

        given: dict[str, Any] = kwargs.get("create_kwargs") or {}
        instance_id = instance_id or uuid4().hex
        self._tasks[instance_id] = Task.model_validate_json(given["task"])
        return instance_id, cast(Any, ToolResponse())

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **_: Any
    ) -> tuple[Any, float, dict[str, Any]]:
        """The tool's answer, which may be a tool error, and no reward: the judge sees the whole attempt."""
        from verl.tools.schemas import ToolResponse  # pyright: ignore

        result = await self._toolbox.call(self.name, json.dumps(parameters), self._tasks[instance_id])
        return cast(Any, ToolResponse(text=result.content)), 0.0, {"tool_error": float(result.error)}

    async def calc_reward(self, instance_id: str, **_: Any) -> float:
        return 0.0

    async def release(self, instance_id: str, **_: Any) -> None:
        self._tasks.pop(instance_id, None)
